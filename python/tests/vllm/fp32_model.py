"""The model of tiny_model.py in FP32, by transformers: what real_engine.py measures distances from."""

import torch


def run(folder, sequences):
    """For each sequence (streams [places, tokens, hidden], normed [tokens, hidden]), and the head [vocabulary, hidden].

    Places as in teacher_forced.py."""
    import transformers

    model = transformers.Qwen3MoeForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    streams, normed = [], []
    layers = list(model.model.layers)
    norms = [norm for layer in layers for norm in (layer.input_layernorm, layer.post_attention_layernorm)][1:]
    for norm in [*norms, model.model.norm]:
        norm.register_forward_pre_hook(lambda _norm, inputs: streams.append(inputs[0][0].clone()))
    model.model.norm.register_forward_hook(lambda _norm, _inputs, output: normed.append(output[0].clone()))
    results = []
    with torch.no_grad():
        for tokens in sequences:
            streams.clear()
            normed.clear()
            model(torch.tensor([tokens]))
            results.append((torch.stack(streams), normed[0]))
    return results, model.lm_head.weight.detach()
