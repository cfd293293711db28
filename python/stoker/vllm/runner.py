"""Tier B: a MoERunner that leaves the experts' rows un-finalized for the norm that follows.

Registered out of tree under vLLM's own name, so every MoE layer is one of these; a layer that is not armed runs vLLM's
code unchanged. An armed layer returns vLLM's MoEOutput, which only an armed norm (consumer.py) may take. In a compiled
model nothing is armed: the graph pass calls `stoker_experts` where it has put the layer's tail into one op.

Where the rows come from:
  * experts that return UnfinalizedMoEOutput by themselves;
  * modular experts whose finalize is a weight-and-reduce over [tokens, top_k, hidden]: the rows are caught there;
  * vLLM's bfloat16 CPU experts: called with one route a token, which is the un-finalized form by definition;
  * other experts reduce inside their kernel: their output is this rank's share, and only the sum over ranks is fused.
"""

import torch
import vllm.model_executor.layers.fused_moe.modular_kernel as mk
from vllm.model_executor.custom_op import op_registry_oot
from vllm.model_executor.layers.fused_moe.experts.cpu_moe import CPUUnquantizedExperts
from vllm.model_executor.layers.fused_moe.moe_output import MoEOutput, UnfinalizedMoEOutput
from vllm.model_executor.layers.fused_moe.runner.moe_runner import MoERunner, _unpack
from vllm.model_executor.layers.fused_moe.router.zero_expert_router import ZeroExpertRouter
from vllm.model_executor.layers.fused_moe.topk_weight_and_reduce import (
    TopKWeightAndReduceContiguous,
    TopKWeightAndReduceDelegate,
)

from stoker.vllm.tail import identity_indices


class CatchingPrepareFinalize:
    """Stands in for a prepare_finalize object and, while `stoker_on`, keeps what its finalize was given."""

    def __init__(self, inner):
        self.inner = inner
        self.stoker_on = False
        self.caught = None

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def finalize(self, output, fused_expert_output, topk_weights, topk_ids, apply_router_weight_on_input,
                 weight_and_reduce_impl):
        if not self.stoker_on or not isinstance(weight_and_reduce_impl,
                                                (TopKWeightAndReduceDelegate, TopKWeightAndReduceContiguous)):
            return self.inner.finalize(output, fused_expert_output, topk_weights, topk_ids,
                                       apply_router_weight_on_input, weight_and_reduce_impl)
        tokens, top_k = topk_ids.shape
        rows = fused_expert_output.reshape(tokens * top_k, fused_expert_output.shape[-1])
        weights = topk_weights
        if apply_router_weight_on_input:
            weights = torch.ones_like(topk_weights)
        self.caught = UnfinalizedMoEOutput(rows, weights, identity_indices(tokens, top_k, rows.device))
        return None

    def take(self):
        caught, self.caught = self.caught, None
        return caught


def leave_cpu_rows_unfinalized(experts):
    """Lets vLLM's CPU experts return rows while their `stoker_on`: each route is its own token with weight 1."""
    kind = type(experts)

    def apply(self, output, hidden_states, w1, w2, topk_weights, topk_ids, *args, **kwargs):
        if not self.stoker_on:
            return kind.apply(self, output, hidden_states, w1, w2, topk_weights, topk_ids, *args, **kwargs)
        tokens, top_k = topk_ids.shape
        rows = hidden_states.new_empty(tokens * top_k, output.shape[-1])
        one = torch.ones(tokens * top_k, 1, dtype=topk_weights.dtype)
        kind.apply(self, rows, hidden_states.repeat_interleave(top_k, 0), w1, w2, one, topk_ids.reshape(-1, 1),
                   *args, **kwargs)
        return UnfinalizedMoEOutput(rows, topk_weights, identity_indices(tokens, top_k, rows.device))

    experts.__class__ = type("StokerUnfinalized" + kind.__name__, (kind,), {"apply": apply, "stoker_on": False})


