"""The environment variables that the Python package reads, all of them.

Those of the C++ code are in base/environment_variables.h; tools/checks/environment_variables.py keeps both, the
README's table and the code together.
"""

import typing


class Variable(typing.NamedTuple):
    name: str
    values: str
    meaning: str
    read_by: str


VARIABLES = (
    Variable("STOKER_VLLM", "auto, on, off, reference", "whether the vLLM plug-in may engage; default auto",
             "stoker.vllm.gate, when vLLM loads its plug-ins"),
    Variable("STOKER_VLLM_MAX_TOKENS", "1 to 4096", "the largest launch that the plug-in fuses; default 128",
             "stoker.vllm.gate, when the group is made"),
    Variable("STOKER_VLLM_TIERS", "letters of A, B, C", "the plug-in's tiers that are on (docs/vllm.md); default ABC",
             "stoker.vllm.gate, when vLLM loads its plug-ins"),
    Variable("STOKER_STRICT", "1", "a call that cannot be fused is an error instead of going to vLLM's own path",
             "stoker.vllm.tail, when a model is wrapped"),
)
# Of others.
FOREIGN = (
    Variable("VLLM_LOGGING_LEVEL", "a level", "at DEBUG and INFO the plug-in says why it is off", "stoker.vllm"),
    Variable("VLLM_KEEP_ALIVE_ON_ENGINE_DEATH", "1", "a server stays where the plug-in would end it", "stoker.vllm"),
    Variable("PROMETHEUS_MULTIPROC_DIR", "a folder", "the plug-in's counters are published there",
             "stoker.vllm.metrics"),
)
