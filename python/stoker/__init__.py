"""Stoker: the end of a mixture-of-experts layer in one kernel, and its cold experts on the CPU, for PyTorch.

    communicator = stoker.Communicator.from_process_group(group, device="cuda", max_tokens=128, hidden_max=7168)
    residual_out, norm_out = torch.ops.stoker.moe_finalize_allreduce_rmsnorm(
        rows, indices, weights, gamma, communicator.handle, shared=shared, residual=residual)

    engine = stoker.OffloadEngine("path/to/checkpoint", cache_bytes=8 << 30)
    partial = torch.ops.stoker.offload_experts(hidden, topk_ids, topk_weights, 1.0, layer, engine.handle)

Importing the package loads the op libraries: the schemas and the CPU ops always, the CUDA ops where torch was built
with CUDA. It initialises no device.
"""

from stoker._fake import register_fake_kernels as _register_fake_kernels
from stoker._library import cuda_library, load_libraries as _load_libraries
from stoker.communicator import Communicator, StokerError, UnsupportedGroupError
from stoker.offload import OffloadEngine

_load_libraries()
_register_fake_kernels()

__all__ = ["Communicator", "OffloadEngine", "StokerError", "UnsupportedGroupError", "cuda_library"]
