#include <cooperative_groups.h>

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/cuda_status.h"
#include "comm/wire_type.h"
#include "tools/bench/pr6631.h"

namespace stoker::bench {
namespace {

namespace cg = cooperative_groups;
using comm::Packet;

constexpr uint32_t kEmptyPair = 0x80008000u;
constexpr int kRowsInFlight = 8;

struct Control {
  uint32_t arrived;
  uint32_t turn;           // which third of the arenas this launch writes
  uint32_t clear_packets;  // written by the launch before
};

struct Params {
  Packet* arena[comm::kWorldMax];
  Control* control;
  int64_t third;  // packets
  int rank, tokens, packets, top_k;
  const Packet* rows;
  const int32_t* indices;
  const uint16_t* weights;
  const Packet* shared;
  const Packet* residual_in;
  const Packet* gamma;
  Packet* residual_out;
  Packet* norm_out;
  float scale, eps, weight_bias;
};

__device__ __forceinline__ Packet LoadVolatile(const Packet* p) {
  Packet v;
  asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.word[0]), "=r"(v.word[1]), "=r"(v.word[2]), "=r"(v.word[3])
               : "l"(p));
  return v;
}
__device__ __forceinline__ void StoreVolatile(Packet* p, const Packet& v) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.word[0]),
               "r"(v.word[1]), "r"(v.word[2]), "r"(v.word[3]));
}
__device__ __forceinline__ bool HasEmptyHalf(uint32_t word) {
  return (word & 0xFFFFu) == 0x8000u || (word >> 16) == 0x8000u;
}
__device__ __forceinline__ uint32_t WithoutNegativeZeros(uint32_t word) {
  if ((word & 0xFFFFu) == 0x8000u) word &= 0xFFFF0000u;
  if ((word >> 16) == 0x8000u) word &= 0x0000FFFFu;
  return word;
}

template <class T>
__device__ __forceinline__ Packet GatherRow(const Params& p, int token, int vector) {
  float sum[comm::kPacketElements] = {};
  for (int first = 0; first < p.top_k; first += kRowsInFlight) {
    int32_t index[kRowsInFlight];
    float weight[kRowsInFlight];
#pragma unroll
    for (int k = 0; k < kRowsInFlight; ++k) {
      const int route = token * p.top_k + first + k;
      const bool there = first + k < p.top_k;
      index[k] = there ? p.indices[route] : -1;
      weight[k] = there && p.weights != nullptr ? T::ToFloat(p.weights[route]) : 1.0f;
    }
    Packet row[kRowsInFlight];
#pragma unroll
    for (int k = 0; k < kRowsInFlight; ++k) {
      if (index[k] >= 0) row[k] = p.rows[static_cast<int64_t>(index[k]) * p.packets + vector];
    }
#pragma unroll
    for (int k = 0; k < kRowsInFlight; ++k) {
      if (index[k] < 0) continue;
#pragma unroll
      for (int w = 0; w < comm::kPacketWords; ++w) {
        float low, high;
        comm::Unpack<T>(row[k].word[w], low, high);
        sum[2 * w] += weight[k] * low;
        sum[2 * w + 1] += weight[k] * high;
      }
    }
  }
  Packet shared{};
  if (p.shared != nullptr) shared = p.shared[static_cast<int64_t>(token) * p.packets + vector];
  Packet out;
#pragma unroll
  for (int w = 0; w < comm::kPacketWords; ++w) {
    float low, high;
    comm::Unpack<T>(shared.word[w], low, high);
    out.word[w] = WithoutNegativeZeros(
        comm::Pack<T>(sum[2 * w] * p.scale + low, sum[2 * w + 1] * p.scale + high));
  }
  return out;
}

__device__ __forceinline__ float SumOverCluster(float value) {
  __shared__ float warps[32];
  __shared__ float block_sum;
  __shared__ float total;
  cg::cluster_group cluster = cg::this_cluster();
  for (int distance = 16; distance > 0; distance >>= 1)
    value += __shfl_xor_sync(0xFFFFFFFFu, value, distance);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x < 32) {
    float sum = threadIdx.x < blockDim.x / 32 ? warps[threadIdx.x] : 0.0f;
    for (int distance = 16; distance > 0; distance >>= 1)
      sum += __shfl_xor_sync(0xFFFFFFFFu, sum, distance);
    if (threadIdx.x == 0) block_sum = sum;
  }
  cluster.sync();
  if (threadIdx.x == 0) {
    float sum = 0.0f;
    for (unsigned r = 0; r < cluster.num_blocks(); ++r)
      sum += *cluster.map_shared_rank(&block_sum, r);
    total = sum;
  }
  cluster.sync();
  return total;
}

