"""The numeric contract of the fused ops in plain torch, step by step: the unfused path of STOKER_VLLM=reference.

Gives the bits that `stoker::moe_finalize_allreduce_rmsnorm` and `stoker::allreduce_rmsnorm` give (same roundings, same
order of additions), from separate operations and one gather over the group. For tests and for finding out whether a
difference comes from the fusion; it is slow. Works on tensors of any device; bit equality is tested on the CPU.
"""

import torch

_VECTOR_BYTES = 16
_WARP = 32


def fma(a, b, c):
    """a*b + c of float32 (or narrower) tensors, rounded once to float32."""
    product = a.double() * b.double()  # exact: 24 + 24 bits fit in 53
    other = c.double()
    total = product + other
    # The sum in float64 is rounded to odd, so that the rounding to float32 is the only one that counts (Boldo and
    # Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd", 2008).
    virtual = total - product
    error = (product - (total - virtual)) + (other - virtual)
    bits = total.view(torch.int64)
    inexact = (error != 0) & torch.isfinite(total) & (bits & 1 == 0)
    away = (error > 0) == (total > 0)  # the exact value has the larger magnitude
    bits = torch.where(inexact, torch.where(away, bits + 1, bits - 1), bits)
    return bits.view(torch.float64).float()


def finalize(rows, indices, weights=None, shared=None, routed_scaling_factor=1.0):
    """This rank's partial, [tokens, hidden] in the dtype of rows.

    rows [any, hidden]; indices [tokens, top_k] int32, -1 = not on this rank; weights [tokens, top_k] or None (1).
    """
    tokens, top_k = indices.shape
    total = torch.zeros(tokens, rows.shape[1], dtype=torch.float32, device=rows.device)
    for k in range(top_k):
        index = indices[:, k].long()
        row = rows[index.clamp(min=0)].float() if len(rows) else torch.zeros_like(total)
        weight = torch.ones_like(total[:, :1]) if weights is None else weights[:, k: k + 1].float()
        total = torch.where((index >= 0).unsqueeze(1), fma(weight.expand_as(row), row, total), total)
    if routed_scaling_factor != 1.0:
        total = total * torch.tensor(routed_scaling_factor, dtype=torch.float32)
    if shared is not None:
        total = total + shared.float()
    return _round(total, rows.dtype)


def sum_of_ranks(partials):
    """The sum of the ranks' partials in rank order, one rounding at the end."""
    total = partials[0].float()
    for partial in partials[1:]:
        total = total + partial.float()
    return _round(total, partials[0].dtype)


def add_rmsnorm(total, gamma, residual=None, eps=1e-6, weight_bias=0.0):
    """(residual_out, norm_out), both [tokens, hidden] in the dtype of total."""
    dtype = total.dtype
    if residual is not None:
        total = _round(total.float() + residual.float(), dtype)
    x = total.float()
    hidden = x.shape[1]
    squares = _tree_sum_of_squares(x, _VECTOR_BYTES // total.element_size())
    inverse = (torch.ones((), dtype=torch.float32) / torch.tensor(float(hidden), dtype=torch.float32)).to(x.device)
    mean = fma(squares, inverse.expand_as(squares), torch.full_like(squares, eps))
    rstd = 1.0 / torch.sqrt(mean)
    scale = weight_bias + gamma.float()
    return total, _round((x * rstd.unsqueeze(1)) * scale, dtype)


def _tree_sum_of_squares(x, vector):
    """[tokens] float32: vectors of 16 bytes, canonical warps of 32 vectors, halving trees."""
    tokens, hidden = x.shape
    lanes = x.reshape(tokens, hidden // vector, vector)
    sums = torch.zeros_like(lanes[:, :, 0])
    for i in range(vector):
        sums = lanes[:, :, i] * lanes[:, :, i] + sums  # the square of a 16-bit value is exact in float32
    warps = -(-sums.shape[1] // _WARP)
    sums = torch.nn.functional.pad(sums, (0, warps * _WARP - sums.shape[1])).reshape(tokens, warps, _WARP)
    partials = _halve(sums)
    power = 1 << (warps - 1).bit_length()
    return _halve(torch.nn.functional.pad(partials, (0, power - warps)))


def _halve(values):
    while values.shape[-1] > 1:
        half = values.shape[-1] // 2
        values = values[..., :half] + values[..., half:]
    return values[..., 0]


def _round(values, dtype):
    """To dtype, half to even; a NaN is stored as 0x7FFF."""
    rounded = values.to(dtype)
    canonical = torch.full((), 0x7FFF, dtype=torch.int16, device=values.device).view(dtype)
    return torch.where(torch.isnan(values), canonical, rounded)
