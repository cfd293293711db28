"""One engine in one process: makes tokens and prints a JSON line. Started by test_real_engine.py.

Usage: engine_run.py MODEL_FOLDER TENSOR_PARALLEL TOKENS
"""

import json
import sys

import tiny_model


def counters(worker):
    from stoker.vllm import tail

    return tail.counters()


def main():
    from vllm import LLM, SamplingParams

    folder, tensor_parallel, tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    llm = LLM(folder, tensor_parallel_size=tensor_parallel, enforce_eager=True, max_model_len=256,
              max_num_seqs=16, max_num_batched_tokens=256, dtype="bfloat16", seed=0, enable_prefix_caching=False)
    outputs = llm.generate(tiny_model.PROMPTS, SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True))
    result = {"tokens": [list(output.outputs[0].token_ids) for output in outputs]}
    if "--counters" in sys.argv:
        result["counters"] = llm.collective_rpc(counters)
    print("RESULT " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
