"""A small INT4 checkpoint written with the safetensors package, and a layer of it computed in float64."""

import json

import torch
from safetensors.torch import save_file

CONFIG = {"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {
    "group_0": {"weights": {"num_bits": 4, "type": "int", "symmetric": True, "group_size": 32, "actorder": None}}}}}


def write(folder, *, layers=(0, 2), experts=8, hidden=256, intermediate=128, seed=1):
    """Writes the checkpoint; returns its dequantised weights by (layer, expert, projection)."""
    random = torch.Generator().manual_seed(seed)
    weights = {}
    for layer in layers:
        tensors = {}
        for expert in range(experts):
            for projection, rows, columns in (("gate_proj", intermediate, hidden), ("up_proj", intermediate, hidden),
                                              ("down_proj", hidden, intermediate)):
                name = f"model.layers.{layer}.mlp.experts.{expert}.{projection}"
                values = torch.randint(0, 16, (rows, columns), generator=random, dtype=torch.int64)
                scales = (torch.rand(rows, columns // 32, generator=random) * 0.01 + 0.01).bfloat16()
                words = (values.view(rows, columns // 8, 8) << (4 * torch.arange(8))).sum(-1)
                tensors[name + ".weight_packed"] = words.to(torch.int32)
                tensors[name + ".weight_scale"] = scales
                weights[layer, expert, projection] = (values - 8).double() * scales.double().repeat_interleave(32, 1)
        save_file(tensors, folder / f"layer-{layer}.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return weights


def expected(weights, layer, hidden, ids, routing, factor):
    """The layer in float64."""
    out = torch.zeros(hidden.shape, dtype=torch.float64)
    for token, slot in torch.cartesian_prod(torch.arange(ids.shape[0]), torch.arange(ids.shape[1])).tolist():
        expert = int(ids[token, slot])
        if (layer, expert, "gate_proj") not in weights:
            continue
        x = hidden[token].double()
        gate, up = weights[layer, expert, "gate_proj"] @ x, weights[layer, expert, "up_proj"] @ x
        out[token] += routing[token, slot].double() * (
            weights[layer, expert, "down_proj"] @ (torch.nn.functional.silu(gate) * up))
    return out * factor
