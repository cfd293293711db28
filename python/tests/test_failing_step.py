"""A step that fails while another rank goes on: on CPU ranks, and on a GPU in the middle of a CUDA graph's replays.

What the plug-in's model does in each step: launches (in a graph), waits for them, checks. A step whose check raises
gives no token; every step before it was right.
"""

import functools
import time

import pytest
import torch

import reference
import stoker
from rank_processes import run
from stoker.vllm import tail as tails

GPU = torch.cuda.is_available()
pytestmark = pytest.mark.usefixtures("gpu_lock") if GPU else []
TOKENS, HIDDEN, STEPS, FAILS_AT = 5, 512, 12, 6


class Steps:
    """Three launches a step, into the same outputs; on a GPU captured once."""

    def __init__(self, communicator, rank, world, device):
        self.everyone = [reference.make_inputs(TOKENS, HIDDEN, 4, r, seed=1) for r in range(world)]
        self.inputs = {name: tensor.to(device) for name, tensor in self.everyone[rank].items()}
        self.communicator, self.graph = communicator, None
        self.launch()
        if device != "cpu":
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.launch()

    def launch(self):
        for site in range(3):
            self.outputs = torch.ops.stoker.moe_finalize_allreduce_rmsnorm(
                self.inputs["rows"], self.inputs["indices"], self.inputs["weights"], self.inputs["gamma"],
                self.communicator.handle, shared=self.inputs["shared"], residual=self.inputs["residual"], eps=1e-5,
                routed_scaling_factor=2.5, site=site)

    def __call__(self):
        if self.graph is None:
            self.launch()
        else:
            self.graph.replay()
            torch.cuda.current_stream().synchronize()

    def right(self):
        wanted = reference.expected(self.everyone, 2.5, 1e-5)
        return all(reference.agree(mine.cpu(), theirs, fraction=0.05) for mine, theirs in zip(self.outputs, wanted))

    def nothing(self):
        return all(bool(torch.isnan(output).all()) for output in self.outputs)


def _serve(rank, world, device, how):
    with stoker.Communicator.from_process_group(device=device, max_tokens=16, hidden_max=HIDDEN, name="failing",
                                                timeout=30) as communicator:
        tail = tails.Tail(None, 16, HIDDEN, communicator)
        steps = Steps(communicator, rank, world, device)
        communicator.set_timeout(3)
        for step in range(STEPS):
            try:
                if rank == 1 and step == FAILS_AT and how == "stays away":
                    end = time.monotonic() + 60
                    while time.monotonic() < end:  # it launches no more, and learns of the report as a watcher does
                        tail.check()
                        time.sleep(0.02)
                    return "no report came"
                if rank == 1 and step == FAILS_AT:
                    communicator.abort()
                steps()
                tail.check()
            except RuntimeError as error:
                given, words = steps.right() or steps.nothing(), str(error)
                break
            assert steps.right(), f"step {step}"
        else:
            return "no step failed"
        assert given, "a failed step left neither right outputs nor NaN"
        try:
            steps()  # what was captured is replayed once more: nothing but NaN
            refused = False
        except RuntimeError:
            refused = True
        assert refused if steps.graph is None else steps.nothing()
        return step, words


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=pytest.mark.skipif(not GPU, reason="no GPU"))])
@pytest.mark.parametrize("how", ["aborts", "stays away"])
def test_no_step_after_a_failure_gives_outputs_and_both_ranks_say_why(device, how):
    results = run(2, functools.partial(_serve, device=device, how=how), deadline=150,
                  start="fork" if device == "cpu" else "spawn")
    assert all(isinstance(result, tuple) for result in results), results
    (first, said), (second, also_said) = results
    # The other rank may be a step behind when the report comes.
    assert second == FAILS_AT and FAILS_AT - 1 <= first <= FAILS_AT, results
    for words in (said, also_said):
        assert words.startswith("stoker: rank ") and "rank 1" in words, results
