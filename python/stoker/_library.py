"""Finding and loading the op libraries."""

import ctypes
import functools
import pathlib

import torch

_PACKAGE = pathlib.Path(__file__).resolve().parent
# Beside the package when installed; in the build tree the libraries lie in the folder ops.
_FOLDERS = (_PACKAGE / "lib", _PACKAGE.parents[1] / "ops", pathlib.Path.cwd() / "ops")


def _find(name: str) -> pathlib.Path:
    for folder in _FOLDERS:
        if (folder / name).exists():
            return folder / name
    looked = ", ".join(str(folder) for folder in _FOLDERS)
    raise ImportError(f"stoker: {name} is missing (looked in {looked}); build //ops:{name} or reinstall the package")


@functools.cache
def cpu_library() -> ctypes.CDLL:
    """The library with the schemas and the CPU ops."""
    path = _find("libstoker_cpu.so")
    torch.ops.load_library(str(path))
    return ctypes.CDLL(str(path))


def no_cuda_reason() -> str | None:
    """Why this torch cannot have the CUDA ops, or None. The CPU ops work all the same."""
    built_for = 13
    if torch.version.cuda is None:
        return "torch was built without CUDA"
    if int(torch.version.cuda.split(".")[0]) != built_for:
        return (f"built for CUDA {built_for}, torch was built for CUDA {torch.version.cuda}; "
                f"install a torch for CUDA {built_for}")
    return None


@functools.cache
def cuda_library() -> ctypes.CDLL | None:
    """The library with the CUDA ops, or None for a `no_cuda_reason`."""
    if no_cuda_reason() is not None:
        return None
    cpu_library()
    path = _find("libstoker_cuda.so")
    torch.ops.load_library(str(path))
    return ctypes.CDLL(str(path))


def load_libraries() -> None:
    cpu_library()
    cuda_library()
