"""Finds the libraries that this machine has and makes a repository of each.

A missing one is an error only for a target that needs it; the message names the package to install.
"""

_ABSL = "absl"

def _find(ctx, paths, package, command):
    for path in paths:
        if path and ctx.path(path).exists:
            return str(path)
    fail("%s is missing (looked for %s). Install it: %s" % (package, ", ".join(paths), command))

def _apt(package):
    return "apt-get install " + package

def _system_library_impl(ctx):
    _find(ctx, [ctx.attr.header], ctx.attr.package, _apt(ctx.attr.package))
    names = [ctx.attr.name] if not ctx.attr.targets else ctx.attr.targets
    rules = ['package(default_visibility = ["//visibility:public"])']
    rules.append("cc_library(name = \"_all\", linkopts = %s)" % repr(ctx.attr.linkopts))
    for name in names:
        rules.append("cc_library(name = \"%s\", deps = [\":_all\"])" % name)
    ctx.file("BUILD", "\n".join(rules) + "\n")

# A library whose headers lie in /usr/include and that a -l option links.
system_library = repository_rule(
    implementation = _system_library_impl,
    attrs = {
        "header": attr.string(mandatory = True),
        "package": attr.string(mandatory = True),
        "linkopts": attr.string_list(),
        "targets": attr.string_list(doc = "names of the targets; by default that of the repository"),
    },
    local = True,
)

def _absl_impl(ctx):
    _find(ctx, ["/usr/include/absl/base/config.h"], "Abseil", _apt("libabsl-dev"))
    library = ctx.path("/usr/lib/x86_64-linux-gnu")
    archives = sorted([f.basename for f in library.readdir() if f.basename.startswith("libabsl_") and f.basename.endswith(".a")])
    if not archives:
        fail("Abseil's static archives are missing from %s. Install them: %s" % (library, _apt("libabsl-dev")))

    # One group: the archives refer to each other in cycles, and only what is used is linked.
    group = ["-Wl,--start-group"] + ["-l:" + a for a in archives] + ["-Wl,--end-group"]
    # Debian's archives are not position-independent. A shared library of ours names the shared ones
    # first, which then define everything and leave the archives out.
    shared = ["-Wl,--as-needed"] + ["-l" + a[len("lib"):-len(".a")] for a in archives if ctx.path(str(library) + "/" + a[:-2] + ".so").exists]
    ctx.file("defs.bzl", "ABSL_SHARED = %s\n" % repr(shared))
    rules = ['package(default_visibility = ["//visibility:public"])']
    rules.append("cc_library(name = \"_all\", linkopts = %s)" % repr(group))
    for name in ctx.attr.targets:
        rules.append("cc_library(name = \"%s\", deps = [\":_all\"])" % name)
    ctx.file("BUILD", "\n".join(rules) + "\n")

absl_repository = repository_rule(
    implementation = _absl_impl,
    attrs = {"targets": attr.string_list(mandatory = True)},
    local = True,
)

def _googletest_impl(ctx):
    root = _find(ctx, ["/usr/src/googletest"], "GoogleTest", _apt("googletest"))
    ctx.symlink(root + "/googletest", "googletest")
    ctx.symlink(root + "/googlemock", "googlemock")
    ctx.file("BUILD", """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "gtest",
    srcs = ["googletest/src/gtest-all.cc", "googlemock/src/gmock-all.cc"],
    hdrs = glob(["googletest/include/**/*.h", "googlemock/include/**/*.h"]),
    copts = ["-w"],
    includes = ["googletest/include", "googlemock/include"],
    linkopts = ["-lpthread"],
    textual_hdrs = glob(
        ["googletest/src/*", "googlemock/src/*"],
        exclude = ["googlemock/src/gmock_main.cc", "googletest/src/gtest_main.cc"],
    ),
    deps = [":private"],
)

cc_library(
    name = "private",
    includes = ["googletest", "googlemock"],
)

cc_library(
    name = "gtest_main",
    srcs = ["googlemock/src/gmock_main.cc"],
    copts = ["-w"],
    deps = [":gtest"],
)
""")

