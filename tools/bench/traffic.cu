#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/cuda_status.h"
#include "base/status.h"
#include "comm/cuda_environment.cuh"
#include "comm/mailbox.h"
#include "tools/bench/traffic.h"

namespace stoker::bench {
namespace {

using comm::Packet;

struct Params {
  Packet* mailbox[comm::kWorldMax];  // [half][source][token][packet]
  int64_t half;                      // packets
  int world, rank, tokens, packets, top_k, passes;
  const Packet* rows;
  const int32_t* indices;
  const uint16_t* weights;
  const Packet* shared;
  const Packet* residual_in;
  const Packet* gamma;
  Packet* residual_out;
  Packet* norm_out;
};

// Past L1, which a launch finds empty and a second pass would not.
__device__ __forceinline__ Packet Load(const Packet* p) {
  Packet v;
  asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
               : "l"(p));
  return v;
}

__device__ __forceinline__ void Mix(Packet& into, const Packet& other) {
#pragma unroll
  for (int w = 0; w < comm::kPacketWords; ++w) into.word[w] ^= other.word[w];
}

// One element of the work: vector `vector` of token `token`, in a half of the mailboxes.
struct Item {
  int64_t half, at;  // packets; `at` within a rank's rows
  int token, vector;
};

__device__ __forceinline__ Packet Gather(const Params& p, const Item& item) {
  Packet sum = Load(p.shared + item.at);
  for (int first = 0; first < p.top_k; first += 8) {
    const int64_t route = static_cast<int64_t>(item.token) * p.top_k + first;
    int32_t index[8];
    uint32_t weights = 0;
    if (p.top_k % 8 == 0) {
      const int4 low = *reinterpret_cast<const int4*>(p.indices + route);
      const int4 high = *reinterpret_cast<const int4*>(p.indices + route + 4);
      const uint4 eight = *reinterpret_cast<const uint4*>(p.weights + route);
      index[0] = low.x, index[1] = low.y, index[2] = low.z, index[3] = low.w;
      index[4] = high.x, index[5] = high.y, index[6] = high.z, index[7] = high.w;
      weights = eight.x ^ eight.y ^ eight.z ^ eight.w;
    } else {
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        index[k] = first + k < p.top_k ? p.indices[route + k] : -1;
        if (index[k] >= 0) weights += p.weights[route + k];
      }
    }
    Packet rows[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      rows[k] = Packet{};
      if (index[k] >= 0)
        rows[k] = Load(p.rows + static_cast<int64_t>(index[k]) * p.packets + item.vector);
    }
#pragma unroll
    for (int k = 0; k < 8; ++k) Mix(sum, rows[k]);
    sum.word[0] ^= weights;
  }
  return sum;
}

template <int kWorld>
__device__ __forceinline__ void PushToPeers(const Params& p, const Item& item, const Packet& row) {
  comm::CudaEnvironment env;
  const int64_t rows = static_cast<int64_t>(p.tokens) * p.packets;
#pragma unroll
  for (int i = 1; i < kWorld; ++i) {
    const int peer = p.rank + i < p.world ? p.rank + i : p.rank + i - p.world;
    if (i < p.world) env.StorePacket(p.mailbox[peer] + item.half + p.rank * rows + item.at, row);
  }
}

__device__ __forceinline__ void Write(const Params& p, const Item& item, Packet sum) {
  comm::CudaEnvironment env;
  env.StoreOutput(p.residual_out + item.at, sum);
  Mix(sum, Load(p.gamma + item.vector));
  env.StoreOutput(p.norm_out + item.at, sum);
}

// The packets of all sources: summed, and emptied but for the own one, which is there in two shots.
template <int kWorld, bool kTwoShot>
__device__ __forceinline__ void SumSources(const Params& p, const Item& item, Packet& sum) {
  comm::CudaEnvironment env;
  const int64_t rows = static_cast<int64_t>(p.tokens) * p.packets;
  Packet* place = p.mailbox[p.rank] + item.half + item.at;
  Packet peer[kWorld];
#pragma unroll
  for (int r = 0; r < kWorld; ++r) {
    peer[r] = Packet{};
    if (r < p.world && (kTwoShot || r != p.rank)) peer[r] = env.LoadPacket(place + r * rows);
  }
#pragma unroll
  for (int r = 0; r < kWorld; ++r) {
    Mix(sum, peer[r]);
    if (r < p.world && r != p.rank) env.StorePacket(place + r * rows, comm::EmptyPacket());
  }
}

template <int kWorld>
__device__ __forceinline__ void FinishTwoShot(const Params& p, const Item& item) {
  comm::CudaEnvironment env;
  const int owner = item.token % p.world;
  Packet sum{};
  if (owner == p.rank) {
    sum = Load(p.residual_in + item.at);
    SumSources<kWorld, true>(p, item, sum);
    PushToPeers<kWorld>(p, item, sum);
  } else {
    const int64_t rows = static_cast<int64_t>(p.tokens) * p.packets;
    Packet* place = p.mailbox[p.rank] + item.half + owner * rows + item.at;
    sum = env.LoadPacket(place);
    env.StorePacket(place, comm::EmptyPacket());
  }
  Write(p, item, sum);
}

