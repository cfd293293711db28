#include "base/cuda_status.h"
#include "comm/cuda_environment.cuh"
#include "comm/mailbox.h"
#include "tools/bench/feeder.h"

namespace stoker::bench {
namespace {

using comm::Packet;

constexpr int kThreads = 1024;  // so that a CTA has an SM for itself
constexpr uint64_t kPatienceNs = 1'000'000'000;

__device__ void Deliver(const Feed& feed, uint32_t epoch) {
  comm::CudaEnvironment env;
  const comm::WorkspaceLayout& layout = feed.group.layout;
  void* own = feed.group.workspace[0];
  const int thread = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  const int threads = static_cast<int>(gridDim.x * kThreads);
  if (thread > 0 && thread < layout.world) {
    comm::Header* slot = comm::HeadersOf(own) + comm::WorkspaceLayout::header_index(epoch, thread);
    env.StoreHeader(&slot->tokens, comm::HeaderWord(epoch, static_cast<uint32_t>(feed.tokens)));
    env.StoreHeader(&slot->signature, comm::HeaderWord(epoch, feed.signature));
  }
  const uint32_t pair = kFedElement * 0x10001u;
  const Packet packet{{pair, pair, pair, pair}};
  const bool two_shot = feed.protocol == comm::Protocol::kTwoShot;
  for (int source = 1; source < layout.world; ++source) {
    Packet* first = comm::MailboxOf(own) + layout.packet_index(epoch, source, 0, 0);
    for (int i = thread; i < feed.tokens * feed.packets; i += threads) {
      const int token = i / feed.packets;
      const int owner = token % layout.world;
      // In two shots a rank gets rows of its own tokens, and the results of the others' owners.
      if (two_shot && owner != 0 && owner != source) continue;
      env.StorePacket(first + static_cast<int64_t>(token) * layout.stride + i % feed.packets,
                      packet);
    }
  }
  if (!two_shot) return;
  for (int token = thread; token < feed.tokens; token += threads) {
    if (token % layout.world == 0) continue;
    env.StoreHeader(comm::ScalesOf(own, layout) + layout.scale_index(epoch, token),
                    comm::HeaderWord(epoch, __float_as_uint(kFedScale)));
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    Feeder(const __grid_constant__ Feed feed, uint32_t epoch, int launches) {
  comm::CudaEnvironment env;
  __shared__ bool begun;
  // Where rank 0 tells rank 1 that it has begun; a launch tells all peers.
  const comm::Header* told = comm::HeadersOf(feed.group.workspace[1]);
  for (int i = 0; i < launches; ++i, ++epoch) {
    if (i > 0) {
      if (threadIdx.x == 0) {
        const uint64_t* word = &told[comm::WorkspaceLayout::header_index(epoch - 1u, 0)].signature;
        const uint64_t start = env.Clock();
        do {
          begun = comm::HeaderEpoch(env.LoadHeader(word)) == epoch - 1u;
        } while (!begun && env.Clock() - start < kPatienceNs);
      }
      __syncthreads();
      if (!begun) return;
    }
    Deliver(feed, epoch);
    __syncthreads();  // before `begun` is written again
  }
}

}  // namespace

absl::Status StartFeeding(const Feed& feed, int launches, cudaStream_t stream) {
  uint32_t epoch = 0;
  STOKER_CUDA(cudaMemcpy(&epoch, &comm::ControlOf(feed.group.workspace[0])->epoch, sizeof(epoch),
                         cudaMemcpyDeviceToHost));
  Feeder<<<kFeederSms, kThreads, 0, stream>>>(feed, epoch, launches);
  return CudaStatus(cudaGetLastError(), "feeder");
}

}  // namespace stoker::bench