googletest_repository = repository_rule(implementation = _googletest_impl, local = True)

def _cuda_home(ctx):
    """Where bin/nvcc lies: as CUDA_HOME says, else the system's, else what tools/setup has installed."""
    named = ctx.os.environ.get("CUDA_HOME", "")
    if not named and not ctx.path("/usr/local/cuda/bin/nvcc").exists:
        return _installed(ctx, "cuda", "cuda.lock", "The CUDA Toolkit") + "/nvidia/cu13"
    root = named or "/usr/local/cuda"
    _find(ctx, [root + "/bin/nvcc"], "The CUDA Toolkit", "correct CUDA_HOME, or unset it and run tools/setup")
    return root

def _cuda_impl(ctx):
    root = _cuda_home(ctx)
    whole = "the whole CUDA Toolkit, with its headers and static libraries"
    include = _find(ctx, [root + "/targets/x86_64-linux/include", root + "/include"], "The folder of CUDA's headers", whole)
    lib = _find(ctx, [root + "/targets/x86_64-linux/lib", root + "/lib64", root + "/lib"], "The folder of CUDA's libraries", whole)
    _find(ctx, [include + "/cuda_runtime.h"], "The CUDA runtime's header", whole)
    _find(ctx, [lib + "/libcudart_static.a"], "The CUDA runtime", whole)
    ctx.symlink(include, "include")
    ctx.symlink(lib + "/libcudart_static.a", "lib/libcudart_static.a")
    ctx.file("defs.bzl", "CUDA_HOME = %r\n" % root)
    ctx.file("BUILD", """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "headers",
    hdrs = glob(["include/**"]),
    # Included as system headers, so that our warnings do not judge them.
    includes = ["include"],
)

cc_library(
    name = "cudart",
    srcs = ["lib/libcudart_static.a"],
    linkopts = ["-lpthread", "-ldl", "-lrt"],
    deps = [":headers"],
)
""")

cuda_repository = repository_rule(implementation = _cuda_impl, environ = ["CUDA_HOME", "HOME", "STOKER_CACHE"], local = True)

def _nccl_impl(ctx):
    root = _cuda_home(ctx)

    # The CUDA Toolkit does not bring it; torch for CUDA does.
    places = [root + "/include/nccl.h", "/usr/include/nccl.h"]
    if not [place for place in places if ctx.path(place).exists]:
        places.append(_site_packages(ctx) + "/nvidia/nccl/include/nccl.h")
    header = _find(ctx, places, "NCCL's header", "tools/setup, or " + _apt("libnccl-dev"))
    ctx.symlink(header, "include/nccl.h")
    ctx.file("BUILD", """
package(default_visibility = ["//visibility:public"])

# Headers only: the library is opened at run time, where torch or the system has it.
cc_library(
    name = "headers",
    hdrs = ["include/nccl.h"],
    includes = ["include"],
    deps = ["@cuda//:headers"],
)
""")

nccl_repository = repository_rule(implementation = _nccl_impl, environ = ["CUDA_HOME", "HOME", "STOKER_CACHE"], local = True)

def _installed(ctx, what, lock, package):
    """The folder that tools/setup makes from a lock file: another clone's lock may be another one."""
    cache = ctx.os.environ.get("STOKER_CACHE", ctx.os.environ.get("HOME", "/root") + "/.cache/stoker")
    digest = ctx.execute(["sha256sum", str(ctx.path(Label("//tools:python/" + lock)))]).stdout
    return _find(ctx, ["%s/%s-%s" % (cache, what, digest[:16])], package, "tools/setup")

def _python(ctx):
    return _installed(ctx, "python", "requirements.lock", "The Python environment with torch")

def _site_packages(ctx):
    lib = ctx.path(_python(ctx) + "/lib")
    return str([f for f in lib.readdir() if f.basename.startswith("python3")][0]) + "/site-packages"

