"""Tier A: Qwen3-MoE with the tails of its layers fused. Registered over vLLM's class of the same architecture."""

import torch
from vllm.model_executor.models.qwen3_moe import Qwen3MoeForCausalLM

from stoker.vllm import engage, tail


class StokerQwen3MoeForCausalLM(Qwen3MoeForCausalLM):
    """vLLM's model. Where the gate refuses, nothing is changed in it."""

    def __init__(self, *, vllm_config, prefix=""):
        self.__dict__["_stoker"] = engagement = engage.prepare(vllm_config)
        super().__init__(vllm_config=vllm_config, prefix=prefix)
        engage.arm(self.model, engagement)

    def forward(self, *args, **kwargs):
        tail.count("forwards")
        return super().forward(*args, **kwargs)

    def compute_logits(self, hidden_states, *args, **kwargs):
        # Once a step, on every rank, outside captured graphs: the step's launches are done, then one host read.
        shared = self._stoker.tail
        if shared is not None and shared.communicator is not None:
            if hidden_states.is_cuda and not torch.cuda.is_current_stream_capturing():
                torch.cuda.current_stream().synchronize()
            shared.check()
        return super().compute_logits(hidden_states, *args, **kwargs)
