"""Checkpoints as the real packages write them: compressed-tensors packs, huggingface_hub cuts into shards."""

import json
import os
import re
import subprocess

import pytest
import stoker
import torch
from compressed_tensors.compressors.pack_quantized.base import PackedQuantizationCompressor
from compressed_tensors.entrypoints.convert.converters.autoawq import AutoAWQConverter
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from huggingface_hub import save_torch_state_dict

HIDDEN, INTERMEDIATE, EXPERTS, LAYER = 256, 128, 4, 3
LLAMA_NAMES = ("gate_proj", "up_proj", "down_proj")


def quantise(weight, group, symmetric, scale_dtype):
    """The tensors of one matrix, packed by compressed-tensors, and what it unpacks them to."""
    args = QuantizationArgs(num_bits=4, type="int", symmetric=symmetric, strategy="group", group_size=group)
    scheme = QuantizationScheme(targets=["Linear"], weights=args)
    blocks = weight.unflatten(-1, (-1, group))
    low, high = blocks.amin(-1), blocks.amax(-1)
    scale = (blocks.abs().amax(-1) / 7.5 if symmetric else (high - low) / 15).to(scale_dtype)
    state = {"weight": weight, "weight_scale": scale}
    if not symmetric:
        state["weight_zero_point"] = (-8 - low / scale.float()).round().clamp(-8, 7).to(torch.int8)
    packed = PackedQuantizationCompressor.compress(state, scheme)
    unpacked = PackedQuantizationCompressor.decompress(dict(packed), scheme)["weight"]
    return packed, unpacked.double(), args


def write(folder, *, prefix="model.layers.3.mlp.experts", names=LLAMA_NAMES, stacked=False, fused=None, group=32,
          symmetric=True, scale_dtype=torch.bfloat16, shard_size="100GB"):
    """Writes one layer; returns the float64 weights [experts, rows, columns] of gate, up and down."""
    random = torch.Generator().manual_seed(group)
    gate, up = (torch.randn(EXPERTS, INTERMEDIATE, HIDDEN, generator=random) * 0.1 for _ in range(2))
    down = torch.randn(EXPERTS, HIDDEN, INTERMEDIATE, generator=random) * 0.1
    if fused:
        stack = torch.stack([gate, up], 2 if fused == "interleaved" else 1)
        matrices = {"gate_up_proj": stack.flatten(1, 2), "down_proj": down}
    else:
        matrices = dict(zip(names, (gate, up, down)))
    tensors, weights = {"model.embed_tokens.weight": torch.zeros(4, 4)}, {}
    for name, matrix in matrices.items():
        done = [quantise(matrix[e], group, symmetric, scale_dtype) for e in range(EXPERTS)]
        weights[name] = torch.stack([unpacked for _, unpacked, _ in done])
        for suffix in done[0][0]:
            parts = [packed[suffix] for packed, _, _ in done]
            if stacked:
                tensors[f"{prefix}.{name}.{suffix}"] = torch.stack(parts)
            else:
                tensors.update({f"{prefix}.{e}.{name}.{suffix}": part for e, part in enumerate(parts)})
    save_torch_state_dict(tensors, folder, max_shard_size=shard_size)
    config = {"quant_method": "compressed-tensors", "format": "pack-quantized",
              "config_groups": {"group_0": {"weights": done[0][2].model_dump(mode="json")}}}
    model = "gpt_oss" if fused == "interleaved" else "qwen3_moe"
    (folder / "config.json").write_text(json.dumps({"model_type": model, "quantization_config": config}))
    if fused:
        pair = weights["gate_up_proj"]
        pair = pair.unflatten(1, (-1, 2)).unbind(2) if fused == "interleaved" else pair.chunk(2, 1)
        return (*pair, weights["down_proj"])
    return tuple(weights[name] for name in names)


def activate(gate, up, fused):
    if fused != "interleaved":
        return torch.nn.functional.silu(gate) * up
    gate, up = gate.clamp(max=7), up.clamp(-7, 7)
    return gate * torch.sigmoid(1.702 * gate) * (up + 1)


