"""Decoder layers of a mixture-of-experts model with vLLM's call pattern, two ranks on one device: parity and time.

    python3 layer_mock.py [--results=FILE] [--device=cuda] [--layers=4] [--tokens=4,12,28] [--rounds=30]
                          [--parts=eager,graph,compiled,time] [--small]

A layer is norm -> attention -> norm -> experts and shared expert, each norm over (x, residual). Three ways to join:
  deferred      the experts' rows, un-finalized, go to the next norm: one op for finalize, sum over ranks, add and norm;
                the same without rows behind attention (what the plug-in does where it catches rows);
  not_deferred  the experts' sum is a kernel of its own; sum over ranks, add and norm are one op;
  unfused       the experts' sum, the sum over ranks, and add and norm are kernels of their own.
NCCL refuses two ranks on one GPU, so the sum over ranks of `unfused` is Stoker's op too, whose norm is thrown away: its
time says nothing about NCCL. The helpers of the last two (experts' sum; add and norm) are compiled to one kernel each.

Parity: every layer's residual stream against a run in FP32 with the same routing. None may be further from it (mean
over tokens) than 1.05 times the unfused one, in each of: eager, torch.compile, and a CUDA graph replayed with new
inputs.
Time: CUDA-graph replays of a whole forward, the variants in turn, deferred twice (A/A). Both ranks share the GPU's SMs.
Prints one JSON line a result, as soon as it is known; exit status 1 where parity fails.
"""

import argparse
import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as nn_functional

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import stoker  # noqa: E402
from rank_processes import run  # noqa: E402

