"""Fake kernels: the shapes and dtypes of the ops' results, for torch.compile and export."""

import functools

import torch


def _on_one_device(kernel):
    """A tensor on the meta device beside others brings a call here: what it would return was never computed."""

    @functools.wraps(kernel)
    def checked(*args, **kwargs):
        tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
        devices = sorted({str(tensor.device) for tensor in tensors})
        if len(devices) > 1:
            raise RuntimeError(f"stoker: the tensors are on {', '.join(devices)}; all tensors of a call must be on one "
                               "device")
        return kernel(*args, **kwargs)

    return checked


def _finalize(rows, indices, weights, gamma, communicator, *, shared=None, cold=None, residual=None, eps=1e-6,
              weight_bias=0.0, routed_scaling_factor=1.0, fp32_residual=False, site=0, programmatic_launch=False):
    shape = (indices.shape[0], rows.shape[1])
    return rows.new_empty(shape), rows.new_empty(shape)


def _reduce(rows, scales, gamma, communicator, *, shared=None, residual=None, eps=1e-6, weight_bias=0.0,
            fp32_residual=False, site=0, programmatic_launch=False):
    return rows.new_empty(rows.shape[1:]), rows.new_empty(rows.shape[1:])


def _plain(input, gamma, communicator, *, residual=None, eps=1e-6, weight_bias=0.0, fp32_residual=False, site=0,
           programmatic_launch=False):
    return torch.empty_like(input), torch.empty_like(input)


def _all_reduce(input, communicator, *, site=0, programmatic_launch=False):
    return torch.empty_like(input)


def _local_finalize(rows, indices, weights, *, shared=None, cold=None, routed_scaling_factor=1.0,
                    programmatic_launch=False):
    return rows.new_empty((indices.shape[0], rows.shape[1]))


def _offload(hidden, topk_ids, topk_weights, routed_scaling_factor, layer, engine):
    return hidden.new_empty(hidden.shape, dtype=torch.float32)


def _nothing(*args, **kwargs):
    return None


def register_fake_kernels() -> None:
    torch.library.register_fake("stoker::moe_finalize_allreduce_rmsnorm", _on_one_device(_finalize))
    torch.library.register_fake("stoker::moe_finalize_allreduce_rmsnorm.out", _on_one_device(_nothing))
    torch.library.register_fake("stoker::moe_reduce_allreduce_rmsnorm", _on_one_device(_reduce))
    torch.library.register_fake("stoker::moe_reduce_allreduce_rmsnorm.out", _on_one_device(_nothing))
    torch.library.register_fake("stoker::allreduce_rmsnorm", _on_one_device(_plain))
    torch.library.register_fake("stoker::allreduce_rmsnorm.out", _on_one_device(_nothing))
    torch.library.register_fake("stoker::all_reduce", _on_one_device(_all_reduce))
    torch.library.register_fake("stoker::all_reduce.out", _on_one_device(_nothing))
    torch.library.register_fake("stoker::moe_finalize", _on_one_device(_local_finalize))
    torch.library.register_fake("stoker::moe_finalize.out", _on_one_device(_nothing))
    torch.library.register_fake("stoker::offload_experts", _on_one_device(_offload))
