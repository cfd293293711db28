"""cuda_library: compiles .cu files with nvcc and links like a cc_library; cuda_ptx: their PTX.

The kernels' numbers depend on these flags: nothing is contracted and nothing is flushed to zero.
"""

load("@cuda//:defs.bzl", "CUDA_HOME")

_FLAGS = ["-std=c++20", "-O3", "-Xfatbin=-compress-all", "--expt-relaxed-constexpr", "-Xcompiler=-fPIC,-ffp-contract=off,-Wall,-fvisibility=hidden"]

_EXACT_FLAGS = ["-fmad=false"]

_ARCHS = {
    "default": ["90"],
    "all": ["80", "90", "100", "103"],
}

def _archs(ctx):
    return ctx.attr.archs or _ARCHS[ctx.var.get("stoker_archs", "default")]

def _run_nvcc(ctx, source, output, arguments, context):
    includes = []
    for path in ["."] + context.includes.to_list() + context.quote_includes.to_list():
        includes += ["-I", path]
    for path in context.system_includes.to_list():
        includes += ["-isystem", path]
    ctx.actions.run(
        executable = CUDA_HOME + "/bin/nvcc",
        arguments = arguments + _FLAGS + (_EXACT_FLAGS if ctx.attr.exact else []) + ctx.attr.copts + includes + [source.path, "-o", output.path],
        inputs = depset([source], transitive = [context.headers]),
        outputs = [output],
        mnemonic = "Nvcc",
        # By the output, which tells an object from its PTX: tools/test reads the time of one of them.
        progress_message = "Compiling %s with nvcc" % output.short_path,
        # nvcc names its temporary files after the source; two actions must not share a folder.
        env = {"PATH": "/usr/bin:/bin:" + CUDA_HOME + "/bin", "TMPDIR": "/tmp"},
    )

def _merged(ctx):
    own = CcInfo(compilation_context = cc_common.create_compilation_context(headers = depset(ctx.files.hdrs)))
    return cc_common.merge_cc_infos(direct_cc_infos = [own], cc_infos = [d[CcInfo] for d in ctx.attr.deps])

def _cuda_library_impl(ctx):
    merged = _merged(ctx)
    all_headers = merged.compilation_context
    gencode = []
    for arch in _archs(ctx):
        gencode += ["-gencode", "arch=compute_%s,code=sm_%s" % (arch, arch)]
    if ctx.var.get("stoker_archs") == "all":
        # For GPUs newer than all of them: PTX, which the driver compiles.
        gencode += ["-gencode", "arch=compute_%s,code=compute_%s" % (_archs(ctx)[-1], _archs(ctx)[-1])]
    objects = []
    for source in ctx.files.srcs:
        output = ctx.actions.declare_file("_objs/%s/%s.o" % (ctx.label.name, source.basename))
        _run_nvcc(ctx, source, output, ["-c", "-objtemp"] + gencode, all_headers)
        objects.append(output)
    archive = ctx.actions.declare_file("lib%s.a" % ctx.label.name)
    ctx.actions.run(
        executable = "/usr/bin/ar",
        arguments = ["rcsD", archive.path] + [o.path for o in objects],
        inputs = objects,
        outputs = [archive],
        mnemonic = "CudaArchive",
    )
    library = cc_common.create_library_to_link(
        actions = ctx.actions,
        static_library = archive,
        pic_static_library = archive,
        alwayslink = True,
        feature_configuration = _features(ctx),
        cc_toolchain = ctx.attr._cc_toolchain[cc_common.CcToolchainInfo],
    )
    linker_input = cc_common.create_linker_input(owner = ctx.label, libraries = depset([library]))
    linking = cc_common.create_linking_context(linker_inputs = depset([linker_input]))
    own = CcInfo(compilation_context = all_headers, linking_context = linking)
    return [
        DefaultInfo(files = depset([archive])),
        cc_common.merge_cc_infos(direct_cc_infos = [own], cc_infos = [merged]),
    ]

def _features(ctx):
    return cc_common.configure_features(
        ctx = ctx,
        cc_toolchain = ctx.attr._cc_toolchain[cc_common.CcToolchainInfo],
        requested_features = ctx.features,
        unsupported_features = ctx.disabled_features,
    )

_ATTRS = {
    "srcs": attr.label_list(allow_files = [".cu"]),
    "hdrs": attr.label_list(allow_files = [".h", ".cuh", ".inc"]),
    "deps": attr.label_list(providers = [CcInfo]),
    "copts": attr.string_list(),
    # Instead of the build's, for what others cannot run or is tested by itself.
    "archs": attr.string_list(),
    # False only for what others ship with other numbers: the peers of the benchmarks.
    "exact": attr.bool(default = True),
    "_cc_toolchain": attr.label(default = "@bazel_tools//tools/cpp:current_cc_toolchain"),
}

cuda_library = rule(
    implementation = _cuda_library_impl,
    attrs = _ATTRS,
    fragments = ["cpp"],
    toolchains = ["@bazel_tools//tools/cpp:toolchain_type"],
)

def _cuda_ptx_impl(ctx):
    merged = _merged(ctx)
    all_headers = merged.compilation_context
    outputs = []
    for source in ctx.files.srcs:
        for arch in _archs(ctx):
            output = ctx.actions.declare_file("%s.sm_%s.ptx" % (source.basename[:-3], arch))
            _run_nvcc(ctx, source, output, ["-ptx", "-objtemp", "-arch=compute_" + arch], all_headers)
            outputs.append(output)
    return [DefaultInfo(files = depset(outputs), runfiles = ctx.runfiles(files = outputs))]

cuda_ptx = rule(
    implementation = _cuda_ptx_impl,
    attrs = _ATTRS,
    fragments = ["cpp"],
)
