#include <algorithm>

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
  bool two_shot;
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

template <int kWorld>
__device__ __forceinline__ void Finish(const Params& p, comm::CudaEnvironment env, Packet* own,
                                       int64_t at, int token, int vector, Packet sum) {
  const int64_t source_stride = static_cast<int64_t>(p.tokens) * p.packets;
  const int owner = token % p.world;
  const bool sums = !p.two_shot || owner == p.rank;
  if (sums) {
    Packet residual = Load(p.residual_in + at);
    Packet peer[kWorld];
#pragma unroll
    for (int r = 0; r < kWorld; ++r) {
      peer[r] = Packet{};
      if (r < p.world && (r != p.rank || p.two_shot))
        peer[r] = env.LoadPacket(own + r * source_stride + at);
    }
#pragma unroll
    for (int r = 0; r < kWorld; ++r) {
      Mix(sum, peer[r]);
      if (r < p.world && r != p.rank)
        env.StorePacket(own + r * source_stride + at, comm::EmptyPacket());
    }
    Mix(sum, residual);
    if (p.two_shot) {
      for (int r = 0; r < p.world; ++r) {
        if (r == p.rank) continue;
        env.StorePacket(p.mailbox[r] + (own - p.mailbox[p.rank]) + p.rank * source_stride + at,
                        sum);
      }
    }
  } else {
    sum = env.LoadPacket(own + owner * source_stride + at);
    env.StorePacket(own + owner * source_stride + at, comm::EmptyPacket());
  }
  const Packet gamma = Load(p.gamma + vector);
  env.StoreOutput(p.residual_out + at, sum);
  Mix(sum, gamma);
  env.StoreOutput(p.norm_out + at, sum);
}

template <int kWorld>
__global__ void __launch_bounds__(1024) TrafficKernel(const __grid_constant__ Params p) {
  comm::CudaEnvironment env;
  env.GridDependencyWait();
  const int64_t row = static_cast<int64_t>(p.tokens) * p.packets;
  const int64_t items = row * p.passes;
  const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
#pragma unroll 1
  for (int64_t item = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; item < items;
       item += step) {
    const int pass = static_cast<int>(item / row);
    const int64_t at = item - pass * row;
    const int token = static_cast<int>(at / p.packets);
    const int vector = static_cast<int>(at - static_cast<int64_t>(token) * p.packets);
    Packet sum = Load(p.shared + at);
    for (int first = 0; first < p.top_k; first += 8) {
      Packet rows[8];
      uint32_t weights = 0;
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        rows[k] = Packet{};
        if (first + k >= p.top_k) continue;
        const int64_t route = static_cast<int64_t>(token) * p.top_k + first + k;
        weights += p.weights[route];
        rows[k] = Load(p.rows + static_cast<int64_t>(p.indices[route]) * p.packets + vector);
      }
#pragma unroll
      for (int k = 0; k < 8; ++k) Mix(sum, rows[k]);
      sum.word[0] ^= weights;
    }
    const int64_t half = (pass & 1) * p.half;
    if (p.two_shot) {
      env.StorePacket(p.mailbox[token % p.world] + half + p.rank * row + at, sum);
    } else {
#pragma unroll
      for (int i = 1; i < kWorld; ++i) {
        const int peer = p.rank + i < p.world ? p.rank + i : p.rank + i - p.world;
        if (i < p.world) env.StorePacket(p.mailbox[peer] + half + p.rank * row + at, sum);
      }
    }
    Finish<kWorld>(p, env, p.mailbox[p.rank] + half, at, token, vector, sum);
  }
  env.LaunchDependents();
}

const void* KernelOf(int world) {
  if (world <= 2) return reinterpret_cast<const void*>(TrafficKernel<2>);
  if (world <= 4) return reinterpret_cast<const void*>(TrafficKernel<4>);
  return reinterpret_cast<const void*>(TrafficKernel<8>);
}

}  // namespace

std::string Traffic::Shape::ToString() const {
  return absl::StrFormat("%d x %d threads an SM", per_sm, threads);
}

std::vector<Traffic::Shape> Traffic::Shapes() { return {{1, 512}, {1, 1024}, {4, 256}}; }

absl::StatusOr<std::unique_ptr<Traffic>> Traffic::Create(comm::Protocol protocol, int world,
                                                         const moe::Shape& shape, int passes) {
  auto result = std::unique_ptr<Traffic>(new Traffic());
  result->protocol_ = protocol;
  result->world_ = world;
  result->passes_ = passes;
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
  params.passes = passes_;
  params.two_shot = protocol_ == comm::Protocol::kTwoShot;
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
  return CudaStatus(cudaLaunchKernelExC(&config, KernelOf(world_), arguments), "traffic");
}

}  // namespace stoker::bench
