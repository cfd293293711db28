"""A platform for tests alone: vLLM's CPU platform, but with VLLM_COMPILE and collectives as custom ops, as on a GPU.

vLLM's own CPU platform turns VLLM_COMPILE into a single Dynamo trace, whose graph has neither its IR nor its
collectives. Entry point of the group `vllm.platform_plugins`: `compiling_platform:name`.
"""

from vllm.platforms.cpu import CpuPlatform


def name():
    return "compiling_platform.CompilingCpuPlatform"


class CompilingCpuPlatform(CpuPlatform):
    @classmethod
    def use_custom_op_collectives(cls):
        return True

    @classmethod
    def check_and_update_config(cls, vllm_config):
        compilation = vllm_config.compilation_config
        kept = {key: getattr(compilation, key) for key in ("mode", "backend", "ir_enable_torch_wrap")}
        super().check_and_update_config(vllm_config)
        for key, value in kept.items():
            setattr(compilation, key, value)
        compilation.compile_sizes = compilation.compile_sizes or []  # else set with the sizes of CUDA graphs

    @classmethod
    def get_pass_manager_cls(cls):
        return "compiling_passes.CpuPassManager"
