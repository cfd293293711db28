#!/usr/bin/env python3
"""The CPU expert kernels against ONNX Runtime's CPU QMoE operator: same weights, same routing, in turns.

    bazel build //offload/cpu:layer_bench
    python3 -m venv DIR && DIR/bin/pip install onnxruntime==1.32.0 onnx numpy
    DIR/bin/python tools/bench/offload_onnxruntime.py --threads=1 --out=rows.jsonl

Shape of a Qwen3-30B-A3B layer: 128 experts, hidden 2048, intermediate 768, 8 routes, INT4, groups of 32, fp16 scales.
QMoE takes part twice: with int8 activations (accuracy_level 4, its fastest, nearest to ours) and as it is by default
(FP32 activations). Its weights are constants: it packs them when it loads. Stoker reads the same unpacked bytes.
Each pair is A B C C B A with the same call; calls differ from pair to pair, so that most experts are not in a core's
caches. A row gives milliseconds; the median over pairs of Stoker's time over this one's with a 95% interval
(bootstrap); the same of processor time, which others on the machine disturb less (for one thread); the ratio of the
shortest times; and the relative RMS error against FP64 on the dequantised weights.
"""

import argparse
import json
import os
import pathlib
import platform
import subprocess
import tempfile
import time

import numpy as np
import onnx
import onnxruntime

HIDDEN, INTERMEDIATE, GROUP, TOP_K = 2048, 768, 32, 8


