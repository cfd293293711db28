"""The tail of a decoder layer for vLLM: sum over ranks, residual, RMSNorm, with the experts' finalize in front.

One op owns its fallback. Whether a call is fused depends on the number of tokens, the hidden size and the dtype alone,
so all ranks agree and a captured graph never changes its path. Counters count calls of this code: a replay of a CUDA
graph counts nothing more than its capture did.
"""

import collections
import os

import torch
import torch.distributed as dist

from stoker.vllm import reference, server_exit

PLAIN, EXPERTS = "allreduce_rmsnorm", "moe_finalize_allreduce_rmsnorm"
_counters = collections.Counter()


def counters():
    """Calls in this process: "<op> fused", "<op> reference", "<op> fallback: <reason>"; plus "forwards"."""
    return dict(_counters)


def count(what):
    _counters[what] += 1


def identity_indices(tokens, top_k, device):
    """The indices of rows that lie in the order [tokens, top_k]."""
    return torch.arange(tokens * top_k, dtype=torch.int32, device=device).view(tokens, top_k)


class Tail:
    """What the layers of one model share: the communicator, or the group of the reference path.

    communicator: a stoker.Communicator, or None for the reference path. group: the torch process group of the
    tensor-parallel ranks, for the reference path. capacity, hidden_max: the communicator's plan. unfused: for what the
    plan does not take, (partial, residual, gamma, eps) -> (norm_out, residual_out) with the sum over ranks (in vLLM:
    its own all-reduce and norm); None: the reference path. rows: whether experts may leave rows un-finalized.
    Calls are collective over the group and follow the model's order; one thread at a time.
    """

    def __init__(self, group, capacity, hidden_max, communicator=None, strict=None, unfused=None, rows=True):
        self.group = group
        self.capacity = capacity
        self.hidden_max = hidden_max
        self.communicator = communicator
        self._beyond = unfused or self._reference
        self._rows = rows
        self.strict = os.environ.get("STOKER_STRICT") == "1" if strict is None else strict

    def refusal(self, tokens, hidden, dtype):
        """None where a call of this shape is fused, else the reason, which is also the counter's name."""
        if dtype not in (torch.bfloat16, torch.float16):
            return "dtype"
        if tokens > self.capacity:
            return "tokens above the workspace"
        if hidden > self.hidden_max or hidden % 8 != 0:
            return "hidden size"
        return None

    def takes_rows(self, tokens, hidden, dtype):
        """Whether experts should leave their rows for a call of this shape."""
        return self._rows and self.refusal(tokens, hidden, dtype) is None

    def allreduce_rmsnorm(self, partial, residual, gamma, eps, site):
        """partial [tokens, hidden]: this rank's share. Returns (norm_out, residual_out), new tensors."""
        reason = self.refusal(partial.shape[0], partial.shape[1], partial.dtype)
        if reason is not None:
            return self._fall_back(PLAIN, reason, partial, residual, gamma, eps)
        if self.communicator is None:
            count(f"{PLAIN} reference")
            return self._reference(partial, residual, gamma, eps)
        count(f"{PLAIN} fused")
        residual_out, norm_out = torch.ops.stoker.allreduce_rmsnorm(
            partial.contiguous(), gamma, self.communicator.handle, residual=residual, eps=eps, site=site)
        return norm_out, residual_out

    def finalize_allreduce_rmsnorm(self, rows, indices, weights, shared, scaling, residual, gamma, eps, site):
        """rows [any, hidden] un-weighted; indices, weights [tokens, top_k]; shared [tokens, hidden] or None."""
        reason = self.refusal(indices.shape[0], rows.shape[1], rows.dtype)
        if reason is not None:
            partial = torch.ops.stoker.moe_finalize(rows, indices, weights, shared=shared,
                                                    routed_scaling_factor=scaling)
            return self._fall_back(EXPERTS, reason, partial, residual, gamma, eps)
        if self.communicator is None:
            count(f"{EXPERTS} reference")
            return self._reference(reference.finalize(rows, indices, weights, shared, scaling), residual, gamma, eps)
        count(f"{EXPERTS} fused")
        residual_out, norm_out = torch.ops.stoker.moe_finalize_allreduce_rmsnorm(
            rows, indices, weights, gamma, self.communicator.handle, shared=shared, residual=residual, eps=eps,
            routed_scaling_factor=scaling, site=site)
        return norm_out, residual_out

    def take(self, routed, shared, scaling, residual, gamma, eps, site):
        """The tail behind experts: (norm_out, residual_out).

        routed: what the experts left, a vllm UnfinalizedMoEOutput (un-weighted rows, weights, where each route's row
        is) or this rank's finalized [tokens, hidden]; shared: this rank's share of the shared expert, or None.
        """
        if not isinstance(routed, torch.Tensor):
            return self.finalize_allreduce_rmsnorm(
                routed.gemm2_permuted, routed.expanded_idx_to_permuted_idx, routed.expert_weights.contiguous(), shared,
                scaling, residual, gamma, eps, site)
        if shared is None and scaling == 1.0:
            return self.allreduce_rmsnorm(routed, residual, gamma, eps, site)
        indices = identity_indices(routed.shape[0], 1, routed.device)  # one row a token, with weight 1
        return self.finalize_allreduce_rmsnorm(routed, indices, None, shared, scaling, residual, gamma, eps, site)

    def _fall_back(self, op, reason, partial, residual, gamma, eps):
        count(f"{op} fallback: {reason}")
        if self.strict:
            raise RuntimeError(f"stoker: {reason}: {partial.shape[0]} tokens of {partial.shape[1]} {partial.dtype}; "
                               f"the workspace takes {self.capacity} tokens of up to {self.hidden_max}, a multiple "
                               "of 8, bfloat16 or float16 (STOKER_STRICT=1 forbids the unfused path)")
        return self._beyond(partial, residual, gamma, eps)

    def _reference(self, partial, residual, gamma, eps):
        mine = partial.contiguous()
        bytes_ = mine.view(torch.uint8)  # gloo gathers no bfloat16
        gathered = [torch.empty_like(bytes_) for _ in range(dist.get_world_size(self.group))]
        dist.all_gather(gathered, bytes_, group=self.group)
        total = reference.sum_of_ranks([g.view(mine.dtype) for g in gathered])
        residual_out, norm_out = reference.add_rmsnorm(total, gamma, residual, eps)
        return norm_out, residual_out

    def check(self):
        """Raises with the report's words if any rank of the group has reported a failure: one read of host memory."""
        report = None if self.communicator is None else self.communicator.health()
        if report is not None:
            server_exit.tell(report)
            raise RuntimeError(f"{report} (the engine stops: this step's tokens are not to be used)")