template <class T, int kWorld>
__device__ __forceinline__ void FinishRow(const Params& p, const Packet* arena, int token,
                                          int vector) {
  const int64_t all = static_cast<int64_t>(p.tokens) * p.packets;
  const int64_t at = static_cast<int64_t>(token) * p.packets + vector;
  Packet rows[kWorld];
  bool whole;
  do {
    whole = true;
#pragma unroll
    for (int r = 0; r < kWorld; ++r) {
      rows[r] = LoadVolatile(arena + r * all + at);
#pragma unroll
      for (int w = 0; w < comm::kPacketWords; ++w) whole &= !HasEmptyHalf(rows[r].word[w]);
    }
  } while (!whole);
  const Packet residual = p.residual_in[at];
  Packet x;
  float squares = 0.0f;
#pragma unroll
  for (int w = 0; w < comm::kPacketWords; ++w) {
    float low = 0.0f, high = 0.0f;
#pragma unroll
    for (int r = 0; r < kWorld; ++r) {
      float a, b;
      comm::Unpack<T>(rows[r].word[w], a, b);
      low += a;
      high += b;
    }
    float residual_low, residual_high;
    comm::Unpack<T>(comm::Pack<T>(low, high), low, high);
    comm::Unpack<T>(residual.word[w], residual_low, residual_high);
    x.word[w] = comm::Pack<T>(low + residual_low, high + residual_high);
    comm::Unpack<T>(x.word[w], low, high);
    squares += low * low + high * high;
  }
  p.residual_out[at] = x;
  const Packet gamma = p.gamma[vector];
  const float rstd = rsqrtf(SumOverCluster(squares) / (p.packets * comm::kPacketElements) + p.eps);
  Packet out;
#pragma unroll
  for (int w = 0; w < comm::kPacketWords; ++w) {
    float low, high, gamma_low, gamma_high;
    comm::Unpack<T>(x.word[w], low, high);
    comm::Unpack<T>(gamma.word[w], gamma_low, gamma_high);
    out.word[w] = comm::Pack<T>(low * rstd * (p.weight_bias + gamma_low),
                                high * rstd * (p.weight_bias + gamma_high));
  }
  p.norm_out[at] = out;
}

template <class T, int kWorld>
__global__ void __launch_bounds__(1024) Pr6631Kernel(const __grid_constant__ Params p) {
  cg::cluster_group cluster = cg::this_cluster();
  const int vector = static_cast<int>(cluster.block_rank() * blockDim.x + threadIdx.x);
  const int first_token = static_cast<int>(blockIdx.x / cluster.num_blocks());
  const int clusters = static_cast<int>(gridDim.x / cluster.num_blocks());
  const int64_t all = static_cast<int64_t>(p.tokens) * p.packets;
  cudaGridDependencySynchronize();
  const uint32_t turn = p.control->turn;
  const uint32_t clear = p.control->clear_packets;
  __syncthreads();
  if (threadIdx.x == 0) atomicAdd(&p.control->arrived, 1u);

  for (int token = first_token; token < p.tokens; token += clusters) {
    const Packet row = GatherRow<T>(p, token, vector);
#pragma unroll
    for (int r = 0; r < kWorld; ++r) {
      StoreVolatile(p.arena[r] + turn * p.third + p.rank * all +
                        static_cast<int64_t>(token) * p.packets + vector,
                    row);
    }
  }
  Packet* own = p.arena[p.rank];
  for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < clear; i += gridDim.x * blockDim.x) {
    own[(turn + 2) % 3 * p.third + i] = Packet{{kEmptyPair, kEmptyPair, kEmptyPair, kEmptyPair}};
  }
  for (int token = first_token; token < p.tokens; token += clusters) {
    FinishRow<T, kWorld>(p, own + turn * p.third, token, vector);
  }
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    while (*const_cast<volatile uint32_t*>(&p.control->arrived) != gridDim.x) {
    }
    p.control->turn = (turn + 1) % 3;
    p.control->clear_packets = static_cast<uint32_t>(all * kWorld);
    p.control->arrived = 0;
  }
  cudaTriggerProgrammaticLaunchCompletion();
}