def _torch_impl(ctx):
    python = _python(ctx)
    formats = _installed(ctx, "formats", "formats.lock", "The Python packages that write checkpoints")
    torch = _site_packages(ctx) + "/torch"
    ctx.symlink(torch + "/include", "include")
    ctx.file("python.sh", "#!/bin/sh\nexec %s/bin/python \"$@\"\n" % python, executable = True)

    # The same with the writers of checkpoints, which take seconds to import.
    ctx.file("python_formats.sh", "#!/bin/sh\nPYTHONPATH=%s exec %s/bin/python \"$@\"\n" % (formats, python), executable = True)
    ctx.file("BUILD", """
package(default_visibility = ["//visibility:public"])

exports_files(["python.sh", "python_formats.sh"])

# Headers only: the symbols are those of the process that loads the op libraries.
cc_library(
    name = "headers",
    hdrs = glob(["include/torch/csrc/stable/**", "include/torch/csrc/inductor/aoti_torch/**", "include/torch/headeronly/**", "include/c10/**"]),
    includes = ["include"],
)

# torch loads its libraries without making their symbols global, so ours must name them.
cc_library(
    name = "cpu",
    linkopts = ["-L%s/lib", "-Wl,--no-as-needed,-ltorch_cpu,--as-needed"],
    deps = [":headers"],
)

cc_library(
    name = "cuda",
    linkopts = ["-L%s/lib", "-Wl,--no-as-needed,-ltorch_cuda,--as-needed"],
    deps = [":cpu"],
)
""" % (torch, torch))

# torch, as tools/setup installs it.
torch_repository = repository_rule(implementation = _torch_impl, environ = ["HOME", "STOKER_CACHE"], local = True)

def _flashinfer_impl(ctx):
    root = ctx.os.environ.get("HOME", "/root") + "/.cache/stoker/peers/flashinfer"
    _find(ctx, [root + "/flashinfer/data/include"], "The peer package flashinfer-python", "tools/bench/peers/fetch")
    ctx.symlink(root + "/flashinfer/data/include", "include")
    ctx.symlink(root + "/flashinfer/data/spdlog/include", "spdlog")
    version = [f.basename for f in ctx.path(root).readdir() if f.basename.endswith(".dist-info")][0]
    ctx.file("version.h", "#define STOKER_FLASHINFER_VERSION \"%s\"\n" % version[len("flashinfer_python-"):-len(".dist-info")])
    ctx.file("BUILD", """
package(default_visibility = ["//visibility:public"])

cc_library(
    name = "headers",
    hdrs = glob(["include/**", "spdlog/**"]) + ["version.h"],
    includes = ["include", "spdlog", "."],
)
""")

# A peer to measure against, as installed by tools/bench/peers/fetch; only manual targets need it.
flashinfer_repository = repository_rule(implementation = _flashinfer_impl, environ = ["HOME"], local = True)

def stoker_repositories():
    """Declares every third-party repository. Each is looked for only when a target needs it."""
    absl_repository(
        name = _ABSL,
        targets = [
            "base",
            "cleanup",
            "container",
            "flags",
            "flags_parse",
            "flags_usage",
            "flat_hash_map",
            "flat_hash_set",
            "function_ref",
            "hash",
            "inlined_vector",
            "random",
            "span",
            "status",
            "statusor",
            "str_format",
            "strings",
            "synchronization",
            "time",
            "types",
        ],
    )
    googletest_repository(name = "googletest")
    cuda_repository(name = "cuda")
    nccl_repository(name = "nccl")
    torch_repository(name = "torch")
    flashinfer_repository(name = "flashinfer")
    system_library(name = "benchmark", header = "/usr/include/benchmark/benchmark.h", linkopts = ["-lbenchmark", "-lpthread"], package = "libbenchmark-dev")
    system_library(name = "nlohmann_json", header = "/usr/include/nlohmann/json.hpp", package = "nlohmann-json3-dev")
    system_library(name = "liburing", header = "/usr/include/liburing.h", linkopts = ["-l:liburing.a"], package = "liburing-dev")
    system_library(name = "boost_context", header = "/usr/include/boost/context/fiber.hpp", linkopts = ["-l:libboost_context.a"], package = "libboost-context-dev")
