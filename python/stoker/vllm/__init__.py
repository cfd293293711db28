"""The plug-in for vLLM. `register` is the entry point of the group `vllm.general_plugins`.

STOKER_VLLM chooses: `auto` (default: engages where a measured row says that fused is faster), `on`, `off` (vLLM's own
code, exactly), `reference` (the same numbers from separate operations). See docs/vllm.md.
"""

import logging
import multiprocessing
import os
import sys

from stoker.vllm import gate, server_exit

logger = logging.getLogger("vllm.stoker")

# Architectures whose models are replaced, by the class that replaces them.
MODELS = {"Qwen3MoeForCausalLM": "stoker.vllm.qwen3_moe:StokerQwen3MoeForCausalLM",
          "DeepseekV32ForCausalLM": "stoker.vllm.deepseek_v32:StokerDeepseekV32ForCausalLM",
          "GlmMoeDsaForCausalLM": "stoker.vllm.deepseek_v32:StokerGlmMoeDsaForCausalLM"}

_registered = False


def register():
    """Called by vLLM in each of its processes. Idempotent, touches no device, raises nothing.

    Whether a model's layers are then fused is decided when the model is built (engage.py), which logs one line; where
    it is known here already that nothing will be, this logs the reason, in the process that was started by the user.
    """
    global _registered
    if _registered:
        return
    _registered = True
    try:
        reason = _register()
    except Exception as error:  # vLLM must start without the plug-in
        reason = f"{type(error).__name__}: {error}"
    if reason is not None and multiprocessing.parent_process() is None:
        _say(f"Stoker is off: {reason}")


def _say(text):
    """One INFO line. vLLM configures its logging after it has loaded the plug-ins: until then, to standard error."""
    if logger.isEnabledFor(logging.INFO) and logger.hasHandlers():
        logger.info("%s", text)
    elif os.environ.get("VLLM_LOGGING_LEVEL", "INFO").upper() in ("DEBUG", "INFO"):
        print(f"INFO {text}", file=sys.stderr, flush=True)


def _register():
    mode, error = gate.mode_of()
    if error is not None:
        return error
    if mode == "off":
        return "STOKER_VLLM=off"
    import vllm

    reason = gate.version_reason(vllm.__version__)
    if reason is not None:
        return reason
    gate.max_tokens(), gate.tiers()  # refuse a bad value here, by name
    from vllm.model_executor.models import ModelRegistry

    for architecture, replacement in MODELS.items():
        ModelRegistry.register_model(architecture, replacement)
    keeps_alive = os.environ.get("VLLM_KEEP_ALIVE_ON_ENGINE_DEATH", "0") not in ("", "0")
    if multiprocessing.parent_process() is None and server_exit.is_vllms_own_program() and not keeps_alive:
        server_exit.listen()
    return None
