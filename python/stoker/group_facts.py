"""Whether the ranks of a process group can share memory: asked before a workspace is made.

Every rank tells what it knows, and every rank judges all that was told, so that all come to the same verdict.
"""

import dataclasses
import pathlib

import torch

WORLD_MAX = 8


@dataclasses.dataclass(frozen=True)
class RankFacts:
    """host: of the running kernel, the same in all its containers. gpu: the UUID of the rank's GPU, None on the CPU.
    peers: for the GPUs that the rank sees, by UUID, whether its own can access their memory."""

    host: str
    gpu: str | None = None
    peers: dict[str, bool] = dataclasses.field(default_factory=dict)


def host() -> str:
    return pathlib.Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def of_this_rank(ordinal: int) -> RankFacts:
    """ordinal: the CUDA device, or -1 on the CPU."""
    if ordinal < 0:
        return RankFacts(host())
    uuids = [str(torch.cuda.get_device_properties(other).uuid) for other in range(torch.cuda.device_count())]
    peers = {uuid: other == ordinal or torch.cuda.can_device_access_peer(ordinal, other)
             for other, uuid in enumerate(uuids)}
    return RankFacts(host(), uuids[ordinal], peers)


def world_refusal(world: int) -> tuple[str, str] | None:
    """(reason, message) where a group of `world` ranks is refused, else None. Needs no exchange."""
    if world <= WORLD_MAX:
        return None
    return "world_size", f"{world} ranks: 1 to {WORLD_MAX} are supported; use the group's own all-reduce"


def refusal(ranks: list[RankFacts]) -> tuple[str, str] | None:
    """(reason, message) where these ranks are refused, else None."""
    hosts = {}
    for rank, facts in enumerate(ranks):
        hosts.setdefault(facts.host, []).append(rank)
    if len(hosts) > 1:
        return "hosts", (f"the ranks are on {len(hosts)} hosts ({'; '.join(str(on) for on in hosts.values())}): "
                         "they must share the memory of one; use the group's own all-reduce")
    for rank, facts in enumerate(ranks):
        for peer, theirs in enumerate(ranks):
            # A GPU that the rank does not see is judged when its memory is mapped.
            if theirs.gpu is not None and not facts.peers.get(theirs.gpu, True):
                return "peer_access", (f"the GPU of rank {rank} ({facts.gpu}) has no access to that of rank {peer} "
                                       f"({theirs.gpu}); see `nvidia-smi topo -p2p w`; use the group's own all-reduce")
    return None
