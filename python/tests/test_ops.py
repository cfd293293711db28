"""The ops in one process: a group of one rank on the CPU."""

import os
import re

import pytest
import torch

import reference
import stoker
from stoker import _library


@pytest.fixture(scope="module")
def communicator():
    with stoker.Communicator.from_process_group(device="cpu", max_tokens=32, hidden_max=512, name="one",
                                                timeout=5) as communicator:
        yield communicator


def call(communicator, inputs, **options):
    arguments = dict(shared=inputs["shared"], residual=inputs["residual"], eps=1e-5, routed_scaling_factor=2.5)
    arguments.update(options)
    return torch.ops.stoker.moe_finalize_allreduce_rmsnorm(inputs["rows"], inputs["indices"], inputs["weights"],
                                                           inputs["gamma"], communicator.handle, **arguments)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tokens", [0, 1, 7, 32])
def test_finalize_agrees_with_torch(communicator, dtype, tokens):
    inputs = reference.make_inputs(tokens, 264, 8, rank=0, dtype=dtype, seed=tokens)
    residual, norm = call(communicator, inputs)
    wanted_residual, wanted_norm = reference.expected([inputs], 2.5, 1e-5)
    assert reference.agree(residual, wanted_residual)
    assert reference.agree(norm, wanted_norm)


def test_out_variant_and_residual_in_place_give_the_same_bits(communicator):
    inputs = reference.make_inputs(5, 512, 6, rank=0)
    residual, norm = call(communicator, inputs)
    in_place = inputs["residual"].clone()
    norm_out = torch.full_like(norm, float("nan"))
    torch.ops.stoker.moe_finalize_allreduce_rmsnorm.out(
        inputs["rows"], inputs["indices"], inputs["weights"], inputs["gamma"], communicator.handle,
        shared=inputs["shared"], residual=in_place, eps=1e-5, routed_scaling_factor=2.5, residual_out=in_place,
        norm_out=norm_out)
    assert torch.equal(in_place, residual) and torch.equal(norm_out, norm)


def test_plain_allreduce_agrees_with_torch(communicator):
    inputs = reference.make_inputs(9, 264, 4, rank=0)
    x = inputs["shared"]
    residual, norm = torch.ops.stoker.allreduce_rmsnorm(x, inputs["gamma"], communicator.handle,
                                                        residual=inputs["residual"], eps=1e-5)
    assert torch.equal(residual, x + inputs["residual"])
    wanted = residual.double() / torch.sqrt((residual.double() ** 2).mean(-1, keepdim=True) + 1e-5)
    assert reference.agree(norm, (wanted * inputs["gamma"].double()).to(norm.dtype))


def reduction_inputs(tokens, hidden, experts):
    inputs = reference.make_inputs(tokens, hidden, 4, rank=0, seed=experts)
    generator = torch.Generator().manual_seed(experts)
    inputs["active"] = (0.5 * torch.randn(experts, tokens, hidden, generator=generator)).bfloat16()
    inputs["scales"] = torch.rand(experts, tokens, generator=generator)
    return inputs


@pytest.mark.parametrize("experts", [0, 1, 8, 40])
def test_reduction_is_the_finalize_of_its_routes(communicator, experts):
    """The same sum, said with an index for every expert and token."""
    inputs = reduction_inputs(7, 264, experts)
    options = dict(shared=inputs["shared"], residual=inputs["residual"], eps=1e-5)
    residual, norm = torch.ops.stoker.moe_reduce_allreduce_rmsnorm(inputs["active"], inputs["scales"], inputs["gamma"],
                                                                   communicator.handle, **options)
    if 0 < experts <= 32:
        indices = torch.arange(experts * 7, dtype=torch.int32).view(experts, 7).t().contiguous()
        wanted = torch.ops.stoker.moe_finalize_allreduce_rmsnorm(
            inputs["active"].view(-1, 264), indices, inputs["scales"].t().contiguous(), inputs["gamma"],
            communicator.handle, **options)
        assert torch.equal(residual, wanted[0]) and torch.equal(norm, wanted[1])
    partial = (inputs["active"].double() * inputs["scales"].double().unsqueeze(-1)).sum(0) + inputs["shared"].double()
    assert reference.agree(residual, (partial.bfloat16().double() + inputs["residual"].double()).bfloat16())
    outs = dict(residual_out=torch.full_like(norm, float("nan")), norm_out=torch.full_like(norm, float("nan")))
    torch.ops.stoker.moe_reduce_allreduce_rmsnorm.out(inputs["active"], inputs["scales"], inputs["gamma"],
                                                      communicator.handle, **options, **outs)
    assert torch.equal(outs["residual_out"], residual) and torch.equal(outs["norm_out"], norm)


