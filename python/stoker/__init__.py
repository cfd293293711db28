"""Stoker: the end of a mixture-of-experts layer in one kernel, and its cold experts on the CPU, for PyTorch.

    communicator = stoker.Communicator.from_process_group(group, device="cuda", max_tokens=128, hidden_max=7168)
    residual_out, norm_out = torch.ops.stoker.moe_finalize_allreduce_rmsnorm(
        rows, indices, weights, gamma, communicator.handle, shared=shared, residual=residual)

    engine = stoker.OffloadEngine("path/to/checkpoint", cache_bytes=8 << 30)
    partial = torch.ops.stoker.offload_experts(hidden, topk_ids, topk_weights, 1.0, layer, engine.handle)

The ops, T bf16 or fp16, each also as `.out`, on CPU and CUDA tensors:

    moe_finalize_allreduce_rmsnorm(rows [R, H], indices [T, k], weights [T, k] or None, gamma [H], communicator, ...)
    moe_reduce_allreduce_rmsnorm(rows [E, T, H], scales [E, T] float32, gamma [H], communicator, ...)
    allreduce_rmsnorm(input [T, H], gamma [H], communicator, ...)
    moe_finalize(rows [R, H], indices [T, k], weights [T, k] or None, ...)      no communicator: this rank's sum alone
    offload_experts(hidden [T, H], topk_ids [T, k], topk_weights [T, k], routed_scaling_factor, layer, engine)

`torch.ops.stoker.NAME.default._schema` has the keywords with their defaults. In FP32, rounded once: a rank's row, the
sum over ranks, and each output. The first three return residual_out and norm_out, equal on all ranks bit for bit.

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
