"""One engine in one process: makes tokens and prints a line `RESULT {...}`. Started by real_engine.py.

Usage: engine_run.py MODEL_FOLDER TENSOR_PARALLEL TOKENS [--counters] [--fail] [--compiled]
"""

import json
import sys

import tiny_model


def counters(worker):
    from stoker.vllm import tail

    return tail.counters()


def fail_on_rank_1(worker):
    """Aborts the group from one rank, as a launch that failed there does."""
    if worker.rank == 1:
        worker.model_runner.get_model()._stoker.tail.communicator.abort()


def main():
    from vllm import LLM, SamplingParams

    folder, tensor_parallel, tokens = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    how = dict(enforce_eager=True)
    if "--compiled" in sys.argv:
        how = dict(compilation_config={"mode": "VLLM_COMPILE", "cudagraph_mode": "NONE"})
    llm = LLM(folder, tensor_parallel_size=tensor_parallel, max_model_len=256, max_num_seqs=16,
              max_num_batched_tokens=256, dtype="bfloat16", seed=0, enable_prefix_caching=False, **how)
    parameters = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    if "--fail" in sys.argv:
        llm.generate(tiny_model.PROMPTS[:1], parameters)
        llm.collective_rpc(fail_on_rank_1)
        print("FAILED NOW", flush=True)
    outputs = llm.generate(tiny_model.PROMPTS, parameters)
    result = {"tokens": [list(output.outputs[0].token_ids) for output in outputs]}
    if "--counters" in sys.argv:
        result["counters"] = llm.collective_rpc(counters)
    print("RESULT " + json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