template <class T>
const void* KernelFor(int world) {
  switch (world) {
    case 2:
      return reinterpret_cast<const void*>(Pr6631Kernel<T, 2>);
    case 4:
      return reinterpret_cast<const void*>(Pr6631Kernel<T, 4>);
    case 8:
      return reinterpret_cast<const void*>(Pr6631Kernel<T, 8>);
    default:
      return nullptr;
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<Pr6631Finalize>> Pr6631Finalize::Create(int world,
                                                                       const moe::Shape& shape) {
  if (KernelFor<comm::Bf16>(world) == nullptr || shape.hidden % 256 != 0 || shape.tokens < 1 ||
      shape.hidden > 8192) {
    return absl::UnimplementedError(
        absl::StrCat("pr6631: world ", world, ", hidden ", shape.hidden, ", tokens ", shape.tokens,
                     "; it takes world 2, 4 or 8, hidden a multiple of 256 up to 8192, a token"));
  }
  auto result = std::unique_ptr<Pr6631Finalize>(new Pr6631Finalize());
  result->world_ = world;
  result->shape_ = shape;
  int device = 0;
  STOKER_CUDA(cudaGetDevice(&device));
  STOKER_CUDA(cudaDeviceGetAttribute(&result->sms_, cudaDevAttrMultiProcessorCount, device));
  const int64_t bytes = int64_t{3} * 2 * world * shape.tokens * shape.hidden;
  const std::vector<uint32_t> empty(static_cast<size_t>(bytes / 4), kEmptyPair);
  for (int rank = 0; rank < world; ++rank) {
    void* arena = nullptr;
    STOKER_CUDA(cudaMalloc(&arena, bytes));
    result->arenas_.push_back(arena);
    STOKER_CUDA(cudaMemcpy(arena, empty.data(), bytes, cudaMemcpyHostToDevice));
    void* control = nullptr;
    STOKER_CUDA(cudaMalloc(&control, sizeof(Control)));
    result->controls_.push_back(control);
    STOKER_CUDA(cudaMemset(control, 0, sizeof(Control)));
  }
  STOKER_CUDA(cudaDeviceSynchronize());
  return result;
}

Pr6631Finalize::~Pr6631Finalize() {
  for (void* arena : arenas_) cudaFree(arena);
  for (void* control : controls_) cudaFree(control);
}

std::string Pr6631Finalize::Shape::ToString() const {
  return absl::StrFormat("%d x (%d x %d) x 1", clusters, cluster, threads);
}

// Clusters of this shape that the device holds at once; 0 where it holds none.
int Pr6631Finalize::ClustersAtOnce(int cluster, int threads) const {
  const void* kernel = KernelFor<comm::Bf16>(world_);
  int clusters = 0;
  cudaError_t error = cudaSuccess;
  if (cluster == 1) {
    error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&clusters, kernel, threads, 0);
    clusters *= sms_;
  } else {
    cudaLaunchAttribute attribute;
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(cluster);
    config.blockDim = dim3(threads);
    config.attrs = &attribute;
    config.numAttrs = 1;
    error = cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
  }
  return error == cudaSuccess ? clusters : 0;
}

std::vector<Pr6631Finalize::Shape> Pr6631Finalize::Shapes() const {
  constexpr int kClusterMax = 8;
  constexpr int kThreadsMin = 128;
  constexpr int kThreadsPerSm = 1024;  // at the 64 registers of its launch bounds
  const int share = sms_ / world_;
  const int warps = shape_.hidden / comm::kPacketElements / 32;
  std::vector<Shape> shapes;
  for (int cluster = std::min(kClusterMax, warps); cluster >= 1; --cluster) {
    const int threads = 32 * warps / cluster;
    if (warps % cluster != 0 || cluster > share || threads > kThreadsPerSm) continue;
    if (threads < kThreadsMin && cluster > 1) continue;
    // Both: what fits the share's SMs one by one may not fit as clusters.
    const int room = std::min(share * (kThreadsPerSm / threads) / cluster,
                              ClustersAtOnce(cluster, threads) / world_);
    if (room > 0) shapes.push_back({cluster, threads, std::min(room, shape_.tokens)});
  }
  std::stable_sort(shapes.begin(), shapes.end(),
                   [](const Shape& a, const Shape& b) { return a.clusters > b.clusters; });
  return shapes;
}

absl::Status Pr6631Finalize::Launch(int rank, const Shape& how,
                                    const moe::FinalizeArguments& finalize,
                                    const moe::NormArguments& norm, bool programmatic,
                                    cudaStream_t stream) {
  Params params{};
  for (int r = 0; r < world_; ++r) params.arena[r] = static_cast<Packet*>(arenas_[r]);
  params.control = static_cast<Control*>(controls_[rank]);
  params.packets = shape_.hidden / comm::kPacketElements;
  params.third = int64_t{world_} * shape_.tokens * params.packets;
  params.rank = rank;
  params.tokens = shape_.tokens;
  params.top_k = finalize.top_k;
  params.rows = static_cast<const Packet*>(finalize.rows);
  params.indices = finalize.indices;
  params.weights = static_cast<const uint16_t*>(finalize.weights);
  params.shared = static_cast<const Packet*>(finalize.shared);
  params.residual_in = static_cast<const Packet*>(norm.residual_in);
  params.gamma = static_cast<const Packet*>(norm.gamma);
  params.residual_out = static_cast<Packet*>(norm.residual_out);
  params.norm_out = static_cast<Packet*>(norm.norm_out);
  params.scale = finalize.routed_scaling_factor;
  params.eps = norm.eps;
  params.weight_bias = norm.weight_bias;

  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {static_cast<unsigned>(how.cluster), 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = programmatic ? 1 : 0;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(how.clusters * how.cluster);
  config.blockDim = dim3(how.threads);
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = 2;
  const void* kernel = shape_.wire_type == comm::WireType::kBf16 ? KernelFor<comm::Bf16>(world_)
                                                                 : KernelFor<comm::Fp16>(world_);
  void* arguments[] = {&params};
  return CudaStatus(cudaLaunchKernelExC(&config, kernel, arguments), "pr6631");
}

}  // namespace stoker::bench
