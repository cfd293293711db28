"""Communicator: a rank's member of a group, made from a torch process group."""

import ctypes
import datetime
import logging

import torch
import torch.distributed as dist

from stoker import _library, group_facts

_log = logging.getLogger("stoker")
_MESSAGE_BYTES = 4096
_NCCL_MAX_TOKENS = 2048

_Gather = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_char),
                           ctypes.c_int64, ctypes.POINTER(ctypes.c_char), ctypes.c_int64,
                           ctypes.POINTER(ctypes.c_int64), ctypes.c_int64)


class StokerError(RuntimeError):
    """What the library reports; the message names the value or the rank, the limit and the remedy."""


class UnsupportedGroupError(StokerError):
    """The group cannot use Stoker, whatever its options: all its ranks get this error, and nothing was made.

    reason: "world_size" (more than 8 ranks), "hosts" (more than one), or "peer_access" (GPUs that cannot access each
    other's memory). Its collectives are then better left to the process group.
    """

    def __init__(self, reason, message):
        super().__init__("stoker: " + message)
        self.reason = reason


class _Group(ctypes.Structure):  # StokerGroup of ops/communicator_api.h
    _fields_ = [("name", ctypes.c_char_p), ("rank", ctypes.c_int32), ("world", ctypes.c_int32),
                ("capacity", ctypes.c_int32), ("hidden_max", ctypes.c_int32), ("device", ctypes.c_int32),
                ("sm_budget", ctypes.c_int32),
                ("nccl_tokens_max", ctypes.c_int32), ("nccl_optional", ctypes.c_int32),
                ("setup_timeout_ms", ctypes.c_int64), ("timeout_ms", ctypes.c_int64),
                ("gather", _Gather), ("user", ctypes.c_void_p)]


def _gather_objects(group, mine, timeout_ms):
    """Everyone's `mine`, by rank. With gloo bounded, naming missing ranks; else within the group's own limit."""
    if group is None:
        return [mine]
    if dist.get_backend(group) == "gloo":
        dist.monitored_barrier(group, timeout=datetime.timedelta(milliseconds=max(1, timeout_ms)), wait_all_ranks=True)
    gathered = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, mine, group=group)
    return gathered


def _name_rank(group):
    """What stands in front of this rank's errors; nothing for a rank alone."""
    return "" if group is None else f"rank {dist.get_rank(group)} of {dist.get_world_size(group)}: "


_INT_MAX = 2**31 - 1


def _check_options(seconds, **whole):
    """What ctypes would cut or misread; the library checks the ranges."""
    for name, value in whole.items():
        if not isinstance(value, int) or isinstance(value, bool) or not -_INT_MAX <= value <= _INT_MAX:
            raise StokerError(f"stoker: {name}={value!r}: a whole number below 2^31 is needed")
    for name, value in seconds.items():
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0.001 <= value <= 86400:
            raise StokerError(f"stoker: {name}={value!r}: 0.001 to 86400 seconds (24 h) are supported")


def _refuse_unsupported(group, ordinal, setup_timeout):
    """Raises UnsupportedGroupError on all ranks, or on none."""
    refused = group_facts.world_refusal(1 if group is None else dist.get_world_size(group))
    if refused is None:
        try:
            everyone = _gather_objects(group, group_facts.of_this_rank(ordinal), int(setup_timeout * 1000))
        except RuntimeError as error:
            raise StokerError(f"stoker: {_name_rank(group)}agreeing on the plan: {error}") from error
        refused = group_facts.refusal(everyone)
    if refused is not None:
        raise UnsupportedGroupError(refused[0], _name_rank(group) + refused[1])


def _refuse_in_capture(device, what):
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        raise StokerError(f"stoker: {what} while a CUDA graph is captured; do it before the capture: a graph keeps the "
                          "workspace that it was captured with")


def _gather_over(group):
    """A gather callback over a torch process group, or over nothing for a single rank."""

    @_Gather
    def gather(_user, what, message, length, gathered, slot_bytes, lengths, timeout_ms):
        try:
            mine = ctypes.string_at(message, length)
            messages = _gather_objects(group, mine, timeout_ms)
            for rank, theirs in enumerate(messages):
                if len(theirs) > slot_bytes:
                    raise ValueError(f"rank {rank} sent {len(theirs)} bytes; at most {slot_bytes} fit")
                ctypes.memmove(ctypes.addressof(gathered.contents) + rank * slot_bytes, theirs, len(theirs))
                lengths[rank] = len(theirs)
            return 0
        except Exception as error:  # must not unwind through C
            text = f"{what.decode()}: {error}".encode()[: slot_bytes - 1] + b"\0"
            ctypes.memmove(gathered, text, len(text))
            return 1

    return gather


