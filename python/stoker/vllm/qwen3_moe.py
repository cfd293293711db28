"""Qwen3-MoE with the tails of its layers fused. Registered over vLLM's class of the same architecture."""

from vllm.model_executor.models.qwen3_moe import Qwen3MoeForCausalLM

from stoker.vllm.engage import EngagedModel


class StokerQwen3MoeForCausalLM(EngagedModel, Qwen3MoeForCausalLM):
    """vLLM's model, eager with replaced norms and experts, or compiled with the graph pass."""