EPS = 1e-6
VARIANTS = ("deferred", "not_deferred", "unfused")


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Of a rank. The default has the shapes of Qwen3-30B-A3B over two ranks, and a shared expert."""

    hidden: int = 2048
    heads: int = 16
    head: int = 128
    context: int = 256
    experts: int = 128
    top_k: int = 8
    inner: int = 384
    shared_inner: int = 384


SMALL = Sizes(hidden=64, heads=2, head=16, context=8, experts=8, top_k=2, inner=16, shared_inner=16)


def rms_norm(x, gamma):
    wide = x.float()
    return (wide * torch.rsqrt((wide * wide).mean(-1, keepdim=True) + EPS) * gamma.float()).to(x.dtype)


def add_rms_norm(total, residual, gamma):
    stream = total + residual
    return rms_norm(stream, gamma), stream


def reduce_experts(rows, indices, weights, shared):
    return ((rows[indices].float() * weights.unsqueeze(-1)).sum(1) + shared.float()).to(rows.dtype)


class Model:
    """Weights of this rank and the forward pass in each variant. dtype float32: the oracle, summed by gloo."""

    def __init__(self, sizes, layers, rank, device, communicator):
        self.sizes, self.communicator, self.device = sizes, communicator, device
        self.layers = [self._weights(layer, rank) for layer in range(layers)]
        self.first = self._draw(1, sizes.hidden, fan=1, seed=5).squeeze(0).abs()
        self.reduce_experts, self.add_rms_norm = reduce_experts, add_rms_norm

    def _draw(self, *shape, fan, seed):
        generator = torch.Generator(self.device).manual_seed(seed)
        return (torch.randn(*shape, generator=generator, device=self.device) / fan ** 0.5).bfloat16()

    def _weights(self, layer, rank):
        s, own = self.sizes, 100 * layer + 50 * (rank + 1)
        width = s.heads * s.head

        def gamma(seed):
            return 1 + 0.1 * self._draw(s.hidden, fan=1, seed=100 * layer + seed)

        return dict(
            q=self._draw(width, s.hidden, fan=s.hidden, seed=own),
            keys=self._draw(s.heads, s.context, s.head, fan=1, seed=own + 1),
            values=self._draw(s.heads, s.context, s.head, fan=1, seed=own + 2),
            o=self._draw(s.hidden, width, fan=width, seed=own + 3),
            router=self._draw(s.experts, s.hidden, fan=s.hidden, seed=100 * layer + 1),  # the same on all ranks
            up=self._draw(s.experts, 2 * s.inner, s.hidden, fan=s.hidden, seed=own + 4),
            down=self._draw(s.experts, s.hidden, s.inner, fan=s.inner, seed=own + 5),
            shared_up=self._draw(2 * s.shared_inner, s.hidden, fan=s.hidden, seed=own + 6),
            shared_down=self._draw(s.hidden, s.shared_inner, fan=s.shared_inner, seed=own + 7),
            after_attention=gamma(2), after_experts=gamma(3))

    def attention(self, w, x):
        s = self.sizes
        query = nn_functional.linear(x, w["q"].to(x.dtype)).view(-1, s.heads, 1, s.head)
        keys, values = (w[name].to(x.dtype).expand(len(x), -1, -1, -1) for name in ("keys", "values"))
        out = nn_functional.scaled_dot_product_attention(query, keys, values)
        return nn_functional.linear(out.reshape(len(x), -1), w["o"].to(x.dtype))

    def route(self, w, x, ids):
        """ids [tokens, top_k] and their weights, FP32; ids are given where the routing is."""
        scores = torch.softmax(nn_functional.linear(x, w["router"].to(x.dtype)).float(), -1)
        ids = torch.topk(scores, self.sizes.top_k, sorted=False).indices if ids is None else ids
        weights = scores.gather(1, ids)
        return ids, weights / weights.sum(-1, keepdim=True)

    def rows(self, w, x, ids):
        """The experts' rows, un-weighted and in the order of the experts, and where each route's row is."""
        flat = ids.flatten()
        order = torch.argsort(flat, stable=True)
        where = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        ends = (flat.unsqueeze(1) == torch.arange(self.sizes.experts, device=x.device)).sum(0).cumsum(0)
        gate_up = torch._grouped_mm(x[order // ids.shape[1]], w["up"].transpose(1, 2), offs=ends.int())
        gate, up = gate_up.chunk(2, -1)
        rows = torch._grouped_mm(nn_functional.silu(gate) * up, w["down"].transpose(1, 2), offs=ends.int())
        return rows, where.view(ids.shape).int()

    def shared(self, w, x):
        gate, up = nn_functional.linear(x, w["shared_up"].to(x.dtype)).chunk(2, -1)
        return nn_functional.linear(nn_functional.silu(gate) * up, w["shared_down"].to(x.dtype))

    def forward(self, embedded, variant, routing=None):
        """(norm_out, the residual stream after each norm but the first). routing: ids for each layer, or None."""
        residual, x, streams = embedded, rms_norm(embedded, self.first), []
        for layer, w in enumerate(self.layers):
            x, residual = self.join(self.attention(w, x), residual, w["after_attention"], variant, 2 * layer + 1)
            streams.append(residual)
            ids, weights = self.route(w, x, None if routing is None else routing[layer])
            rows, where = self.rows(w, x, ids)
            shared, gamma, site = self.shared(w, x), w["after_experts"], 2 * layer + 2
            if variant == "deferred":
                residual, x = torch.ops.stoker.moe_finalize_allreduce_rmsnorm(
                    rows, where, weights, gamma, self.communicator.handle, shared=shared, residual=residual, eps=EPS,
                    site=site)
            else:
                x, residual = self.join(self.reduce_experts(rows, where, weights, shared), residual, gamma, variant,
                                        site)
            streams.append(residual)
        return x, streams

    def join(self, partial, residual, gamma, variant, site):
        if variant == "unfused":
            total, _ = torch.ops.stoker.allreduce_rmsnorm(partial, gamma, self.communicator.handle, site=site)
            return self.add_rms_norm(total, residual, gamma)
        stream, x = torch.ops.stoker.allreduce_rmsnorm(partial, gamma, self.communicator.handle, residual=residual,
                                                       eps=EPS, site=site)
        return x, stream

    def oracle(self, embedded):
        """The same in FP32 with sums over ranks by gloo: (routing, streams)."""
        residual = embedded.float()
        x, routing, streams = rms_norm(residual, self.first), [], []
        for w in self.layers:
            residual = residual + over_ranks(self.attention(w, x))
            streams.append(residual)
            x = rms_norm(residual, w["after_attention"])
            ids, weights = self.route(w, x, None)
            partial = self.shared(w, x)
            for k in range(self.sizes.top_k):
                up, down = w["up"][ids[:, k]].float(), w["down"][ids[:, k]].float()
                gate, up = torch.bmm(up, x.unsqueeze(-1)).squeeze(-1).chunk(2, -1)
                row = torch.bmm(down, (nn_functional.silu(gate) * up).unsqueeze(-1)).squeeze(-1)
                partial = partial + weights[:, k: k + 1] * row
            residual = residual + over_ranks(partial)
            streams.append(residual)
            routing.append(ids)
            x = rms_norm(residual, w["after_experts"])
        return routing, streams


def over_ranks(partial):
    total = partial.cpu()
    dist.all_reduce(total)
    return total.to(partial.device)


def distances(streams, exact):
    """Mean over tokens of the relative distance, for each place where the stream is summed."""
    return [((a.float() - b).norm(dim=-1) / b.norm(dim=-1)).mean().item() for a, b in zip(streams, exact)]


class Captured:
    """A CUDA graph of a forward pass with its own input buffers."""

    def __init__(self, model, variant, embedded, routing=None):
        self.embedded = embedded.clone()
        self.routing = None if routing is None else [ids.clone() for ids in routing]
        for _ in range(2):
            model.forward(self.embedded, variant, self.routing)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.outputs = model.forward(self.embedded, variant, self.routing)

    def replay(self, embedded, _, routing):
        self.embedded.copy_(embedded)
        for buffer, ids in zip(self.routing, routing):
            buffer.copy_(ids)
        self.graph.replay()
        torch.cuda.synchronize()
        return self.outputs


def parity(model, tokens, parts):
    """Yields lines of parity for three inputs: each way of running against the unfused eager one."""
    inputs = [model._draw(tokens, model.sizes.hidden, fan=1, seed=900 + n) for n in range(3)]
    exact = [model.oracle(embedded) for embedded in inputs]
    stock = [distances(model.forward(e, "unfused", r)[1], streams) for e, (r, streams) in zip(inputs, exact)]
    cuda = model.device.type == "cuda"
    ways = {"eager": lambda variant: model.forward,
            "graph": lambda variant: Captured(model, variant, inputs[0], exact[0][0]).replay,
            "compiled": lambda variant: torch.compile(model.forward, fullgraph=True, dynamic=False,
                                                      backend="inductor" if cuda else "aot_eager")}
    for way in ways:
        for variant in ("deferred", "not_deferred") if way in parts else ():
            forward = ways[way](variant)
            got = [distances(forward(e, variant, r)[1], streams) for e, (r, streams) in zip(inputs, exact)]
            worst = max(mine / theirs for a, b in zip(got, stock) for mine, theirs in zip(a, b))
            yield dict(what="parity", way=way, variant=variant, tokens=tokens, inputs=len(inputs),
                       places=len(stock[0]), distance=max(map(max, got)), unfused=max(map(max, stock)),
                       worst_ratio=round(worst, 4), passed=worst <= 1.05)


def timing(model, tokens, rounds):
    """Microseconds a forward by graph replay; a round runs every variant in turn, and deferred once more."""
    embedded = model._draw(tokens, model.sizes.hidden, fan=1, seed=950)
    graphs = {name: Captured(model, name.removesuffix("_again"), embedded).graph
              for name in (*VARIANTS, "deferred_again")}
    took, repeats = {name: [] for name in graphs}, 20
    for graph in graphs.values():
        graph.replay()
    for number in range(rounds):
        names = list(graphs)[number % 4:] + list(graphs)[:number % 4]
        for name in names:
            dist.barrier()
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(repeats):
                graphs[name].replay()
            end.record()
            torch.cuda.synchronize()
            took[name].append(start.elapsed_time(end) * 1000 / repeats)
    line = dict(what="time", tokens=tokens, layers=len(model.layers), rounds=rounds, replays=repeats)
    for name, values in took.items():
        low, _, high = statistics.quantiles(values, n=4)
        line[name] = dict(median_us=round(statistics.median(values), 2), quartiles_us=[round(low, 2), round(high, 2)])
    base = [value for value in took["deferred"]]
    for name in ("not_deferred", "unfused", "deferred_again"):
        line[f"{name}/deferred"] = round(statistics.median(a / b for a, b in zip(took[name], base)), 4)
    return line


def rank_main(options, rank, world):
    cuda = options.device == "cuda"
    device = torch.device("cuda:0" if cuda else "cpu")
    sizes = SMALL if options.small else Sizes()
    tokens, parts, lines = [int(text) for text in options.tokens.split(",")], options.parts.split(","), []

    def say(line):
        lines.append(dict(line, rank=rank, device=torch.cuda.get_device_name() if cuda else "CPU",
                          torch=torch.__version__, mps="CUDA_MPS_PIPE_DIRECTORY" in os.environ))
        text = json.dumps(lines[-1]) + "\n"
        print(text, end="", flush=True)
        if options.results:
            with open(options.results, "a", encoding="utf-8") as file:
                file.write(text)

    with contextlib.ExitStack() as stack:
        communicator = stack.enter_context(stoker.Communicator.from_process_group(
            device=device, max_tokens=max(tokens), hidden_max=sizes.hidden, name="layer-mock", timeout=60))
        stack.enter_context(torch.no_grad())
        model = Model(sizes, options.layers, rank, device, communicator)
        for line in parity(model, tokens[len(tokens) // 2], parts):
            say(line)
        if "time" in parts:
            model.reduce_experts, model.add_rms_norm = (torch.compile(f, dynamic=False)
                                                        for f in (reduce_experts, add_rms_norm))
            for count in tokens:
                say(timing(model, count, options.rounds))
        assert communicator.health() is None, communicator.health()
        dist.barrier()
    return lines


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", help="append the JSON lines to this file")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--tokens", default="4,12,28")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--parts", default="eager,graph,compiled,time")
    parser.add_argument("--small", action="store_true", help="small sizes, for a machine without a GPU")
    options = parser.parse_args(arguments)
    start = time.monotonic()
    try:
        results = run(2, functools.partial(rank_main, options), deadline=170,
                      start="spawn" if options.device == "cuda" else "fork")
    except AssertionError as error:
        results = [str(error)]
    failed = [result for result in results if isinstance(result, str)]
    if failed:
        print(f"layer_mock FAILED: {'; '.join(failed)}")
        return 1
    passed = [line["passed"] for lines in results for line in lines if line["what"] == "parity"]
    print(f"layer_mock: {sum(passed)} of {len(passed)} parities passed in {time.monotonic() - start:.0f} s")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
