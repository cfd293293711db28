"""What an installed package must do on any machine, run by the interpreter that it was installed for: it is imported
without a GPU, passes opcheck, and two CPU ranks agree. Prints a line of JSON. No pytest: other environments run it."""

import json
import os
import sys
import tempfile

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["GLOO_SOCKET_IFNAME"] = "lo"

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402

import stoker  # noqa: E402

TOKENS, HIDDEN, TOP_K = 3, 64, 2


def inputs(rank):
    generator = torch.Generator().manual_seed(rank)
    rows = torch.randn(TOKENS * TOP_K, HIDDEN, generator=generator).bfloat16()
    indices = torch.randperm(TOKENS * TOP_K, generator=generator).to(torch.int32).view(TOKENS, TOP_K)
    weights = torch.rand(TOKENS, TOP_K, generator=generator).bfloat16()
    return rows, indices, weights


def check_op():
    with stoker.Communicator.from_process_group(device="cpu", max_tokens=8, hidden_max=HIDDEN) as communicator:
        torch.library.opcheck(torch.ops.stoker.moe_finalize_allreduce_rmsnorm.default,
                              (*inputs(0), torch.ones(HIDDEN, dtype=torch.bfloat16), communicator.handle))


def rank_main(rank, world, store, results):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    with stoker.Communicator.from_process_group(device="cpu", max_tokens=8, hidden_max=HIDDEN,
                                                timeout=30) as communicator:
        gamma = torch.ones(HIDDEN, dtype=torch.bfloat16)
        total, _ = torch.ops.stoker.moe_finalize_allreduce_rmsnorm(*inputs(rank), gamma, communicator.handle)
        expected = torch.zeros(TOKENS, HIDDEN)
        for peer in range(world):
            rows, indices, weights = inputs(peer)
            expected += torch.einsum("tkh,tk->th", rows.float()[indices.long()], weights.float())
        # A rounding of each rank's partial and one of the sum.
        close = torch.allclose(total.float(), expected, rtol=2**-7, atol=2**-6)
        results.put((rank, close, total.view(torch.int16).tolist()))


def check_ranks(world=2):
    context = mp.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        processes = [context.Process(target=rank_main, args=(rank, world, folder + "/store", results))
                     for rank in range(world)]
        for process in processes:
            process.start()
        try:
            got = [results.get(timeout=120) for _ in range(world)]  # queue.Empty: a rank did not return
        finally:
            for process in processes:
                process.join(20)
                if process.is_alive():
                    process.kill()
                    process.join(10)
    assert all(close for _, close, _ in got), "the sum over ranks is wrong"
    assert got[0][2] == got[1][2], "the ranks' bits differ"


if __name__ == "__main__":
    check_op()
    check_ranks()
    print(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "python": sys.version.split()[0],
                      "stoker": stoker.__file__}))
