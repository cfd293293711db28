"""STOKER_VLLM=reference gives the bits of the fused ops."""

import fractions
import math
import random

import pytest
import torch

import stoker
from stoker.vllm import reference


@pytest.fixture(scope="module")
def communicator():
    with stoker.Communicator.from_process_group(device="cpu", max_tokens=16, hidden_max=4096, name="reference",
                                                timeout=5) as communicator:
        yield communicator


def inputs(tokens, hidden, top_k, dtype, weights_dtype, seed):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(*shape, generator=generator)

    indices = torch.randperm(2 * tokens * top_k, generator=generator)[: tokens * top_k].view(tokens, top_k).int()
    indices[torch.rand(tokens, top_k, generator=generator) < 0.2] = -1
    return dict(rows=normal(2 * tokens * top_k, hidden).to(dtype), indices=indices,
                weights=normal(tokens, top_k).to(weights_dtype), shared=normal(tokens, hidden).to(dtype),
                residual=(3 * normal(tokens, hidden)).to(dtype), gamma=(1 + normal(hidden) / 9).to(dtype))


def bits(tensor):
    return tensor.view(torch.int16)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("hidden", [8, 264, 1024, 4096])
@pytest.mark.parametrize("narrow", [True, False])
def test_finalize_gives_the_bits_of_the_op(communicator, dtype, hidden, narrow):
    given = inputs(7, hidden, 6, dtype, dtype if narrow else torch.float32, seed=hidden)
    residual, norm = torch.ops.stoker.moe_finalize_allreduce_rmsnorm(
        given["rows"], given["indices"], given["weights"], given["gamma"], communicator.handle,
        shared=given["shared"], residual=given["residual"], eps=1e-5, routed_scaling_factor=2.5)
    partial = reference.finalize(given["rows"], given["indices"], given["weights"], given["shared"], 2.5)
    wanted_residual, wanted_norm = reference.add_rmsnorm(reference.sum_of_ranks([partial]), given["gamma"],
                                                         given["residual"], 1e-5)
    assert torch.equal(bits(residual), bits(wanted_residual))
    assert torch.equal(bits(norm), bits(wanted_norm))


@pytest.mark.parametrize("residual", [True, False])
def test_plain_allreduce_gives_the_bits_of_the_op(communicator, residual):
    given = inputs(9, 520, 1, torch.bfloat16, torch.bfloat16, seed=3)
    given["shared"][2, 5] = float("nan")
    kept = given["residual"] if residual else None
    got = torch.ops.stoker.allreduce_rmsnorm(given["shared"], given["gamma"], communicator.handle, residual=kept,
                                             eps=1e-6)
    total = reference.sum_of_ranks([given["shared"]])
    for actual, wanted in zip(got, reference.add_rmsnorm(total, given["gamma"], kept, 1e-6)):
        assert torch.equal(bits(actual), bits(wanted))


def test_fma_rounds_once():
    """Against exact rationals, with values that a rounding to float64 in between would get wrong."""
    drawn = random.Random(1)
    a = torch.tensor([drawn.uniform(-2, 2) for _ in range(2000)] + [1 + 2**-12])
    b = torch.tensor([drawn.uniform(-2, 2) for _ in range(2000)] + [1 + 2**-12])
    c = torch.tensor([drawn.uniform(-2, 2) * 2.0 ** drawn.randint(-30, 30) for _ in range(2000)] + [2.0**-60])
    for x, y, z, got in zip(a.tolist(), b.tolist(), c.tolist(), reference.fma(a, b, c).tolist()):
        exact = fractions.Fraction(x) * fractions.Fraction(y) + fractions.Fraction(z)
        below = torch.tensor(got)
        neighbours = [torch.nextafter(below, torch.tensor(s * math.inf)).item() for s in (-1, 1)]
        distance = abs(fractions.Fraction(got) - exact)
        assert all(distance <= abs(fractions.Fraction(n) - exact) for n in neighbours), (x, y, z, got)
    # 1 + 2^-12 squared lies halfway between two float32 numbers but for the addend, which decides.
    assert reference.fma(a[-1:], b[-1:], c[-1:]).item() == 1 + 2**-11 + 2**-23
    assert reference.fma(a[-1:], b[-1:], -c[-1:]).item() == 1 + 2**-11
