"""The op that runs cold experts on the CPU, and its engines."""

import os

import expert_checkpoint
import pytest
import stoker
import torch

EXPERT_BYTES = 100_000  # of a slot: 55,296 bytes and the slack of six extents


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoint")
    return folder, expert_checkpoint.write(folder)


def make_batch(tokens, dtype=torch.bfloat16, top_k=3, seed=0):
    random = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, 256, generator=random).to(dtype)
    ids = torch.rand(tokens, 8, generator=random).argsort(-1)[:, :top_k].to(torch.int32).contiguous()
    return hidden, ids, torch.rand(tokens, top_k, generator=random)


def run(engine, batch, layer=2, factor=2.5):
    return torch.ops.stoker.offload_experts(*batch, factor, layer, engine.handle)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("tokens", [0, 1, 5, 64])
def test_agrees_with_float64(checkpoint, dtype, tokens):
    folder, weights = checkpoint
    with stoker.OffloadEngine(folder, cache_bytes=8 * EXPERT_BYTES) as engine:
        batch = make_batch(tokens, dtype)
        partial = run(engine, batch)
    assert partial.dtype == torch.float32 and partial.shape == batch[0].shape
    wanted = expert_checkpoint.expected(weights, 2, *batch, 2.5)
    # Int8 activations twice; see offload/cpu/README.md.
    assert (partial.double() - wanted).norm() <= 0.02 * wanted.norm()


def test_the_same_bits_for_every_cache_and_thread_count(checkpoint):
    folder, _ = checkpoint
    results = []
    for slots, threads in ((4, 1), (8, 2), (20, 3)):
        with stoker.OffloadEngine(folder, cache_bytes=slots * EXPERT_BYTES, compute_threads=threads) as engine:
            results.append([run(engine, make_batch(7, seed=seed), layer=2 * (seed % 2)) for seed in range(6)])
            stats = engine.stats()
            assert stats["misses"] > 0 and stats["hits"] > 0 and (stats["evictions"] > 0) == (slots < 20)
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other))


def test_4096_tokens_give_the_bits_of_single_ones(checkpoint):
    folder, _ = checkpoint
    with stoker.OffloadEngine(folder, cache_bytes=20 * EXPERT_BYTES) as engine:
        hidden, ids, weights = make_batch(4096)
        together = run(engine, (hidden, ids, weights))
        for token in (0, 1, 2047, 4095):
            rows = slice(token, token + 1)
            alone = run(engine, (hidden[rows].contiguous(), ids[rows].contiguous(), weights[rows].contiguous()))
            assert torch.equal(alone[0], together[token])
        with pytest.raises(RuntimeError, match="4097 tokens; at most 4096"):
            run(engine, make_batch(4097))


def test_ranks_add_up_and_ids_of_either_width_mean_the_same(checkpoint):
    folder, _ = checkpoint
    hidden, ids, weights = make_batch(4)
    with stoker.OffloadEngine(folder, cache_bytes=8 * EXPERT_BYTES) as engine:
        whole = run(engine, (hidden, ids, weights))
        assert torch.equal(whole, run(engine, (hidden, ids.long(), weights)))
    parts = []
    for rank in range(2):
        with stoker.OffloadEngine(folder, cache_bytes=8 * EXPERT_BYTES, rank=rank, world_size=2) as engine:
            parts.append(run(engine, (hidden, ids, weights)))
    torch.testing.assert_close(parts[0] + parts[1], whole)
    assert parts[0].any() and parts[1].any()


def test_ids_that_are_no_experts_are_skipped_and_counted(checkpoint):
    folder, _ = checkpoint
    hidden, _, weights = make_batch(2)
    ids = torch.tensor([[-1, 8, 2**40], [3, -1, 3]])
    with stoker.OffloadEngine(folder, cache_bytes=8 * EXPERT_BYTES) as engine:
        partial = run(engine, (hidden, ids, weights))
        assert engine.stats()["skipped_routes"] == 4
    assert not partial[0].any() and partial[1].any()


def test_the_recorded_routing_is_saved(checkpoint, tmp_path):
    folder, _ = checkpoint
    hidden, ids, weights = make_batch(2)
    with stoker.OffloadEngine(folder, cache_bytes=8 * EXPERT_BYTES, record_groups=100) as engine:
        run(engine, (hidden, ids, weights))
        engine.save_trace(tmp_path / "trace.csv")
        with pytest.raises(stoker.StokerError, match="nowhere"):
            engine.save_trace(tmp_path / "nowhere" / "trace.csv")
    lines = [line for line in (tmp_path / "trace.csv").read_text().splitlines() if line[0].isdigit()]
    assert [int(line.split(",")[5]) for line in lines] == ids.flatten().tolist()
    assert all(line.split(",")[3] == "1" for line in lines), "the second layer of the checkpoint"


def test_opcheck_and_compile(checkpoint):
    folder, _ = checkpoint
    with stoker.OffloadEngine(folder, cache_bytes=8 * EXPERT_BYTES) as engine:
        arguments = (*make_batch(3), 1.0, 0, engine.handle)
        torch.library.opcheck(torch.ops.stoker.offload_experts.default, arguments)

        def layer(hidden, ids, weights):
            return torch.ops.stoker.offload_experts(hidden * 2, ids, weights, 1.0, 0, engine.handle) + 1

        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        assert torch.equal(layer(*make_batch(3)), compiled(*make_batch(3)))