class StokerMoERunner(MoERunner):
    """vLLM's runner; after `arm` its forward returns a MoEOutput with the reduction left to the next norm."""

    stoker_tail = None
    _stoker_switch = None  # what makes the experts leave their rows while its stoker_on; None: nothing can
    _stoker_prepared = False

    def stoker_refusal(self, sums_later=False):
        """Why this layer cannot defer, or None. sums_later: its model leaves the sum over ranks to the norm itself."""
        if self.routed_input_transform is not None or self.routed_output_transform is not None:
            return "its routed experts have a transform around them"
        if isinstance(self.router, ZeroExpertRouter):
            return "it has zero experts, which add to the reduced output"
        if self.moe_config.hidden_dim != self.moe_config.hidden_dim_unpadded:
            return "its hidden size is padded for the kernel"
        if self.routed_scaling_factor != 1.0 and self.moe_config.in_dtype == torch.float16:
            return "its decoder layer compensates for float16 scaling"
        if self.moe_config.skip_final_all_reduce != sums_later:
            return "its model leaves the sum over ranks to another" if not sums_later else "it sums over ranks itself"
        return None

    def arm(self, tail):
        """The caller promises that the layer's output goes to an armed norm and nowhere else."""
        self.stoker_tail = tail

    def _stoker_prepare(self):
        """Once, at the first call: the kernel is there only after the weights are loaded."""
        self._stoker_prepared = True
        kernel = self._quant_method.moe_kernel
        if kernel is None or not isinstance(kernel.impl, mk.FusedMoEKernelModularImpl):
            return
        if isinstance(kernel.impl.fused_experts, CPUUnquantizedExperts):
            leave_cpu_rows_unfinalized(kernel.impl.fused_experts)
            self._stoker_switch = kernel.impl.fused_experts
        else:
            if not isinstance(kernel.impl.prepare_finalize, CatchingPrepareFinalize):
                kernel.impl.prepare_finalize = CatchingPrepareFinalize(kernel.impl.prepare_finalize)
            self._stoker_switch = kernel.impl.prepare_finalize

    def stoker_experts(self, hidden_states, router_logits, shared_experts_input, input_ids, catch=True):
        """(routed, shared): what the experts left of this rank's share, with `catch` un-finalized where they can."""
        if not self._stoker_prepared:
            self._stoker_prepare()
        switch = self._stoker_switch if catch else None
        if switch is not None:
            switch.stoker_on = True
        try:
            shared, routed = _unpack(self._forward_impl(hidden_states, router_logits, shared_experts_input, input_ids))
        finally:
            if switch is not None:
                switch.stoker_on = False
        if self._fused_output_is_reduced:
            raise RuntimeError(f"stoker: {self.layer_name}: the experts' kernel already sums over ranks; "
                               "set STOKER_VLLM=off for this model")
        if isinstance(switch, CatchingPrepareFinalize):
            routed = switch.take() or routed
        return routed, shared

    def forward(self, hidden_states, router_logits, input_ids=None, shared_experts_input=None):
        if self.stoker_tail is None:
            return super().forward(hidden_states, router_logits, input_ids, shared_experts_input)
        if shared_experts_input is None and self._shared_experts is not None:
            shared_experts_input = hidden_states
        catch = self.stoker_tail.takes_rows(*hidden_states.shape, hidden_states.dtype)
        routed, shared = self.stoker_experts(hidden_states, router_logits, shared_experts_input, input_ids, catch)
        return MoEOutput(routed=routed, shared_output=shared, routed_scaling_factor=self.routed_scaling_factor)


def register_runner():
    """None once MoE layers are made as StokerMoERunner in this process, else why they are not. Idempotent."""
    current = op_registry_oot.get("MoERunner")
    if current is None:
        MoERunner.register_oot(StokerMoERunner, name="MoERunner")
        return None
    if current is StokerMoERunner:
        return None
    return f"another plug-in already replaces MoERunner: {current.__module__}.{current.__qualname__}"
