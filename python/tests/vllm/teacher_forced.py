"""One engine in one process: runs given sequences through the model and saves every layer's residual stream.

Usage: teacher_forced.py MODEL_FOLDER TENSOR_PARALLEL SEQUENCES.json OUT.pt. Started by real_engine.py. The file gets,
by rank 0, a list of (streams [places, tokens, hidden], normed [tokens, hidden]), one a sequence; a place is a norm that
adds to the stream: behind attention and behind the experts of each layer.
"""

import json
import sys

import torch


def watch(worker):
    """Hooks on the norms: their second output is the stream, whatever was summed in front of them or in them."""
    model, seen = worker.model_runner.get_model().model, []
    worker.stoker_seen = seen  # the functions travel by value: no global of this module is theirs

    def keep(_norm, _inputs, outputs):
        if isinstance(outputs, tuple):
            seen.append([output.detach().clone() for output in outputs])

    layers = list(model.layers)
    for norm in [norm for layer in layers for norm in (layer.input_layernorm, layer.post_attention_layernorm)]:
        norm.register_forward_hook(keep)
    model.norm.register_forward_hook(keep)


def taken(worker):
    """What was seen since the last call, of rank 0."""
    seen = [(normed.float().tolist(), stream.float().tolist()) for normed, stream in worker.stoker_seen]
    worker.stoker_seen.clear()
    return seen if worker.rank == 0 else None


def main():
    from vllm import LLM, SamplingParams

    folder, ranks, sequences, out = sys.argv[1], int(sys.argv[2]), json.load(open(sys.argv[3])), sys.argv[4]
    llm = LLM(folder, tensor_parallel_size=ranks, enforce_eager=True, max_model_len=256, max_num_seqs=1,
              max_num_batched_tokens=256, dtype="bfloat16", seed=0, enable_prefix_caching=False)
    llm.collective_rpc(watch)
    results = []
    for tokens in sequences:
        llm.collective_rpc(taken)
        llm.generate([{"prompt_token_ids": tokens}], SamplingParams(temperature=0, max_tokens=1))
        seen = llm.collective_rpc(taken)[0]
        results.append((torch.tensor([stream for _, stream in seen]), torch.tensor(seen[-1][0])))
    torch.save(results, out)


if __name__ == "__main__":
    main()
