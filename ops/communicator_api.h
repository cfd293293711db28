// What the Python package calls directly (ctypes), beside the registered ops: the life of
// communicators. Plain C, so that the package needs no CPython ABI. Both op libraries export the
// same names, each for its own kind of communicator; handles of one mean nothing to the other.
//
// Every function that can fail returns 0 for success and otherwise an absl::StatusCode, with the
// message written to `error` (at most `error_bytes`, always terminated). Threads: any function from
// any thread; launches and collective calls of one communicator are serialised, Health and Abort
// are not held up.
#pragma once

#include <stdint.h>

#define STOKER_EXPORT __attribute__((visibility("default")))

extern "C" {

// Gathers `bytes` of `message` from every rank. The callback writes rank r's message to
// gathered + r * slot_bytes and its length to lengths[r]; 0 for success, else the message of the
// failure is at `gathered` (terminated).
typedef int (*StokerGather)(void* user, const char* what, const char* message, int64_t bytes,
                            char* gathered, int64_t slot_bytes, int64_t* lengths,
                            int64_t timeout_ms);

struct StokerGroup {
  const char* name;
  int32_t rank;
  int32_t world;
  int32_t capacity;
  int32_t hidden_max;
  int32_t device;  // CUDA ordinal; ignored on the CPU
  int32_t sm_budget;
  // GroupOptions of comm/group.h; ignored on the CPU.
  int32_t nccl_tokens_max;
  int32_t nccl_optional;
  int64_t setup_timeout_ms;
  int64_t timeout_ms;  // 0: the default
  StokerGather gather;
  void* user;  // passed to every call of `gather`; must live until Close
};

STOKER_EXPORT int stoker_create(const StokerGroup* group, int64_t* handle, char* error,
                                int64_t error_bytes);
STOKER_EXPORT int stoker_health(int64_t handle, char* error, int64_t error_bytes);
STOKER_EXPORT int stoker_abort(int64_t handle, char* error, int64_t error_bytes);
STOKER_EXPORT int stoker_set_timeout(int64_t handle, int64_t timeout_ms, char* error,
                                     int64_t error_bytes);
STOKER_EXPORT int stoker_reset(int64_t handle, int64_t timeout_ms, char* error,
                               int64_t error_bytes);
STOKER_EXPORT int stoker_close(int64_t handle, int64_t timeout_ms, char* error,
                               int64_t error_bytes);
// One line about the group's plan.
STOKER_EXPORT int stoker_describe(int64_t handle, char* text, int64_t text_bytes);
}
