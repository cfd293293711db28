// What the Python package calls directly (ctypes) for the life of offload engines. Plain C; lives
// in libstoker_cpu.so. Every function that can fail returns 0 for success and otherwise an
// absl::StatusCode, with the message written to `error` (at most `error_bytes`, always terminated).
// Thread-safe. A handle is never reused.
#pragma once

#include <stdint.h>

#include "ops/communicator_api.h"

extern "C" {

struct StokerOffloadOptions {
  const char* checkpoint;  // folder
  int64_t cache_bytes;
  int32_t rank;
  int32_t world_size;
  int32_t compute_threads;  // 0: one for each CPU of the process
  int32_t io_threads;       // 0: the default
  int64_t timeout_ms;       // 0: the default
  int64_t
      record_groups;  // routing of so many tokens at a layer is kept for stoker_offload_save_trace
};

struct StokerOffloadStats {
  int64_t hits, misses, evictions, skipped_routes, bytes_read, failed_calls, slots;
};

STOKER_EXPORT int stoker_offload_create(const StokerOffloadOptions* options, int64_t* handle,
                                        char* error, int64_t error_bytes);
STOKER_EXPORT int stoker_offload_stats(int64_t handle, StokerOffloadStats* stats, char* error,
                                       int64_t error_bytes);
// Writes the recorded routing as a CSV file, for `stoker offload replay`.
STOKER_EXPORT int stoker_offload_save_trace(int64_t handle, const char* path, char* error,
                                            int64_t error_bytes);
// Waits for a call that runs. A handle that is not open is not an error.
STOKER_EXPORT int stoker_offload_close(int64_t handle, char* error, int64_t error_bytes);
}