@pytest.mark.parametrize("name,spoil,message", [
    ("active", lambda x: x.flatten(0, 1), r"rows has the shape \[24, 64\]; \[experts, tokens, hidden\]"),
    ("active", lambda x: x.float(), "rows is float32; bfloat16"),
    ("active", lambda x: x.transpose(0, 1).contiguous().transpose(0, 1), "rows is not contiguous"),
    ("active", lambda x: x.repeat(200, 1, 1)[:1025], r"scales has the shape \[8, 3\]; \[1025, 3\]"),
    ("scales", lambda x: x.bfloat16(), "scales is bfloat16; float32"),
    ("scales", lambda x: x.t().contiguous(), r"scales has the shape \[3, 8\]; \[8, 3\]"),
    ("shared", lambda x: x[:2], r"shared has the shape \[2, 64\]; \[3, 64\]")])
def test_a_bad_reduction_is_refused_by_name(communicator, name, spoil, message):
    inputs = reduction_inputs(3, 64, 8)
    inputs[name] = spoil(inputs[name])
    with pytest.raises(RuntimeError, match=message):
        torch.ops.stoker.moe_reduce_allreduce_rmsnorm(inputs["active"], inputs["scales"], inputs["gamma"],
                                                      communicator.handle, shared=inputs["shared"])


@pytest.mark.parametrize("tokens", [0, 1, 7])
def test_finalize_alone_is_what_a_rank_contributes(communicator, tokens):
    inputs = reference.make_inputs(tokens, 264, 8, rank=0, seed=tokens)
    arguments = (inputs["rows"], inputs["indices"], inputs["weights"])
    options = dict(shared=inputs["shared"], routed_scaling_factor=2.5)
    out = torch.ops.stoker.moe_finalize(*arguments, **options)
    assert reference.agree(out, reference.partial(inputs, 2.5))
    # One rank without a residual: the sum is its row.
    assert torch.equal(out, call(communicator, inputs, residual=None)[0])
    given = torch.full_like(out, float("nan"))
    torch.ops.stoker.moe_finalize.out(*arguments, **options, out=given)
    assert torch.equal(given, out)


def test_finalize_alone_names_bad_inputs():
    inputs = reference.make_inputs(3, 64, 4, rank=0)
    rows, indices, weights = inputs["rows"], inputs["indices"], inputs["weights"]
    with pytest.raises(RuntimeError, match=r"out has the shape \[2, 64\]; \[3, 64\]"):
        torch.ops.stoker.moe_finalize.out(rows, indices, weights, out=rows.new_empty(2, 64))
    with pytest.raises(RuntimeError, match="output overlaps rows"):
        torch.ops.stoker.moe_finalize.out(rows, indices, weights, out=rows[:3])
    with pytest.raises(RuntimeError, match="expanded index 10000 of token 0 is not below the 32 permuted rows"):
        torch.ops.stoker.moe_finalize(rows, torch.full_like(indices, 10_000), weights)


def test_all_reduce_of_one_rank_is_its_input_beside_it_and_in_its_place(communicator):
    x = reference.make_inputs(9, 264, 4, rank=0)["shared"]
    assert torch.equal(torch.ops.stoker.all_reduce(x, communicator.handle), x)
    in_place = x.clone()
    torch.ops.stoker.all_reduce.out(in_place, communicator.handle, out=in_place)
    assert torch.equal(in_place, x)
    with pytest.raises(RuntimeError, match="output overlaps input"):
        buffer = torch.zeros(10, 264, dtype=torch.bfloat16)
        torch.ops.stoker.all_reduce.out(buffer[:9], communicator.handle, out=buffer[1:])