def test_the_partial_is_the_cold_addend_of_the_fused_op(checkpoint):
    folder, _ = checkpoint
    random = torch.Generator().manual_seed(3)
    batch = make_batch(4)
    with stoker.OffloadEngine(folder, cache_bytes=8 * EXPERT_BYTES) as engine, \
            stoker.Communicator.from_process_group(device="cpu", max_tokens=8, hidden_max=256, name="cold",
                                                   timeout=5) as communicator:
        cold = run(engine, batch)
        rows = torch.randn(8, 256, generator=random).bfloat16()
        indices = torch.full((4, 2), -1, dtype=torch.int32)
        indices[:, 0] = torch.arange(4, dtype=torch.int32)
        gamma = torch.ones(256).bfloat16()
        residual, _ = torch.ops.stoker.moe_finalize_allreduce_rmsnorm(
            rows, indices, None, gamma, communicator.handle, cold=cold, routed_scaling_factor=3.0)
    assert torch.equal(residual, (rows[:4].float() * 3.0 + cold).bfloat16())


BAD = {
    "double": (lambda b: (b[0].double(), b[1], b[2]), "hidden is float64"),
    "strided": (lambda b: (b[0].repeat(1, 2)[:, ::2], b[1], b[2]), "hidden is not contiguous"),
    "columns": (lambda b: (b[0][:, :128].contiguous(), b[1], b[2]), "hidden has 128 columns"),
    "ids short": (lambda b: (b[0], b[1].short(), b[2]), "topk_ids is int16"),
    "ids shape": (lambda b: (b[0], b[1][:1].contiguous(), b[2]), r"topk_ids has the shape \[1, 3\]"),
    "weights shape": (lambda b: (b[0], b[1], b[2][:, :2].contiguous()), r"topk_weights has the shape \[2, 2\]"),
    "weights dtype": (lambda b: (b[0], b[1], b[2].half()), "topk_weights is float16"),
    "no routes": (lambda b: (b[0], b[1][:, :0].contiguous(), b[2][:, :0].contiguous()), "top_k is 0"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named(checkpoint, case):
    folder, _ = checkpoint
    spoil, message = BAD[case]
    with stoker.OffloadEngine(folder, cache_bytes=8 * EXPERT_BYTES) as engine:
        with pytest.raises(RuntimeError, match=message):
            run(engine, spoil(make_batch(2)))
        run(engine, make_batch(2))


def test_layers_handles_and_options_that_cannot_be_are_named(checkpoint, tmp_path):
    folder, _ = checkpoint
    engine = stoker.OffloadEngine(folder, cache_bytes=8 * EXPERT_BYTES)
    with pytest.raises(RuntimeError, match=r"layer 1 has no experts in the checkpoint; its layers are in \[0, 2\]"):
        run(engine, make_batch(1), layer=1)
    engine.close()
    engine.close()
    with pytest.raises(RuntimeError, match="not open in this process"):
        run(engine, make_batch(1))
    with pytest.raises(stoker.StokerError, match="not open in this process"):
        engine.stats()
    for options, message in [(dict(cache_bytes=1000), "cache_bytes = 1000"), (dict(cache_bytes=-1), "negative"),
                             (dict(cache_bytes=1 << 60), "this process may use"),
                             (dict(cache_bytes=1 << 20, rank=2, world_size=2), "rank = 2"),
                             (dict(cache_bytes=1 << 20, compute_threads=1000), "compute_threads = 1000")]:
        with pytest.raises(stoker.StokerError, match=message):
            stoker.OffloadEngine(folder, **options)
    with pytest.raises(stoker.StokerError, match="config.json"):
        stoker.OffloadEngine(tmp_path, cache_bytes=1 << 20)


def test_flushed_denormals_are_refused(checkpoint):
    folder, _ = checkpoint
    with stoker.OffloadEngine(folder, cache_bytes=8 * EXPERT_BYTES) as engine:
        if not torch.set_flush_denormal(True):
            pytest.skip("this CPU cannot flush denormals")
        try:
            with pytest.raises(RuntimeError, match="flushes denormals"):
                run(engine, make_batch(1))
        finally:
            torch.set_flush_denormal(False)


def test_a_forked_child_gets_an_error(checkpoint):
    folder, _ = checkpoint
    with stoker.OffloadEngine(folder, cache_bytes=8 * EXPERT_BYTES) as engine:
        run(engine, make_batch(1))
        child = os.fork()
        if child == 0:
            try:
                run(engine, make_batch(1))
            except RuntimeError as error:
                os._exit(0 if "belongs to the parent" in str(error) else 2)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        run(engine, make_batch(1))


def test_a_truncated_file_fails_the_call_with_its_place(tmp_path):
    expert_checkpoint.write(tmp_path)
    with stoker.OffloadEngine(tmp_path, cache_bytes=20 * EXPERT_BYTES) as engine:
        run(engine, make_batch(1), layer=0)
        path = tmp_path / "layer-2.safetensors"
        whole = path.read_bytes()
        os.truncate(path, 100_000)
        with pytest.raises(RuntimeError, match=r"layer 2, expert \d, .* at offset \d+: .*layer-2.safetensors"):
            run(engine, make_batch(64))
        assert engine.stats()["failed_calls"] == 1
        run(engine, make_batch(1), layer=0)
        assert len(whole) > 100_000