def check(folder, weights, fused=None):
    random = torch.Generator().manual_seed(1)
    hidden = torch.randn(5, HIDDEN, generator=random)
    ids = torch.rand(5, EXPERTS, generator=random).argsort(-1)[:, :2].to(torch.int32).contiguous()
    routing = torch.rand(5, 2, generator=random)
    with stoker.OffloadEngine(folder, cache_bytes=1 << 20) as engine:
        partial = torch.ops.stoker.offload_experts(hidden, ids, routing, 1.0, LAYER, engine.handle)
    wanted = torch.zeros(5, HIDDEN, dtype=torch.float64)
    for token in range(5):
        x = hidden[token].double()
        for expert, weight in zip(ids[token].tolist(), routing[token].tolist()):
            gate, up, down = (w[expert] for w in weights)
            wanted[token] += weight * (down @ activate(gate @ x, up @ x, fused))
    # Int8 activations twice; see offload/cpu/README.md.
    assert (partial.double() - wanted).norm() <= 0.02 * wanted.norm()


@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("group", [32, 64, 128])
def test_groups_and_zero_points(tmp_path, group, symmetric):
    check(tmp_path, write(tmp_path, group=group, symmetric=symmetric))


@pytest.mark.parametrize("scale_dtype", [torch.float16, torch.float32])
def test_scale_types(tmp_path, scale_dtype):
    check(tmp_path, write(tmp_path, scale_dtype=scale_dtype))


@pytest.mark.parametrize("prefix, names", [
    ("model.layers.3.block_sparse_moe.experts", ("w1", "w3", "w2")),
    ("model.language_model.layers.3.mlp.experts", LLAMA_NAMES),
    ("language_model.model.layers.3.mlp.experts", LLAMA_NAMES)])
def test_names(tmp_path, prefix, names):
    check(tmp_path, write(tmp_path, prefix=prefix, names=names))


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("fused", [None, "halves", "interleaved"])
def test_stacked_and_fused(tmp_path, stacked, fused, symmetric):
    check(tmp_path, write(tmp_path, stacked=stacked, fused=fused, symmetric=symmetric), fused)