// Passes are taken in groups that keep all threads busy; of a group two-shot does first all that
// comes before its first wait, as a launch does.
template <int kWorld, bool kTwoShot>
__global__ void __launch_bounds__(1024) TrafficKernel(const __grid_constant__ Params p) {
  comm::CudaEnvironment env;
  env.GridDependencyWait();
  const int64_t rows = static_cast<int64_t>(p.tokens) * p.packets;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int group = static_cast<int>((step + rows - 1) / rows);
  const auto item_of = [&](int pass, int64_t i) {
    Item item;
    pass += static_cast<int>(i / rows);
    item.half = (pass & 1) * p.half;
    item.at = i % rows;
    item.token = static_cast<int>(item.at / p.packets);
    item.vector = static_cast<int>(item.at - static_cast<int64_t>(item.token) * p.packets);
    return item;
  };
#pragma unroll 1
  for (int pass = 0; pass < p.passes; pass += group) {
    const int64_t items = min(group, p.passes - pass) * rows;
#pragma unroll 1
    for (int64_t i = thread; i < items; i += step) {
      const Item item = item_of(pass, i);
      Packet sum = Gather(p, item);
      if (kTwoShot) {
        env.StorePacket(p.mailbox[item.token % p.world] + item.half + p.rank * rows + item.at, sum);
      } else {
        PushToPeers<kWorld>(p, item, sum);
        Mix(sum, Load(p.residual_in + item.at));
        SumSources<kWorld, false>(p, item, sum);
        Write(p, item, sum);
      }
    }
    if constexpr (kTwoShot) {
#pragma unroll 1
      for (int64_t i = thread; i < items; i += step) FinishTwoShot<kWorld>(p, item_of(pass, i));
    }
  }
  env.LaunchDependents();
}

template <int kWorld>
const void* KernelOf(comm::Protocol protocol) {
  return protocol == comm::Protocol::kTwoShot
             ? reinterpret_cast<const void*>(TrafficKernel<kWorld, true>)
             : reinterpret_cast<const void*>(TrafficKernel<kWorld, false>);
}

}  // namespace

std::string Traffic::Shape::ToString() const {
  return absl::StrFormat("%d x %d threads an SM, %d times over", per_sm, threads, passes);
}

std::vector<Traffic::Shape> Traffic::Shapes(int passes) {
  std::vector<Shape> shapes;
  for (int times : {1, passes}) {
    for (const auto& [per_sm, threads] : {std::pair{1, 1024}, {2, 512}, {4, 256}}) {
      shapes.push_back({per_sm, threads, times});
    }
    if (passes == 1) break;
  }
  return shapes;
}

absl::StatusOr<std::unique_ptr<Traffic>> Traffic::Create(comm::Protocol protocol, int world,
                                                         const moe::Shape& shape) {
  auto result = std::unique_ptr<Traffic>(new Traffic());
  result->protocol_ = protocol;
  result->world_ = world;
  result->shape_ = shape;
  const int64_t bytes = int64_t{2} * world * shape.tokens * shape.hidden * 2;
  for (int rank = 0; rank < world; ++rank) {
    void* mailbox = nullptr;
    STOKER_CUDA(cudaMalloc(&mailbox, bytes));
    result->mailboxes_.push_back(mailbox);
    STOKER_CUDA(cudaMemset(mailbox, 0x3C, bytes));
  }
  return result;
}

Traffic::~Traffic() {
  for (void* mailbox : mailboxes_) cudaFree(mailbox);
}

absl::Status Traffic::Launch(int rank, const Shape& how, const moe::FinalizeArguments& finalize,
                             const moe::NormArguments& norm, bool programmatic,
                             cudaStream_t stream) {
  Params params{};
  for (int r = 0; r < world_; ++r) params.mailbox[r] = static_cast<Packet*>(mailboxes_[r]);
  params.world = world_;
  params.rank = rank;
  params.tokens = shape_.tokens;
  params.packets = shape_.hidden / comm::kPacketElements;
  params.half = static_cast<int64_t>(world_) * shape_.tokens * params.packets;
  params.top_k = finalize.top_k;
  params.passes = how.passes;
  params.rows = static_cast<const Packet*>(finalize.rows);
  params.indices = finalize.indices;
  params.weights = static_cast<const uint16_t*>(finalize.weights);
  params.shared = static_cast<const Packet*>(finalize.shared);
  params.residual_in = static_cast<const Packet*>(norm.residual_in);
  params.gamma = static_cast<const Packet*>(norm.gamma);
  params.residual_out = static_cast<Packet*>(norm.residual_out);
  params.norm_out = static_cast<Packet*>(norm.norm_out);
  int device = 0, sms = 0;
  STOKER_CUDA(cudaGetDevice(&device));
  STOKER_CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = programmatic ? 1 : 0;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(std::max(1, sms / world_ * how.per_sm));
  config.blockDim = dim3(how.threads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  void* arguments[] = {&params};
  const void* kernel = world_ <= 2   ? KernelOf<2>(protocol_)
                       : world_ <= 4 ? KernelOf<4>(protocol_)
                                     : KernelOf<8>(protocol_);
  return CudaStatus(cudaLaunchKernelExC(&config, kernel, arguments), "traffic");
}

}  // namespace stoker::bench
