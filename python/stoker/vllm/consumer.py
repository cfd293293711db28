"""Norms that take un-reduced input: an RMSNorm instance is turned into one of these, nothing else is touched."""

from vllm.model_executor.layers.fused_moe.moe_output import MoEOutput
from vllm.model_executor.layers.layernorm import RMSNorm


class ConsumerNorm(RMSNorm):
    """RMSNorm over what an armed layer left un-reduced: a MoEOutput, or a rank's share of a row-parallel linear.

    Without a residual (the first layer's norm) and for reduced input it is vLLM's RMSNorm.
    """

    stoker_tail = None
    stoker_site = 0
    stoker_partial = False  # a plain tensor with a residual is this rank's share

    def forward(self, x, residual=None):
        if isinstance(x, MoEOutput):
            return self.stoker_tail.take(x.routed, x.shared_output, x.routed_scaling_factor, residual,
                                         self.weight.data, self.variance_epsilon, self.stoker_site)
        if self.stoker_partial and residual is not None:
            return self.stoker_tail.allreduce_rmsnorm(x, residual, self.weight.data, self.variance_epsilon,
                                                      self.stoker_site)
        return super().forward(x, residual)


def refusal(norm):
    """Why this norm cannot consume, or None."""
    if type(norm) is not RMSNorm:
        return f"its norm is a {type(norm).__name__}, not an RMSNorm"
    if not norm.has_weight or norm.variance_size_override is not None:
        return "its norm has no weight or norms a part of the hidden size"
    return None


def arm(norm, tail, site, partial):
    """Turns this instance into a consumer. site: which call of the model this is, equal on all ranks."""
    norm.__class__ = ConsumerNorm
    norm.stoker_tail, norm.stoker_site, norm.stoker_partial = tail, site, partial
