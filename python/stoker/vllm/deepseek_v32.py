"""DeepSeek-V3.2 and GLM-5 (`glm_moe_dsa`) on CUDA, whose released model runs eager and leaves every sum over ranks to
`fused_allreduce_rms_norm`, one behind attention, one behind the experts or the MLP of each layer.

The layers' forward is the released one with those calls replaced: sums go to the tail, and the experts' rows, which
the released layer finalizes first, go with them. On other platforms vLLM serves these architectures with its generic
model, which stays as it is.
"""

from itertools import islice

import vllm.models.deepseek_v32 as released
from vllm.distributed import get_pp_group
from vllm.model_executor.layers.fused_embed_norm import fused_embed_norm
from vllm.model_executor.layers.fused_moe.moe_output import MoEOutput
from vllm.models.deepseek_v32.nvidia import model as nvidia

from stoker.vllm import consumer, engage
from stoker.vllm.runner import StokerMoERunner


def join(tail, x, residual, norm, site):
    """(norm_out, residual_out): what `fused_allreduce_rms_norm` gives for x, a rank's share or what experts left."""
    weight, eps = norm.weight.data, norm.variance_epsilon
    if isinstance(x, MoEOutput):
        return tail.take(x.routed, x.shared_output, x.routed_scaling_factor, residual, weight, eps, site)
    return tail.allreduce_rmsnorm(x, residual, weight, eps, site)


class DecoderLayer(nvidia.DeepseekV32DecoderLayer):
    """A built layer is turned into one of these."""

    stoker_tail = None
    stoker_site = 0  # of the norm in front; the one behind attention has the next

    def forward(self, positions, hidden_states, residual, attn_in=None):
        tail, site = self.stoker_tail, self.stoker_site
        if residual is None:  # the first layer: the embedding, and where it was fused with it, its norm
            x, residual = attn_in, hidden_states
            if x is None:
                x = self.input_layernorm(hidden_states)
        else:
            x, residual = join(tail, hidden_states, residual, self.input_layernorm, site)
        x = self.self_attn(positions=positions, hidden_states=x)
        x, residual = join(tail, x, residual, self.post_attention_layernorm, site + 1)
        experts = getattr(self.mlp, "experts", None)
        if isinstance(experts, StokerMoERunner) and experts.stoker_tail is not None:
            return experts(hidden_states=x, router_logits=x), residual
        return self.mlp(x), residual


class Model(nvidia.DeepseekV32Model):
    stoker_tail = None

    def forward(self, input_ids, positions, intermediate_tensors=None, inputs_embeds=None):
        if self.stoker_tail is None:
            return super().forward(input_ids, positions, intermediate_tensors, inputs_embeds)
        if self.aux_hidden_state_layers:
            raise RuntimeError("stoker: auxiliary hidden states were asked for after the layers were fused; "
                               "set STOKER_VLLM=off")
        layers = list(islice(self.layers, self.start_layer, self.end_layer))
        attn_in = None
        if inputs_embeds is not None:
            x = inputs_embeds
        elif self.replicated_embed:
            x, attn_in = fused_embed_norm(input_ids, self.embed_tokens.weight,
                                          chain_weight=layers[0].input_layernorm.weight, eps=self.config.rms_norm_eps)
        else:
            x = self.embed_input_ids(input_ids)
        residual = None
        for layer in layers:
            x, residual = layer(positions, x, residual, attn_in)
            attn_in = None
        return join(self.stoker_tail, x, residual, self.norm, 2 * len(layers))[0]


def refusal(model):
    """Why the layers of this built model stay as they are, or None."""
    if get_pp_group().world_size != 1:
        return "pipeline parallel: a stage's last layer has no successor"
    for layer in model.layers:
        if type(layer) is not nvidia.DeepseekV32DecoderLayer:
            return f"a layer is a {type(layer).__name__}, not the released one"
        for norm in (layer.input_layernorm, layer.post_attention_layernorm, model.norm):
            reason = consumer.refusal(norm)
            if reason is not None:
                return reason
    return None


def arm(model, engagement):
    """As engage.arm, for a built nvidia.DeepseekV32Model; says in one INFO line what is on."""
    reason = engagement.reason or refusal(model)
    if reason is not None:
        engage.say_off(reason)
        engagement.tail = None
        return
    model.__class__ = Model
    model.stoker_tail = tail = engagement.tail
    experts, why_not = 0, []
    for index, layer in enumerate(model.layers):
        layer.__class__ = DecoderLayer
        layer.stoker_tail, layer.stoker_site = tail, 2 * index
        runner = getattr(layer.mlp, "experts", None)
        if not isinstance(runner, StokerMoERunner):
            reason = "it has no mixture of experts"
        else:
            reason = runner.stoker_refusal(sums_later=True)
        if reason is None:
            runner.arm(tail)
            experts += 1
        else:
            why_not.append(f"layer {index}: {reason}")
    engage.say_on(engagement, len(model.layers), experts, len(model.layers), why_not)


class EngagedDsa(engage.EngagedModel):
    stoker_eager = True

    def stoker_arm(self):
        arm(self.model, self._stoker)


def engaged(base):
    """The class to register for `base`: itself where this platform's model is not the one that is known here."""
    if not issubclass(base, nvidia.DeepseekV32ForCausalLM):
        return base
    return type(f"Stoker{base.__name__}", (EngagedDsa, base), {})


StokerDeepseekV32ForCausalLM = engaged(released.DeepseekV32ForCausalLM)
StokerGlmMoeDsaForCausalLM = engaged(released.GlmMoeDsaForCausalLM)
