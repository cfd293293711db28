"""wheel: a folder with the one wheel in it, whose name says the platform that its symbols need."""

def _wheel_impl(ctx):
    folder = ctx.actions.declare_directory(ctx.label.name)
    inputs = ctx.files.libraries + ctx.files.command + ctx.files.package + ctx.files._builder
    ctx.actions.run(
        executable = "/usr/bin/python3",
        arguments = ["-B", [f for f in ctx.files._builder if f.basename == "build_wheel.py"][0].path, "--out", folder.path] +
                    ["--version", ctx.attr.version, "--library"] + [f.path for f in ctx.files.libraries] +
                    ["--command", ctx.file.command.path, "--source"] + [f.path for f in ctx.files.package],
        inputs = inputs,
        outputs = [folder],
        env = {"PATH": "/usr/bin:/bin"},
        mnemonic = "Wheel",
    )
    return [DefaultInfo(files = depset([folder]), runfiles = ctx.runfiles(files = [folder]))]

wheel = rule(
    implementation = _wheel_impl,
    attrs = {
        "command": attr.label(allow_single_file = True, mandatory = True),
        "libraries": attr.label_list(allow_files = [".so"], mandatory = True),
        "package": attr.label_list(allow_files = [".py"], mandatory = True),
        "version": attr.string(mandatory = True),
        "_builder": attr.label_list(default = ["//python/wheel:builder"], allow_files = [".py"]),
    },
)
