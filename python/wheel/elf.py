"""What a shared library or program needs from the machine that loads it, and what of it others see; by `readelf`."""

import dataclasses
import re
import struct
import subprocess

# The newest symbol versions that the libstdc++ and libgcc of a distribution with that glibc have, as in auditwheel's
# policies (github.com/pypa/auditwheel, manylinux-policy.json).
POLICIES = [
    ((2, 28), {"GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}),
    ((2, 31), {"GLIBCXX": (3, 4, 28), "CXXABI": (1, 3, 12), "GCC": (9, 0, 0)}),
    ((2, 34), {"GLIBCXX": (3, 4, 29), "CXXABI": (1, 3, 13), "GCC": (11, 0, 0)}),
    ((2, 35), {"GLIBCXX": (3, 4, 30), "CXXABI": (1, 3, 13), "GCC": (12, 0, 0)}),
]
# What every such distribution has.
SYSTEM = {"libc.so.6", "libm.so.6", "libdl.so.2", "librt.so.1", "libpthread.so.0", "libstdc++.so.6", "libgcc_s.so.1",
          "ld-linux-x86-64.so.2"}
# What the process has, since the package imports torch first.
TORCH = {"libtorch_cpu.so", "libtorch_cuda.so"}


@dataclasses.dataclass(frozen=True)
class Needs:
    libraries: frozenset  # sonames
    versions: frozenset  # symbol versions such as GLIBC_2.34
    undefined: frozenset  # names of the symbols that others must define
    defined: frozenset  # names of the symbols that others see


def _readelf(option, path):
    return subprocess.run(["readelf", "-W", option, str(path)], check=True, capture_output=True, text=True).stdout


def read(path) -> Needs:
    symbols = [line.split() for line in _readelf("--dyn-syms", path).splitlines() if re.match(r"\s*\d+:", line)]
    named = [(fields[6], fields[7].split("@")[0]) for fields in symbols if len(fields) > 7]
    dynamic = _readelf("--dynamic", path)
    # Of the section of needed versions alone: a library also lists those that it defines.
    needed_versions = _readelf("--version-info", path).partition("Version needs section")[2]
    return Needs(frozenset(re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic)),
                 frozenset(re.findall(r"Name: (\S+)", needed_versions)),
                 frozenset(name for section, name in named if section == "UND"),
                 frozenset(name for section, name in named if section != "UND"))


def platform_tag(needs, newest=(2, 35)) -> str:
    """The oldest manylinux tag that promises every version in `needs`; ValueError where it is newer than `newest`."""
    versions = set().union(*(one.versions for one in needs))
    for glibc, others in POLICIES:
        limits = {"GLIBC": glibc, **others}
        beyond = [version for version in sorted(versions) if not _within(version, limits)]
        if not beyond:
            return "manylinux_%d_%d_x86_64" % glibc
        if glibc == newest:
            break
    raise ValueError(f"symbols newer than glibc {newest[0]}.{newest[1]} are needed: {', '.join(beyond)}")


def _within(version, limits):
    name, _, number = version.rpartition("_")
    if not re.fullmatch(r"[\d.]+", number):
        return False
    return name not in limits or tuple(int(part) for part in number.split(".")) <= limits[name]


def gpu_code(path) -> set:
    """The GPU code inside: {("sm", 90), ("compute", 103)} for machine code of sm_90 and PTX of compute_103.

    The layout of the containers is not documented; as found by github.com/cloudcores/CuAssembler and checked here
    against what nvcc was told: a container begins with its magic, version 1, the length of its own header and of all
    entries; an entry with its kind (1 PTX, 2 machine code), 0x0101, the length of its header and its padded length;
    the architecture is at byte 28.
    """
    with open(path, "rb") as file:
        data = file.read()
    found = set()
    start = data.find(b"\x50\xed\x55\xba\x01\x00\x10\x00")
    while start >= 0:
        (length,) = struct.unpack_from("<Q", data, start + 8)
        entry, end = start + 16, start + 16 + length
        while entry + 32 <= min(end, len(data)):
            kind, mark, header, size = struct.unpack_from("<HHIQ", data, entry)
            if kind not in (1, 2) or mark != 0x0101:
                break
            (architecture,) = struct.unpack_from("<I", data, entry + 28)
            found.add(("compute" if kind == 1 else "sm", architecture))
            entry += header + size
        start = data.find(b"\x50\xed\x55\xba\x01\x00\x10\x00", start + 16)
    return found
