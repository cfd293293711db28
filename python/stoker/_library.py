"""Finding and loading the op libraries."""

import ctypes
import functools
import pathlib

import torch

# Architectures that ran the tests; for the others the code is inside and nobody has run it.
GPUS_TESTED = ("sm_90",)
CUDA_MAJOR, TORCH_MIN = 13, "2.10"  # what the libraries are built for: CUDA, and the first torch with their stable ABI

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
    if torch.version.cuda is None:
        return "torch was built without CUDA"
    if int(torch.version.cuda.split(".")[0]) != CUDA_MAJOR:
        return (f"built for CUDA {CUDA_MAJOR}, torch was built for CUDA {torch.version.cuda}; "
                f"install a torch for CUDA {CUDA_MAJOR}")
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
