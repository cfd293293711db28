"""rank_test: a test of several ranks on GPUs.

It runs on a machine with none (and skips there, naming it), with one (its ranks share it) and with many. The tag
`ranks:N` says how many ranks it brings, `gpu` that it wants one; a file lock that its main function takes keeps two of
them from sharing a GPU (testing/gpu_lock.h), whatever Bazel runs side by side. Static, because it links the static CUDA
runtime, and so that it can be carried to a machine without Bazel.
"""

def rank_test(name, ranks, deps = [], tags = [], **kwargs):
    """A cc_test on GPUs with at most `ranks` ranks."""
    if ranks < 1 or ranks > 8:
        fail("rank_test %s: %d ranks; 1 to 8 are supported" % (name, ranks))
    native.cc_test(
        name = name,
        linkstatic = True,
        tags = ["gpu", "ranks:%d" % ranks, "suite:ranks"] + tags,
        deps = deps + ["//testing:gpu_main"],
        **kwargs
    )
