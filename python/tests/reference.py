"""The ops in plain torch FP32, rounded where the contract rounds, and a maker of inputs."""

import torch


def make_inputs(tokens, hidden, top_k, rank, dtype=torch.bfloat16, seed=0):
    """Inputs of one rank; residual and gamma are equal on all ranks."""
    own = torch.Generator().manual_seed(1000 * seed + rank + 1)
    common = torch.Generator().manual_seed(1000 * seed)
    count = 2 * tokens * top_k + 8
    indices = torch.randperm(count, generator=own)[: tokens * top_k].reshape(tokens, top_k).to(torch.int32)
    indices[torch.rand(tokens, top_k, generator=own) < 0.25] = -1
    return {
        "rows": (0.5 * torch.randn(count, hidden, generator=own)).to(dtype),
        "indices": indices,
        "weights": torch.softmax(torch.randn(tokens, top_k, generator=own), -1).to(dtype),
        "shared": (0.5 * torch.randn(tokens, hidden, generator=own)).to(dtype),
        "residual": (4 * torch.randn(tokens, hidden, generator=common)).to(dtype),
        "gamma": (1 + 0.1 * torch.randn(hidden, generator=common)).to(dtype),
    }


def partial(inputs, scaling):
    """This rank's rows in float64 (close enough to FP32 with one rounding to compare within one rounding)."""
    rows, indices = inputs["rows"].double(), inputs["indices"].long()
    weights = torch.where(indices >= 0, inputs["weights"].double(), 0.0)
    gathered = rows[indices.clamp(min=0)] * weights.unsqueeze(-1)
    return (gathered.sum(1) * scaling + inputs["shared"].double()).to(inputs["rows"].dtype)


def expected(all_inputs, scaling, eps):
    dtype = all_inputs[0]["rows"].dtype
    total = sum(partial(inputs, scaling).double() for inputs in all_inputs).to(dtype)
    residual = (total.double() + all_inputs[0]["residual"].double()).to(dtype)
    x = residual.double()
    rstd = 1 / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)
    return residual, (x * rstd * all_inputs[0]["gamma"].double()).to(dtype)


def agree(actual, wanted, fraction=0.02):
    """Within two units of the last place everywhere, and different at all in at most `fraction` of the elements:
    the reference above sums in another order than the contract."""
    if actual.numel() == 0:
        return actual.shape == wanted.shape
    spacing = torch.finfo(actual.dtype).eps
    close = torch.allclose(actual.double(), wanted.double(), rtol=2 * spacing, atol=0.04)
    return close and (actual != wanted).double().mean().item() <= fraction