def test_opcheck(communicator):
    inputs = reference.make_inputs(3, 64, 4, rank=0)
    torch.library.opcheck(torch.ops.stoker.all_reduce.default, (inputs["shared"], communicator.handle))
    torch.library.opcheck(torch.ops.stoker.all_reduce.out, (inputs["shared"], communicator.handle),
                          dict(out=torch.empty_like(inputs["shared"])))
    positional = (inputs["rows"], inputs["indices"], inputs["weights"], inputs["gamma"], communicator.handle)
    keywords = dict(shared=inputs["shared"], residual=inputs["residual"])
    torch.library.opcheck(torch.ops.stoker.moe_finalize_allreduce_rmsnorm.default, positional, keywords)
    torch.library.opcheck(torch.ops.stoker.allreduce_rmsnorm.default,
                          (inputs["shared"], inputs["gamma"], communicator.handle), dict(residual=inputs["residual"]))
    outs = dict(residual_out=torch.empty_like(inputs["shared"]), norm_out=torch.empty_like(inputs["shared"]))
    torch.library.opcheck(torch.ops.stoker.moe_finalize_allreduce_rmsnorm.out, positional, {**keywords, **outs})
    torch.library.opcheck(torch.ops.stoker.allreduce_rmsnorm.out,
                          (inputs["shared"], inputs["gamma"], communicator.handle), outs)
    reduction = (torch.randn(5, 3, 64).bfloat16(), torch.rand(5, 3), inputs["gamma"], communicator.handle)
    torch.library.opcheck(torch.ops.stoker.moe_reduce_allreduce_rmsnorm.default, reduction, keywords)
    torch.library.opcheck(torch.ops.stoker.moe_reduce_allreduce_rmsnorm.out, reduction, {**keywords, **outs})
    torch.library.opcheck(torch.ops.stoker.moe_finalize.default, positional[:3], dict(shared=inputs["shared"]))
    torch.library.opcheck(torch.ops.stoker.moe_finalize.out, positional[:3], dict(out=outs["norm_out"]))


def test_compile_gives_the_same_bits(communicator):
    inputs = reference.make_inputs(4, 64, 4, rank=0)

    def layer(rows, indices, weights, gamma, residual):
        residual, norm = torch.ops.stoker.moe_finalize_allreduce_rmsnorm(rows * 2, indices, weights, gamma,
                                                                         communicator.handle, residual=residual)
        return residual, norm + 1

    arguments = [inputs[name] for name in ("rows", "indices", "weights", "gamma", "residual")]
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for eager, traced in zip(layer(*arguments), compiled(*arguments)):
        assert torch.equal(eager, traced)