def make_weights(experts, random):
    shapes = (2 * INTERMEDIATE, HIDDEN), (HIDDEN, INTERMEDIATE)
    packed = [random.integers(0, 256, (experts, n, k // 2), dtype=np.uint8) for n, k in shapes]
    scales = [random.uniform(0.002, 0.012, (experts, n, k // GROUP)).astype(np.float16) for n, k in shapes]
    return packed, scales


def make_call(tokens, experts, random):
    """Random distinct experts a token; `mix` and `probabilities` are what QMoE wants for the same routing."""
    hidden = random.normal(size=(tokens, HIDDEN)).astype(np.float32)
    probabilities = random.normal(size=(tokens, experts)).astype(np.float32)
    ids = np.sort(np.argsort(-probabilities, axis=1)[:, :TOP_K], axis=1).astype(np.int32)
    weights = random.uniform(0.05, 0.2, ids.shape).astype(np.float32)
    mix = np.zeros((tokens, experts), np.float32)
    np.put_along_axis(mix, ids, weights, axis=1)
    return {"x": hidden, "probabilities": probabilities, "mix": mix}, ids, weights


def write_call(path, feed, ids, weights):
    with open(path, "wb") as file:
        np.array(ids.shape, np.int32).tofile(file)
        for array in (feed["x"], ids, weights):
            array.tofile(file)


def session(packed, scales, threads, accuracy_level):
    names = "w1", "s1", "w2", "s2"
    arrays = packed[0], scales[0], packed[1], scales[1]
    inputs = ["x", "probabilities", "w1", "s1", "", "w2", "s2"] + [""] * 7 + ["mix"]
    node = onnx.helper.make_node(
        "QMoE", inputs, ["y"], domain="com.microsoft", k=TOP_K, expert_weight_bits=4, block_size=GROUP,
        activation_type="swiglu", swiglu_fusion=1, activation_alpha=1.0, activation_beta=0.0,
        normalize_routing_weights=0, accuracy_level=accuracy_level)
    experts = packed[0].shape[0]
    value = lambda name, columns: onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None, columns])
    graph = onnx.helper.make_graph(
        [node], "layer", [value("x", HIDDEN), value("probabilities", experts), value("mix", experts)],
        [value("y", HIDDEN)], [onnx.numpy_helper.from_array(a, n) for a, n in zip(arrays, names)])
    model = onnx.helper.make_model(graph, ir_version=10, opset_imports=[
        onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("com.microsoft", 1)])
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def dequantised(packed, scales, expert):
    values = np.stack([packed[expert] & 15, packed[expert] >> 4], -1).reshape(packed.shape[1], -1).astype(np.float64)
    return (values - 8) * np.repeat(scales[expert].astype(np.float64), GROUP, axis=1)


def reference(packed, scales, hidden, ids, weights):
    out = np.zeros(hidden.shape)
    for expert in np.unique(ids):
        tokens, routes = np.nonzero(ids == expert)
        sums = dequantised(packed[0], scales[0], expert) @ hidden[tokens].astype(np.float64).T
        gate, up = sums[0::2], sums[1::2]
        down = dequantised(packed[1], scales[1], expert) @ (gate / (1 + np.exp(-gate)) * up)
        out[tokens] += weights[tokens, routes][:, None].astype(np.float64) * down.T
    return out


class Stoker:
    def __init__(self, program, weights, threads, kernel):
        command = [program, weights, str(threads)] + ([kernel] if kernel else [])
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.kernel = self.process.stdout.readline().strip()

    def run(self, call, out="-"):
        self.process.stdin.write(f"{call} {out}\n")
        self.process.stdin.flush()
        return np.array(self.process.stdout.readline().split(), float)


def timed(run):
    start = time.perf_counter(), time.process_time()
    run()
    return np.array([time.perf_counter() - start[0], time.process_time() - start[1]])


def interval(values):
    """Median and the 95% interval of a bootstrap."""
    random = np.random.default_rng(0)
    medians = np.median(random.choice(values, (2000, len(values))), axis=1)
    return [round(float(v), 4) for v in (np.median(values), *np.percentile(medians, (2.5, 97.5)))]


def cpu_name():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def measure(tokens, arguments, contenders, stoker, weights, folder, random):
    """Rows of one number of tokens. contenders: name → session."""
    packed, scales = weights
    times = {name: [] for name in (*contenders, "stoker")}
    distinct, errors = [], {}
    for pair in range(-2, arguments.pairs):  # two calls that do not count
        feed, ids, mix = make_call(tokens, arguments.experts, random)
        call = os.path.join(folder, f"call_{tokens}_{pair}")
        write_call(call, feed, ids, mix)
        runs = {name: (lambda s=s: timed(lambda: s.run(None, feed))) for name, s in contenders.items()}
        runs["stoker"] = lambda: stoker.run(call)
        found = {name: np.zeros(2) for name in runs}
        for name in (*runs, *reversed(runs)):
            found[name] += runs[name]() / 2
        if pair == -2:
            exact = reference(packed, scales, feed["x"], ids, mix)
            out = os.path.join(folder, "out")
            stoker.run(call, out)
            stoker.run(call)  # answered only after the file is whole
            outputs = {name: s.run(None, feed)[0] for name, s in contenders.items()}
            outputs["stoker"] = np.fromfile(out, np.float32).reshape(exact.shape)
            errors = {name: float(np.sqrt(((y - exact) ** 2).sum() / (exact**2).sum())) for name, y in outputs.items()}
        if pair >= 0:
            distinct.append(len(np.unique(ids)))
            for name in found:
                times[name].append(found[name])
    expert_bytes = (packed[0][0].nbytes + packed[1][0].nbytes + scales[0][0].nbytes + scales[1][0].nbytes)
    own = np.array(times["stoker"])
    for name, found in times.items():
        both = np.array(found)  # [pair, wall and processor seconds]
        seconds = both[:, 0]
        ratio, low, high = interval(own[:, 0] / seconds)
        cpu_ratio, cpu_low, cpu_high = interval(own[:, 1] / both[:, 1])
        yield {
            "op": "moe_layer", "kernel": name, "stoker_kernel": stoker.kernel, "cpu": cpu_name(),
            "shape": f"E{arguments.experts} H{HIDDEN} I{INTERMEDIATE} k{TOP_K} g{GROUP} fp16 scales",
            "tokens": tokens, "threads": arguments.threads, "pairs": len(seconds),
            "ms_median": round(float(np.median(seconds)) * 1e3, 4), "ms_min": round(float(seconds.min()) * 1e3, 4),
            "ms_max": round(float(seconds.max()) * 1e3, 4),
            "cpu_ms_median": round(float(np.median(both[:, 1])) * 1e3, 4),
            "stoker_over_this": ratio, "ci95": [low, high], "cpu_stoker_over_this": cpu_ratio,
            "cpu_ci95": [cpu_low, cpu_high], "fastest_over_fastest": round(float(own[:, 0].min() / seconds.min()), 4),
            "relative_rms_error": float(f"{errors[name]:.3g}"), "distinct_experts": round(float(np.mean(distinct)), 2),
            "fastest_gbs": round(float(np.mean(distinct)) * expert_bytes / float(seconds.min()) * 1e-9, 2),
            "load_average": round(os.getloadavg()[0], 1)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", default="bazel-bin/offload/cpu/layer_bench")
    parser.add_argument("--experts", type=int, default=128)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--tokens", default="1,4,16")
    parser.add_argument("--kernel", default="", help="a row of offload/cpu/kernels.inc; default: what would be picked")
    parser.add_argument("--out", default="", help="rows are appended to this file too")
    arguments = parser.parse_args()
    random = np.random.default_rng(1)
    packed, scales = make_weights(arguments.experts, random)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "weights")
        with open(path, "wb") as file:
            np.array([arguments.experts, HIDDEN, INTERMEDIATE, GROUP], np.int32).tofile(file)
            for arrays in (packed, scales):
                for expert in range(arguments.experts):
                    arrays[0][expert].tofile(file)
                    arrays[1][expert].tofile(file)
        version = onnxruntime.__version__
        contenders = {
            f"onnxruntime {version} int8": session(packed, scales, arguments.threads, 4),
            f"onnxruntime {version} fp32": session(packed, scales, arguments.threads, 0)}
        stoker = Stoker(arguments.program, path, arguments.threads, arguments.kernel)
        for tokens in map(int, arguments.tokens.split(",")):
            for row in measure(tokens, arguments, contenders, stoker, (packed, scales), folder, random):
                line = json.dumps(row)
                print(line, flush=True)
                if arguments.out:
                    with open(arguments.out, "a", encoding="utf-8") as file:
                        file.write(line + "\n")
        stoker.process.stdin.close()
        stoker.process.wait(timeout=60)


if __name__ == "__main__":
    main()