def test_shards_with_an_index(tmp_path):
    weights = write(tmp_path, shard_size="60KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2 and (tmp_path / "model.safetensors.index.json").exists()
    check(tmp_path, weights)


def test_activation_order_is_refused(tmp_path):
    write(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"]["config_groups"]["group_0"]["weights"]["actorder"] = "group"
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(RuntimeError, match="permutes the columns"):
        stoker.OffloadEngine(tmp_path, cache_bytes=1 << 20)


def command(*words):
    path = os.path.join(os.environ["TEST_SRCDIR"], "stoker/tools/stoker/stoker")
    return subprocess.run([path, "offload", *words], capture_output=True, text=True, timeout=60)


def pack(folder, out):
    return command("pack", folder, out)


@pytest.mark.parametrize("fused, symmetric", [(None, True), ("halves", False), ("interleaved", False)])
def test_packed(tmp_path, fused, symmetric):
    weights = write(tmp_path, stacked=True, fused=fused, symmetric=symmetric)
    done = pack(tmp_path, tmp_path / "out.stoker")
    assert done.returncode == 0, done.stderr
    check(tmp_path / "out.stoker", weights, fused)


def words(nibbles):
    """Packs the last dimension, eight a word, the first in the lowest bits."""
    return (nibbles.long().unflatten(-1, (-1, 8)) << 4 * torch.arange(8)).sum(-1).to(torch.int32)


def write_transposed(folder, method, *, symmetric=False, version=1, group=64):
    """One layer as AutoAWQ or GPTQ stores it: matrices [inputs, outputs]."""
    random = torch.Generator().manual_seed(5)
    tensors, weights = {}, {"gate_proj": [], "up_proj": [], "down_proj": []}
    for expert in range(EXPERTS):
        for name in weights:
            n, k = (HIDDEN, INTERMEDIATE) if name == "down_proj" else (INTERMEDIATE, HIDDEN)
            values = torch.randint(0, 16, (k, n), generator=random, dtype=torch.int8)
            zeros = torch.full((k // group, n), 8, dtype=torch.int8) if symmetric else torch.randint(
                0, 16, (k // group, n), generator=random, dtype=torch.int8)
            scales = (torch.rand(k // group, n, generator=random) * 0.01 + 0.01).half()
            wide = [t.double().repeat_interleave(group, 0) for t in (zeros, scales)]
            weights[name].append(((values.double() - wide[0]) * wide[1]).T)
            prefix = f"model.layers.3.mlp.experts.{expert}.{name}."
            if method == "awq":
                order = torch.tensor([0, 2, 4, 6, 1, 3, 5, 7])
                packed = [words(t.unflatten(-1, (-1, 8))[..., order].flatten(-2)) for t in (values, zeros)]
                back = AutoAWQConverter.reverse_awq_order(*AutoAWQConverter.unpack_awq(*packed, 4), 4)
                assert torch.equal(back[0] & 15, values) and torch.equal(back[1] & 15, zeros)
            else:
                packed = [words(values.T).T.contiguous(), words((zeros - int(version == 1)) & 15)]
                tensors[prefix + "g_idx"] = (torch.arange(k) // group).to(torch.int32)
            tensors.update({prefix + "qweight": packed[0], prefix + "qzeros": packed[1], prefix + "scales": scales})
    save_torch_state_dict(tensors, folder)
    config = {"quant_method": method, "bits": 4, "group_size": group}
    config |= {"version": "gemm", "zero_point": not symmetric} if method == "awq" else {
        "desc_act": False, "sym": symmetric, "checkpoint_format": "gptq_v2" if version == 2 else "gptq"}
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    return tuple(torch.stack(w) for w in weights.values())


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("method, version", [("awq", 1), ("gptq", 1), ("gptq", 2)])
def test_awq_and_gptq_are_converted(tmp_path, method, version, symmetric):
    weights = write_transposed(tmp_path, method, symmetric=symmetric, version=version)
    done = pack(tmp_path, tmp_path / "out.stoker")
    assert done.returncode == 0, done.stderr
    check(tmp_path / "out.stoker", weights)


def test_a_wrong_version_or_order_of_gptq_is_refused(tmp_path):
    write_transposed(tmp_path, "gptq", symmetric=True, version=1)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"]["checkpoint_format"] = "gptq_v2"
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "a zero point is not 8" in pack(tmp_path, tmp_path / "out.stoker").stderr
    config["quantization_config"] |= {"checkpoint_format": "gptq", "desc_act": True}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "desc_act permutes" in pack(tmp_path, tmp_path / "out.stoker").stderr


def test_inspect(tmp_path):
    write(tmp_path, group=64, symmetric=False)
    rows = tmp_path / "rows"
    done = command("inspect", tmp_path, "--top_k=2", f"--json={rows}")
    assert done.returncode == 0, done.stderr
    row = json.loads(rows.read_text())
    expert = 3 * (HIDDEN * INTERMEDIATE // 2 + HIDDEN * INTERMEDIATE // 64 * 5 // 2)
    assert row["in_place"] and row["zero_points"] and (row["group"], row["scales"]) == (64, "bf16")
    assert (row["layers"], row["experts"], row["expert_bytes"]) == (1, EXPERTS, expert)
    assert row["smallest_useful_budget"] == 4 * row["slot_bytes"] and row["slot_bytes"] >= expert
    write_transposed(tmp_path, "awq")
    done = command("inspect", tmp_path)
    assert done.returncode == 0 and "convert it with stoker offload pack" in done.stdout
    done = command("inspect", tmp_path / "absent")
    assert done.returncode == 1 and "config.json" in done.stderr


def test_plan(tmp_path):
    write(tmp_path)
    rows = tmp_path / "rows"
    done = command("plan", tmp_path, "--top_k=2", "--ram=300000,1M", f"--json={rows}")
    assert done.returncode == 0, done.stderr
    small, large = map(json.loads, rows.read_text().splitlines())
    assert small["slots_per_layer"] < large["slots_per_layer"] == EXPERTS
    assert 0 < small["hit_rate"] < large["hit_rate"] < 1
    assert small["tokens_per_second_at_most"] < large["tokens_per_second_at_most"]
    for ram, reason in (("1000", "at least [0-9]+ are needed"), ("4x", "give bytes"), ("900000G", "lower --ram")):
        done = command("plan", tmp_path, "--top_k=2", f"--ram={ram}")
        assert done.returncode == 1 and re.search(reason, done.stderr), done.stderr
    assert "give one or more" in command("plan", tmp_path).stderr
