"""Makes the wheel: the package, both op libraries, the shared Abseil that they need, and the command.

    build_wheel.py --out FOLDER --version V --library LIB... --command PROGRAM --source FILE...

Writes one file, whose platform tag follows from the symbols that its programs and libraries need, and whose bytes
follow from its inputs. docs/decisions/wheel.md says why the wheel is as it is.
"""

import argparse
import base64
import hashlib
import pathlib
import zipfile

import elf

METADATA = """Metadata-Version: 2.1
Name: stoker
Version: {version}
Summary: The end of a mixture-of-experts layer in one kernel, and its cold experts on the CPU, for PyTorch
Requires-Python: >=3.10
Requires-Dist: torch>=2.10
"""
WHEEL = """Wheel-Version: 1.0
Generator: stoker
Root-Is-Purelib: false
Tag: py3-none-{platform}
"""
ENTRY_POINTS = """[console_scripts]
stoker = stoker_command:main

[vllm.general_plugins]
stoker = stoker.vllm:register
"""
# Where the libraries were linked: Debian's Abseil.
SYSTEM_LIBRARIES = pathlib.Path("/usr/lib/x86_64-linux-gnu")


def bundled(libraries):
    """What `libraries` need, directly or not, and neither the system nor torch has: {soname: path}."""
    found, waiting = {}, list(libraries)
    own = {path.name for path in libraries}
    while waiting:
        for soname in sorted(elf.read(waiting.pop()).libraries - elf.SYSTEM - elf.TORCH - own - set(found)):
            path = SYSTEM_LIBRARIES / soname
            if not soname.startswith("libabsl_"):
                raise SystemExit(f"{soname} is needed: it is neither on every Linux, nor torch's, nor Abseil's")
            found[soname] = path.resolve(strict=True)
            waiting.append(found[soname])
    return found


def contents(arguments):
    """{name in the wheel: (bytes, whether it is a program)}, and the platform tag."""
    libraries = [pathlib.Path(path) for path in arguments.library]
    files = {}
    for path in map(pathlib.Path, arguments.source):
        parts = path.parts
        inside = parts[len(parts) - 1 - parts[::-1].index("stoker"):] if "stoker" in parts else (path.name,)
        files["/".join(inside)] = (path.read_bytes(), False)
    programs = {"stoker/bin/stoker": pathlib.Path(arguments.command)}
    shared = {path.name: path for path in libraries} | bundled(libraries)
    needs = [elf.read(path) for path in [*shared.values(), *programs.values()]]
    absent = elf.read(arguments.command).libraries - elf.SYSTEM
    if absent:
        raise SystemExit(f"{arguments.command} needs {', '.join(sorted(absent))}, which not every Linux has")
    files |= {f"stoker/lib/{name}": (path.read_bytes(), True) for name, path in shared.items()}
    files |= {name: (path.read_bytes(), True) for name, path in programs.items()}
    return files, elf.platform_tag(needs)


def write(path, files, info):
    def digest(data):
        return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()

    record = [f"{name},{digest(data)},{len(data)}" for name, (data, _) in sorted(files.items())]
    files[f"{info}/RECORD"] = ("\n".join([*record, f"{info}/RECORD,,", ""]).encode(), False)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name, (data, program) in sorted(files.items()):
            entry = zipfile.ZipInfo(name, date_time=(2020, 1, 1, 0, 0, 0))
            entry.external_attr = (0o100755 if program else 0o100644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--library", nargs="+", required=True)
    parser.add_argument("--command", required=True)
    parser.add_argument("--source", nargs="+", required=True)
    arguments = parser.parse_args()
    files, platform = contents(arguments)
    info = f"stoker-{arguments.version}.dist-info"
    files[f"{info}/METADATA"] = (METADATA.format(version=arguments.version).encode(), False)
    files[f"{info}/WHEEL"] = (WHEEL.format(platform=platform).encode(), False)
    files[f"{info}/entry_points.txt"] = (ENTRY_POINTS.encode(), False)
    folder = pathlib.Path(arguments.out)
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / f"stoker-{arguments.version}-py3-none-{platform}.whl", files, info)


if __name__ == "__main__":
    main()
