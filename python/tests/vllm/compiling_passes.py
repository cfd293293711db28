"""vLLM's pass manager without the one pass whose ops the CPU build lacks; for compiling_platform.py."""

from vllm.compilation.passes.inductor_pass import InductorPass
from vllm.compilation.passes.pass_manager import PostGradPassManager


class Nothing(InductorPass):
    def __call__(self, graph):
        pass


class CpuPassManager(PostGradPassManager):
    def configure(self, config):
        super().configure(config)
        self.fix_functionalization = Nothing()  # its table names CUDA ops; what it skips, Inductor does