BAD = {
    "rows float32": (lambda i: i.update(rows=i["rows"].float()), "rows is float32"),
    "indices int64": (lambda i: i.update(indices=i["indices"].long()), "indices is int64; int32"),
    "indices flat": (lambda i: i.update(indices=i["indices"].flatten()), r"indices has the shape \[12\]"),
    "weights shape": (lambda i: i.update(weights=i["weights"][:, :2].contiguous()), r"weights has the shape \[3, 2\]"),
    "weights dtype": (lambda i: i.update(weights=i["weights"].double()), "weights is float64"),
    "gamma shape": (lambda i: i.update(gamma=i["gamma"][:32].contiguous()), r"gamma has the shape \[32\]; \[64\]"),
    "rows strided": (lambda i: i.update(rows=i["rows"].t().contiguous().t()), "rows is not contiguous"),
    "shared shape": (lambda i: i.update(shared=i["shared"][:2].contiguous()), r"shared has the shape \[2, 64\]"),
    "residual dtype": (lambda i: i.update(residual=i["residual"].half()), "residual is float16; bfloat16"),
    "gamma dtype": (lambda i: i.update(gamma=i["gamma"].double()), "gamma is float64; bfloat16"),
    "rows flat": (lambda i: i.update(rows=i["rows"].flatten()), r"rows has the shape \[2048\]; \[rows, hidden\]"),
    "rows misaligned": (lambda i: i.update(rows=torch.cat([i["rows"].flatten()] * 2)[4:2052].view(32, 64)),
                        "rows starts at .*; rows must be 16-byte aligned"),
    "top_k 33": (lambda i: i.update(indices=torch.full((3, 33), -1, dtype=torch.int32), weights=torch.ones(3, 33)),
                 "top_k is 33; it must be 1 to 32"),
    "index too large": (lambda i: i["indices"].fill_(10_000), "expanded index 10000"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named_and_the_next_call_works(case):
    with stoker.Communicator.from_process_group(device="cpu", max_tokens=8, hidden_max=64, name="bad",
                                                timeout=5) as communicator:
        inputs = reference.make_inputs(3, 64, 4, rank=0)
        spoil, message = BAD[case]
        spoil(inputs)
        with pytest.raises(RuntimeError, match=message):
            call(communicator, inputs)
        if case == "index too large":
            assert "expanded index" in communicator.health()
            communicator.reset()
        call(communicator, reference.make_inputs(3, 64, 4, rank=0))


@pytest.mark.parametrize("options,message", [
    (dict(site=-1), "site is -1; it must be 0 to 2"), (dict(site=2**32), "site is 4294967296; it must be 0 to 2"),
    (dict(eps=-1.0), "eps is -1; it must be finite and >= 0"),
    (dict(weight_bias=float("nan")), "weight_bias is nan; it must be finite"),
    (dict(routed_scaling_factor=float("inf")), "routed_scaling_factor is inf; it must be finite"),
    (dict(cold=torch.zeros(2, 64)), r"cold has the shape \[2, 64\]; \[3, 64\]"),
    (dict(cold=torch.zeros(3, 64).half()), "cold is float16; bfloat16 .* or float32 is expected")])
def test_a_bad_option_is_named(communicator, options, message):
    inputs = reference.make_inputs(3, 64, 4, rank=0)
    with pytest.raises(RuntimeError, match=message):
        call(communicator, inputs, **options)
    call(communicator, inputs)


BAD_OUTPUTS = {
    "norm_out shape": (lambda i, o: o.update(norm_out=o["norm_out"][:2]),
                       r"norm_out has the shape \[2, 64\]; \[3, 64\]"),
    "norm_out dtype": (lambda i, o: o.update(norm_out=o["norm_out"].half()), "norm_out is float16; bfloat16"),
    "norm_out strided": (lambda i, o: o.update(norm_out=o["norm_out"].t().contiguous().t()), "norm_out is not contig"),
    "residual_out shape": (lambda i, o: o.update(residual_out=o["residual_out"].flatten()),
                           r"residual_out has the shape \[192\]; \[3, 64\]"),
    "one buffer for both": (lambda i, o: o.update(norm_out=o["residual_out"]), "norm_out overlaps residual_out"),
    "the residual": (lambda i, o: o.update(norm_out=i["residual"]), "norm_out overlaps residual_in"),
    "the rows": (lambda i, o: o.update(norm_out=i["rows"][:3]), "norm_out overlaps rows"),
    "the shared row": (lambda i, o: o.update(residual_out=i["shared"]), "residual_out overlaps shared"),
}


@pytest.mark.parametrize("case", BAD_OUTPUTS)
def test_a_bad_output_is_named_and_nothing_is_written(communicator, case):
    inputs = reference.make_inputs(3, 64, 4, rank=0)
    outputs = {name: torch.full_like(inputs["residual"], 7) for name in ("residual_out", "norm_out")}
    spoil, message = BAD_OUTPUTS[case]
    spoil(inputs, outputs)
    everything = {**inputs, **outputs}
    before = {name: tensor.clone() for name, tensor in everything.items()}
    with pytest.raises(RuntimeError, match=message):
        torch.ops.stoker.moe_finalize_allreduce_rmsnorm.out(
            inputs["rows"], inputs["indices"], inputs["weights"], inputs["gamma"], communicator.handle,
            shared=inputs["shared"], residual=inputs["residual"], **outputs)
    assert all(torch.equal(tensor, before[name]) for name, tensor in everything.items())
    call(communicator, reference.make_inputs(3, 64, 4, rank=0))


@pytest.mark.parametrize("tokens,hidden,message", [(9, 64, "9 tokens; the communicator was created for 0 to 8"),
                                                   (3, 72, "hidden size is 72"), (3, 60, "multiple of 8")])
def test_a_launch_beyond_the_plan_is_refused(tokens, hidden, message):
    with stoker.Communicator.from_process_group(device="cpu", max_tokens=8, hidden_max=64, name="plan",
                                                timeout=5) as communicator:
        with pytest.raises(RuntimeError, match=message):
            call(communicator, reference.make_inputs(tokens, hidden, 4, rank=0))


def test_options_out_of_range_are_refused():
    for options, message in [(dict(hidden_max=12), "hidden size 12: a multiple of 8 from 8 to 16384 .* round it up"),
                             (dict(hidden_max=16392), "16392: a multiple of 8 from 8 to 16384"),
                             (dict(max_tokens=0), "capacity 0: 1 to 65536 tokens .* larger calls go through NCCL"),
                             (dict(max_tokens=65537), "capacity 65537: 1 to 65536"),
                             (dict(max_tokens=2**32 + 8), "max_tokens=4294967304: a whole number below 2.31"),
                             (dict(max_tokens=8.0), "max_tokens=8.0: a whole number"),
                             (dict(sm_budget=True), "sm_budget=True: a whole number"),
                             (dict(nccl_max_tokens=0.5), "nccl_max_tokens=0.5: a whole number"),
                             (dict(name="a b"), 'group name "a b" must have 1 to 40 .* choose another'),
                             (dict(timeout=1e6), r"timeout=1000000.0: 0.001 to 86400 seconds \(24 h\)"),
                             (dict(timeout=0), "timeout=0: 0.001 to"), (dict(timeout=-1.0), "timeout=-1.0: 0.001 to"),
                             (dict(timeout=float("nan")), "timeout=nan: 0.001 to"),
                             (dict(setup_timeout=float("inf")), "setup_timeout=inf: 0.001 to"),
                             (dict(setup_timeout=0), "setup_timeout=0: 0.001 to")]:
        arguments = dict(device="cpu", max_tokens=8, hidden_max=64, name="range")
        with pytest.raises(stoker.StokerError, match=message):
            stoker.Communicator.from_process_group(**{**arguments, **options})


@pytest.mark.parametrize("name", ["rows", "indices", "weights", "gamma", "shared", "residual"])
def test_a_tensor_on_the_meta_device_among_others_is_refused(communicator, name):
    inputs = reference.make_inputs(3, 64, 4, rank=0)
    inputs[name] = inputs[name].to("meta")
    with pytest.raises(RuntimeError, match="the tensors are on cpu, meta; all tensors of a call must be on one device"):
        call(communicator, inputs)


def test_meta_tensors_alone_give_shapes(communicator):
    inputs = {name: tensor.to("meta") for name, tensor in reference.make_inputs(3, 64, 4, rank=0).items()}
    residual, norm = call(communicator, inputs)
    assert residual.is_meta and norm.is_meta and residual.shape == norm.shape == (3, 64)


def test_a_child_of_fork_is_refused_and_the_parent_goes_on():
    with stoker.Communicator.from_process_group(device="cpu", max_tokens=8, hidden_max=64, name="forked",
                                                timeout=5) as communicator:
        inputs = reference.make_inputs(3, 64, 4, rank=0)
        child = os.fork()
        if child == 0:
            said = [communicator.health()]
            for use in (communicator.close, communicator.abort, communicator.reset, lambda: call(communicator, inputs)):
                try:
                    use()
                    said.append("nothing")
                except RuntimeError as error:
                    said.append(str(error))
            os._exit(0 if all("was forked from it and cannot use it" in str(words) for words in said) else 1)
        assert os.waitpid(child, 0)[1] == 0
        call(communicator, inputs)
        assert communicator.health() is None


def test_a_missing_library_is_named_with_the_places_and_the_remedy(monkeypatch, tmp_path):
    monkeypatch.setattr(_library, "_FOLDERS", (tmp_path / "a", tmp_path / "b"))
    with pytest.raises(ImportError, match=r"libstoker_cpu.so is missing \(looked in .*/a, .*/b\); build //ops"):
        _library._find("libstoker_cpu.so")


def test_a_timeout_out_of_range_is_refused(communicator):
    for seconds in (0, -1.0, 1e6, float("nan"), True, "1"):
        with pytest.raises(stoker.StokerError, match=r"0.001 to 86400 seconds \(24 h\) are supported"):
            communicator.set_timeout(seconds)
        for call_ in (communicator.reset, communicator.close):
            with pytest.raises(stoker.StokerError, match="0.001 to 86400 seconds"):
                call_(timeout=seconds)


def test_the_plan_is_logged_with_the_workspaces_bytes(caplog):
    with caplog.at_level("INFO", logger="stoker"), stoker.Communicator.from_process_group(
            device="cpu", max_tokens=8, hidden_max=64, name="logged") as communicator:
        assert repr(communicator) in caplog.text
        bytes_ = int(re.search(r"group logged: rank 0 of 1, capacity 8 tokens.* workspace (\d+) bytes", caplog.text)[1])
        assert bytes_ >= 2 * 8 * 64 * 2  # two halves of one source


def test_a_closed_handle_is_an_error_and_closing_again_is_not():
    communicator = stoker.Communicator.from_process_group(device="cpu", max_tokens=8, hidden_max=64, name="closed")
    communicator.close()
    communicator.close()
    with pytest.raises(RuntimeError, match="not open in this process"):
        call(communicator, reference.make_inputs(3, 64, 4, rank=0))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is there")
def test_a_missing_gpu_is_named():
    with pytest.raises(stoker.StokerError, match="no CUDA device|without CUDA"):
        stoker.Communicator.from_process_group(device="cuda")
