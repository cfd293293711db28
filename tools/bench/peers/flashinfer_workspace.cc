#include "tools/bench/peers/flashinfer_workspace.h"

#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "base/cuda_status.h"
#include "base/status.h"

namespace stoker::bench {

absl::StatusOr<void*> FlashInferWorkspace::Allocate(int64_t bytes) {
  void* buffer = nullptr;
  STOKER_CUDA(cudaMalloc(&buffer, bytes));
  buffers_.push_back(buffer);
  STOKER_CUDA(cudaMemset(buffer, 0, bytes));
  return buffer;
}

absl::StatusOr<std::unique_ptr<FlashInferWorkspace>> FlashInferWorkspace::Create(int world,
                                                                                 int tokens_max,
                                                                                 int hidden) {
  if (world != 2 && world != 4 && world != 8) {
    return absl::UnimplementedError(absl::StrCat("FlashInfer: world ", world, "; 2, 4 or 8"));
  }
  auto result = std::unique_ptr<FlashInferWorkspace>(new FlashInferWorkspace());
  constexpr int kBarrierFlags = 256;
  const int64_t arena = int64_t{2} * world * tokens_max * hidden;
  // Negative zeros of a 16-bit type: 0x8000 in each half.
  const std::vector<uint16_t> empty(static_cast<size_t>(3 * arena / 2), 0x8000);
  std::vector<void*> arenas(world), flags(world), data(world);
  for (int rank = 0; rank < world; ++rank) {
    STOKER_ASSIGN_OR_RETURN(data[rank], result->Allocate(arena));
    STOKER_ASSIGN_OR_RETURN(flags[rank], result->Allocate(kBarrierFlags * int64_t{4} * world));
    STOKER_ASSIGN_OR_RETURN(arenas[rank], result->Allocate(3 * arena));
    STOKER_CUDA(cudaMemcpy(arenas[rank], empty.data(), 3 * arena, cudaMemcpyHostToDevice));
  }
  for (int rank = 0; rank < world; ++rank) {
    const int32_t counters[5] = {0, 0, 0, static_cast<int32_t>(arena), 0};
    STOKER_ASSIGN_OR_RETURN(void* block, result->Allocate(sizeof(counters)));
    STOKER_CUDA(cudaMemcpy(block, counters, sizeof(counters), cudaMemcpyHostToDevice));
    std::vector<void*> table(3 * world + 1);
    for (int r = 0; r < world; ++r) {
      table[r] = data[r];
      table[world + r] = flags[r];
      table[2 * world + r] = arenas[r];
    }
    table[3 * world] = block;
    const int64_t bytes = static_cast<int64_t>(table.size() * sizeof(void*));
    STOKER_ASSIGN_OR_RETURN(void* device_table, result->Allocate(bytes));
    STOKER_CUDA(cudaMemcpy(device_table, table.data(), bytes, cudaMemcpyHostToDevice));
    result->tables_.push_back(static_cast<void**>(device_table));
  }
  STOKER_CUDA(cudaDeviceSynchronize());
  return result;
}

FlashInferWorkspace::~FlashInferWorkspace() {
  for (void* buffer : buffers_) cudaFree(buffer);
}

}  // namespace stoker::bench