class Communicator:
    """A group of ranks that run Stoker's ops together.

    `handle` is what the ops take. It owns the workspace and must outlive every launch and every CUDA graph that
    captured one. Close it on all ranks (`close()`, or as a context manager).

    Threads: `health`, `abort`, `handle` and `repr` from any thread at any time; `set_timeout` from one thread at a
    time, also while a launch waits. Launches and `reset`/`close` are serialised per communicator; launches must also be
    ordered on the device (one stream). `from_process_group`, `reset` and `close` are collective: the same order on all
    ranks.
    """

    def __init__(self, library, handle, device, gather, rank=""):
        self._library = library
        self._rank = rank  # in front of its errors
        self._gather = gather  # the library calls it until it is closed
        self.handle = handle
        self.device = device

    @classmethod
    def from_process_group(cls, group=None, *, device="cuda", max_tokens=128, hidden_max=7168, name="stoker",
                           timeout=None, setup_timeout=60.0, sm_budget=0, nccl_max_tokens=None):
        """Collective over `group` (None: the default group, or a group of one where none is initialised).

        device: "cpu" or a CUDA device of this rank. max_tokens, hidden_max: the largest launch; the workspace has
        2 * world * max_tokens * hidden_max * 2 bytes. timeout: seconds a launch may wait (None: 600 for the first 100
        launches, then 20, or STOKER_TIMEOUT_MS). setup_timeout: seconds for each step of the set-up. sm_budget: SMs a
        launch may use (0: all, shared among the group's ranks on the device). nccl_max_tokens: calls of more tokens
        than max_tokens, up to this many, go through the NCCL of the process, with memory of its own; NCCL sums in
        another order and rounds on the way. None: 2048 where NCCL is there, max_tokens is below, and no two of several
        ranks share a GPU; a number: StokerError where NCCL cannot be had; 0: no NCCL. Without it such calls are errors.
        The workspace is made here, by cudaMalloc, and never grows: a captured graph keeps its addresses. Each call
        makes one of its own, so two engines in one process share nothing. Its bytes and the rest of the plan are logged
        (logger "stoker", INFO), and in the communicator's repr.
        Raises StokerError naming what is wrong or who is missing; UnsupportedGroupError on all ranks where the group is
        beyond what is supported; StokerError while a CUDA graph is captured.
        """
        limits = {"setup_timeout": setup_timeout} | ({} if timeout is None else {"timeout": timeout})
        _check_options(limits, max_tokens=max_tokens, hidden_max=hidden_max, sm_budget=sm_budget,
                       nccl_max_tokens=nccl_max_tokens or 0)
        device = torch.device(device)
        if device.type == "cpu":
            library, ordinal = _library.cpu_library(), -1
        elif device.type == "cuda":
            library = _library.cuda_library()
            if library is None:
                raise StokerError(f"stoker: {_library.no_cuda_reason()}; or use device='cpu'")
            if not torch.cuda.is_available():
                raise StokerError("stoker: no CUDA device is visible to torch")
            ordinal = torch.cuda.current_device() if device.index is None else device.index
        else:
            raise StokerError(f"stoker: device {device}: cpu and cuda are supported")
        if group is None and dist.is_available() and dist.is_initialized():
            group = dist.group.WORLD
        if group is not None and dist.get_backend(group) == "nccl" and device.type == "cpu":
            raise StokerError("stoker: a CPU communicator needs a process group that moves CPU objects (gloo)")
        _refuse_in_capture(device, "a communicator cannot be made")
        _refuse_unsupported(group, ordinal, setup_timeout)
        gather = _gather_over(group)
        options = _Group(name=name.encode(), rank=0 if group is None else dist.get_rank(group),
                         world=1 if group is None else dist.get_world_size(group), capacity=max_tokens,
                         hidden_max=hidden_max, device=ordinal, sm_budget=sm_budget,
                         nccl_tokens_max=_NCCL_MAX_TOKENS if nccl_max_tokens is None else nccl_max_tokens,
                         nccl_optional=nccl_max_tokens is None,
                         setup_timeout_ms=int(setup_timeout * 1000),
                         timeout_ms=0 if timeout is None else int(timeout * 1000), gather=gather, user=None)
        handle = ctypes.c_int64(0)
        communicator = cls(library, 0, device, gather, _name_rank(group))
        communicator._call(library.stoker_create, ctypes.byref(options), ctypes.byref(handle))
        communicator.handle = handle.value
        _log.info("%r", communicator)
        return communicator

    def _call(self, function, *arguments):
        error = ctypes.create_string_buffer(_MESSAGE_BYTES)
        if function(*arguments, error, ctypes.c_int64(_MESSAGE_BYTES)) != 0:
            raise StokerError(f"stoker: {self._rank}{error.value.decode(errors='replace')}")

    def health(self) -> str | None:
        """None, or the first failure that any rank of the group reported."""
        try:
            self._call(self._library.stoker_health, ctypes.c_int64(self.handle))
        except StokerError as error:
            return str(error)
        return None

    def abort(self) -> None:
        """Releases every launch of the group that waits, on all ranks; their outputs are NaN."""
        self._call(self._library.stoker_abort, ctypes.c_int64(self.handle))

    def set_timeout(self, seconds: float) -> None:
        """How long launches may wait from now on, captured graphs included."""
        _check_options({"seconds": seconds})
        self._call(self._library.stoker_set_timeout, ctypes.c_int64(self.handle), ctypes.c_int64(int(seconds * 1000)))

    def reset(self, timeout: float = 60.0) -> None:
        """Collective: brings a failed group back."""
        _check_options({"timeout": timeout})
        _refuse_in_capture(self.device, "a communicator cannot be reset")
        self._call(self._library.stoker_reset, ctypes.c_int64(self.handle), ctypes.c_int64(int(timeout * 1000)))

    def close(self, timeout: float = 60.0) -> None:
        """Collective, idempotent, bounded."""
        _check_options({"timeout": timeout})
        _refuse_in_capture(self.device, "a communicator cannot be closed")
        self._call(self._library.stoker_close, ctypes.c_int64(self.handle), ctypes.c_int64(int(timeout * 1000)))

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def __repr__(self):
        text = ctypes.create_string_buffer(_MESSAGE_BYTES)
        self._library.stoker_describe(ctypes.c_int64(self.handle), text, ctypes.c_int64(_MESSAGE_BYTES))
        return f"<stoker.Communicator {self.handle} on {self.device}: {text.value.decode(errors='replace')}>"
