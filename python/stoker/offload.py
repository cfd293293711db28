"""OffloadEngine: the experts of a checkpoint, computed on the CPU through a cache of bounded size."""

import ctypes
import os

from stoker import _library
from stoker.communicator import StokerError

_MESSAGE_BYTES = 4096


class _Options(ctypes.Structure):  # StokerOffloadOptions of ops/offload_api.h
    _fields_ = [("checkpoint", ctypes.c_char_p), ("cache_bytes", ctypes.c_int64), ("rank", ctypes.c_int32),
                ("world_size", ctypes.c_int32), ("compute_threads", ctypes.c_int32), ("io_threads", ctypes.c_int32),
                ("timeout_ms", ctypes.c_int64), ("record_groups", ctypes.c_int64)]


class _Stats(ctypes.Structure):  # StokerOffloadStats
    _fields_ = [(name, ctypes.c_int64) for name in
                ("hits", "misses", "evictions", "skipped_routes", "bytes_read", "failed_calls", "slots")]


class OffloadEngine:
    """The experts of a compressed-tensors INT4 checkpoint, read from where they lie.

    `handle` is what torch.ops.stoker.offload_experts takes. The op returns, for CPU tensors hidden [tokens, hidden]
    (bfloat16, float16 or float32, at most 4096 tokens), topk_ids [tokens, top_k] (int32 or int64; ids that are
    negative or no expert are skipped and counted) and topk_weights [tokens, top_k] (float32 or hidden's dtype), the
    float32 sum over the experts of this rank in ascending expert id, times routed_scaling_factor. It is final: pass it
    as `cold` to the fused op, which adds it outside its own routed_scaling_factor. The same bits whatever the cache
    holds, whatever the number of threads. `layer` is the number that the checkpoint gives the layer.

    checkpoint: its folder. cache_bytes: the memory for experts, at least three of them. rank, world_size: a rank owns
    whole experts; partials of all ranks add up to the layer's result. compute_threads: 0 takes one for each CPU that
    affinity and control group allow. timeout: seconds a call may take (None: 60).
    record_groups: keep the routing of so many tokens at a layer for save_trace.
    Raises StokerError naming what is wrong and what would be right.

    Threads: calls from several threads take turns. A child made by fork gets an error. Close it, or use it as a
    context manager; a call that runs while it is closed ends normally.
    """

    def __init__(self, checkpoint, *, cache_bytes, rank=0, world_size=1, compute_threads=0, io_threads=0, timeout=None,
                 record_groups=0):
        self._library = _library.cpu_library()
        self.handle = 0
        options = _Options(checkpoint=os.fsencode(checkpoint), cache_bytes=cache_bytes, rank=rank,
                           world_size=world_size, compute_threads=compute_threads, io_threads=io_threads,
                           timeout_ms=0 if timeout is None else max(1, int(timeout * 1000)),
                           record_groups=record_groups)
        handle = ctypes.c_int64(0)
        self._call(self._library.stoker_offload_create, ctypes.byref(options), ctypes.byref(handle))
        self.handle = handle.value

    @staticmethod
    def _call(function, *arguments):
        error = ctypes.create_string_buffer(_MESSAGE_BYTES)
        if function(*arguments, error, ctypes.c_int64(_MESSAGE_BYTES)) != 0:
            raise StokerError("stoker: " + error.value.decode(errors="replace"))

    def stats(self) -> dict[str, int]:
        """Counts since the engine was made: hits, misses, evictions, skipped_routes, bytes_read, failed_calls; slots
        is the number of experts that fit."""
        stats = _Stats()
        self._call(self._library.stoker_offload_stats, ctypes.c_int64(self.handle), ctypes.byref(stats))
        return {name: getattr(stats, name) for name, _ in _Stats._fields_}

    def save_trace(self, path) -> None:
        """Writes the recorded routing as a CSV file, for `stoker offload replay`."""
        self._call(self._library.stoker_offload_save_trace, ctypes.c_int64(self.handle),
                   ctypes.c_char_p(os.fsencode(path)))

    def close(self) -> None:
        """Idempotent; ends the engine's threads once no call runs."""
        self._call(self._library.stoker_offload_close, ctypes.c_int64(self.handle))

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()
