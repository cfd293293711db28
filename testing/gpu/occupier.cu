#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/cuda_status.h"
#include "base/status.h"
#include "testing/gpu/occupier.h"

namespace stoker::testing {
namespace {

__global__ void Occupy(uint32_t* running, const volatile uint32_t* released) {
  uint64_t start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  atomicAdd_system(running, 1u);
  do {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  } while (*released == 0u && now - start < 10'000'000'000ull);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Occupier>> Occupier::Start(int sms, absl::Duration timeout) {
  auto occupier = std::unique_ptr<Occupier>(new Occupier());
  STOKER_CUDA(cudaStreamCreateWithFlags(&occupier->stream_, cudaStreamNonBlocking));
  void* words = nullptr;
  STOKER_CUDA(cudaHostAlloc(&words, sizeof(Words), cudaHostAllocMapped));
  occupier->words_ = static_cast<Words*>(words);
  occupier->words_->running = 0;
  occupier->words_->released = 0;
  int shared_memory = 0;
  STOKER_CUDA(cudaDeviceGetAttribute(&shared_memory, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0));
  STOKER_CUDA(
      cudaFuncSetAttribute(Occupy, cudaFuncAttributeMaxDynamicSharedMemorySize, shared_memory));
  auto* mapped = static_cast<Words*>(words);
  Occupy<<<sms, 1, shared_memory, occupier->stream_>>>(&mapped->running, &mapped->released);
  STOKER_CUDA(cudaGetLastError());
  const absl::Time deadline = absl::Now() + timeout;
  while (occupier->words_->running < static_cast<uint32_t>(sms)) {
    if (absl::Now() > deadline) {
      return absl::DeadlineExceededError(absl::StrCat("occupier: ", occupier->words_->running,
                                                      " of ", sms, " SMs held after ",
                                                      absl::FormatDuration(timeout)));
    }
  }
  return occupier;
}

Occupier::~Occupier() {
  if (words_ == nullptr) return;
  words_->released = 1;
  cudaStreamSynchronize(stream_);
  cudaStreamDestroy(stream_);
  cudaFreeHost(const_cast<Words*>(words_));
}

bool Occupier::StillRuns() const { return cudaStreamQuery(stream_) == cudaErrorNotReady; }

}  // namespace stoker::testing
