"""rank_test: a test of several ranks on GPUs.

Tags: `ranks:N`, the most ranks that it brings; `gpus:1`, the GPUs that it needs: its ranks share GPU 0; `gpu`, so that
`--test_tag_filters=-gpu` leaves it out. What is right, by the GPUs of the machine:
  0   every case skips and says that there is no GPU; none passes without having run, and tools/test counts them
  1   every case runs; a file lock that the main function takes (testing/gpu_lock.h) keeps two tests from sharing the
      GPU, whatever Bazel runs side by side
  8   the same as on one: GPU 0 is used, the others stay idle. No test here puts each rank on a GPU of its own
Static, because it links the static CUDA runtime, and so that it can be carried to a machine without Bazel.
"""

def rank_test(name, ranks, deps = [], tags = [], **kwargs):
    """A cc_test on GPUs with at most `ranks` ranks."""
    if ranks < 1 or ranks > 8:
        fail("rank_test %s: %d ranks; 1 to 8 are supported" % (name, ranks))
    native.cc_test(
        name = name,
        linkstatic = True,
        tags = ["gpu", "gpus:1", "ranks:%d" % ranks, "suite:ranks"] + tags,
        deps = deps + ["//testing:gpu_main"],
        **kwargs
    )
