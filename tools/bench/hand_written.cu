#include <cstdint>

#include "comm/exchange_params.h"
#include "comm/protocol.h"
#include "moe/kernel_params.h"
#include "tools/bench/hand_written.h"

namespace stoker::bench {
namespace {

using comm::ExchangeParams;
using comm::Packet;

constexpr int kRanks = 4;

__device__ __forceinline__ uint4 LoadWeak(const Packet* p) {
  uint4 v;
  asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p));
  return v;
}
__device__ __forceinline__ uint4 LoadMailbox(const Packet* p) {
  uint4 v;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}
__device__ __forceinline__ void StoreMailbox(Packet* p, uint4 v) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y),
               "r"(v.z), "r"(v.w)
               : "memory");
}
__device__ __forceinline__ void StoreWeak(Packet* p, uint4 v) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}
__device__ __forceinline__ uint32_t LoadWord(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ uint64_t LoadWord64(const uint64_t* p) {
  uint64_t v;
  asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
  return v;
}
__device__ __forceinline__ float Low(uint32_t word) { return __uint_as_float(word << 16); }
__device__ __forceinline__ float High(uint32_t word) { return __uint_as_float(word & 0xFFFF0000u); }
__device__ __forceinline__ uint32_t Pack(float low, float high) {
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}
__device__ __forceinline__ uint32_t& At(uint4& v, int i) { return (&v.x)[i]; }
__device__ __forceinline__ bool Here(const uint4& v) {
  return v.x != comm::kSentinel && v.y != comm::kSentinel && v.z != comm::kSentinel &&
         v.w != comm::kSentinel;
}
__device__ __forceinline__ float WarpSum(float value) {
  for (int distance = 16; distance > 0; distance >>= 1) {
    value = value + __shfl_xor_sync(0xFFFFFFFFu, value, distance);
  }
  return value;
}
__device__ __forceinline__ uint32_t Shared(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__global__ void __launch_bounds__(1024, 1)
    HandWrittenFinalize(const __grid_constant__ ExchangeParams p,
                        const __grid_constant__ moe::FinalizeParams f,
                        const __grid_constant__ moe::RmsNormParams n) {
  __shared__ float partials[2][64];
  __shared__ uint64_t complete[2];
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(Shared(&complete[0])) : "memory");
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(Shared(&complete[1])) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
  uint32_t cluster_rank, cluster_size, cluster, clusters;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(cluster_rank));
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(cluster_size));
  asm("mov.u32 %0, %%clusterid.x;" : "=r"(cluster));
  asm("mov.u32 %0, %%nclusterid.x;" : "=r"(clusters));
  const int lane = threadIdx.x & 31;
  const int warp = threadIdx.x >> 5;
  const int row_warps = blockDim.x / 32 - 1;
  const bool service = warp == row_warps;
  const int vector = cluster_rank * row_warps * 32 + threadIdx.x;
  const bool inside = vector < p.packets;
  asm volatile("griddepcontrol.wait;" ::: "memory");

  comm::Control* control = comm::ControlOf(p.workspace[p.rank]);
  int token = cluster;
  int index = -1;
  uint32_t weight_bits = 0;
  const auto fetch = [&](int t) {
    index = -1;
    if (lane >= f.top_k) return;
    const int64_t route = static_cast<int64_t>(t) * f.top_k + lane;
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(index) : "l"(f.indices + route));
    uint16_t bits;
    asm volatile("ld.global.u16 %0, [%1];"
                 : "=h"(bits)
                 : "l"(static_cast<const uint16_t*>(f.weights) + route));
    weight_bits = static_cast<uint32_t>(bits) << 16;
  };
  if (!service && token < p.tokens) fetch(token);
  uint32_t epoch = 0, abort = 0;
  if (lane == 0) {
    epoch = LoadWord(&control->epoch);
    abort = LoadWord(&control->abort);
  }
  epoch = __shfl_sync(0xFFFFFFFFu, epoch, 0);
  bool failed = __shfl_sync(0xFFFFFFFFu, abort, 0) != 0u;
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");

  if (service) {
    if (blockIdx.x == 0) {
      const uint64_t tokens = comm::HeaderWord(epoch, p.tokens);
      const uint64_t signature = comm::HeaderWord(epoch, p.signature);
      const bool peer = lane < p.layout.world && lane != p.rank;
      if (peer) {
        comm::Header* slot =
            comm::HeadersOf(p.workspace[lane]) + comm::WorkspaceLayout::header_index(epoch, p.rank);
        asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(&slot->tokens), "l"(tokens)
                     : "memory");
        asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(&slot->signature), "l"(signature)
                     : "memory");
      }
      if (lane < 16) {
        const uint32_t* log = reinterpret_cast<const uint32_t*>(&p.log);
        uint32_t* entry = reinterpret_cast<uint32_t*>(comm::RingOf(p.workspace[p.rank]) +
                                                      epoch % comm::kLaunchRing);
        asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(entry + lane),
                     "r"(lane == 13 ? epoch : log[lane])
                     : "memory");
      }
      const comm::Header* seen =
          comm::HeadersOf(p.workspace[p.rank]) + comm::WorkspaceLayout::header_index(epoch, lane);
      for (int polls = 0; peer && polls < 1 << 24; ++polls) {
        if (LoadWord64(&seen->tokens) == tokens && LoadWord64(&seen->signature) == signature) break;
      }
    }
    asm volatile("barrier.cta.sync 3, %0;" ::"r"(blockDim.x) : "memory");
    if (lane == 0) {
      asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(&control->started) : "memory");
    }
    if (blockIdx.x == 0 && lane == 0) {
      while (LoadWord(&control->started) < gridDim.x) {
      }
      asm volatile("fence.acq_rel.gpu;" ::: "memory");
      control->started = 0u;
      control->finished[(epoch + 1u) & 1u] = 0u;
      control->last_ctas = gridDim.x;
      control->epoch = epoch + 1u;
    }
  } else {
    for (int turn = 0; token < p.tokens; token += clusters, ++turn) {
      const int64_t at = static_cast<int64_t>(token) * p.packets + vector;
      uint4 shared{};
      if (inside) shared = LoadWeak(f.shared + at);
      if (index >= f.row_count) index = -1;
      const float weight = index < 0 ? 0.0f : __uint_as_float(weight_bits);
      float sum[8] = {};
      const auto chunk = [&](int first) {
        uint4 row[8];
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          const int i = __shfl_sync(0xFFFFFFFFu, index, (first + k) & 31);
          row[k] = make_uint4(0x80008000u, 0x80008000u, 0x80008000u, 0x80008000u);
          if (i >= 0 && inside)
            row[k] = LoadWeak(f.rows + static_cast<int64_t>(i) * p.packets + vector);
        }
#pragma unroll
        for (int k = 0; k < 8; ++k) {
          const float w = __shfl_sync(0xFFFFFFFFu, weight, (first + k) & 31);
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            sum[2 * i] = __fmaf_rn(w, Low(At(row[k], i)), sum[2 * i]);
            sum[2 * i + 1] = __fmaf_rn(w, High(At(row[k], i)), sum[2 * i + 1]);
          }
        }
      };
      chunk(0);
#pragma unroll 1
      for (int first = 8; first < f.top_k; first += 8) chunk(first);
      uint4 own{};
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        At(own, i) = Pack(sum[2 * i] * f.routed_scaling_factor + Low(At(shared, i)),
                          sum[2 * i + 1] * f.routed_scaling_factor + High(At(shared, i)));
      }
      uint4 x{};
      if (inside) {
        const int64_t pushed = p.layout.packet_index(epoch, p.rank, token, vector);
#pragma unroll
        for (int i = 1; i < kRanks; ++i) {
          const int peer = p.rank + i < p.layout.world ? p.rank + i : p.rank + i - p.layout.world;
          if (i < p.layout.world) StoreMailbox(comm::MailboxOf(p.workspace[peer]) + pushed, own);
        }
      }
      if (turn == 0) asm volatile("barrier.cta.arrive 3, %0;" ::"r"(blockDim.x) : "memory");
      if (token + static_cast<int>(clusters) < p.tokens) fetch(token + clusters);
      if (inside) {
        x = LoadWeak(n.residual_in + at);
        Packet* first =
            comm::MailboxOf(p.workspace[p.rank]) + p.layout.packet_index(epoch, 0, token, vector);
        const int64_t stride = static_cast<int64_t>(p.layout.capacity) * p.layout.stride;
        const uint32_t peers = ((1u << p.layout.world) - 1u) & ~(1u << p.rank);
        uint4 rows[kRanks] = {};
        uint32_t awaited = peers;
        for (int polls = 0; awaited != 0u && !failed; ++polls) {
          int64_t fresh = stride;
          asm volatile("" : "+l"(fresh));
#pragma unroll
          for (int r = 0; r < kRanks; ++r) {
            if (awaited >> r & 1u) rows[r] = LoadMailbox(first + r * fresh);
          }
#pragma unroll
          for (int r = 0; r < kRanks; ++r) {
            if ((awaited >> r & 1u) && Here(rows[r])) awaited &= ~(1u << r);
          }
          failed = polls > 1 << 24;
        }
#pragma unroll
        for (int r = 0; r < kRanks; ++r) {
          if (peers >> r & 1u) {
            StoreMailbox(first + r * stride, make_uint4(~0u, ~0u, ~0u, ~0u));
          }
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float low = Low(p.rank == 0 ? At(own, i) : At(rows[0], i));
          float high = High(p.rank == 0 ? At(own, i) : At(rows[0], i));
#pragma unroll
          for (int r = 1; r < kRanks; ++r) {
            if (r < p.layout.world) {
              const uint32_t word = p.rank == r ? At(own, i) : At(rows[r], i);
              low = low + Low(word);
              high = high + High(word);
            }
          }
          const uint32_t rounded = Pack(low, high);
          At(x, i) = Pack(Low(rounded) + Low(At(x, i)), High(rounded) + High(At(x, i)));
        }
        StoreWeak(n.residual_out + at, x);
      }
      float square = 0.0f;
      uint4 gamma{};
      if (inside) {
        gamma = LoadWeak(static_cast<const Packet*>(n.gamma) + vector);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          square = __fmaf_rn(Low(At(x, i)), Low(At(x, i)), square);
          square = __fmaf_rn(High(At(x, i)), High(At(x, i)), square);
        }
      }
      const float warp_sum = WarpSum(square);
      const int canonical = cluster_rank * row_warps + warp;
      const int canonical_warps = (p.packets + 31) / 32;
      const int slot = turn & 1;
      if (cluster_size > 1 && threadIdx.x == 0) {
        asm volatile(
            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(Shared(&complete[slot])),
            "r"(canonical_warps * 4)
            : "memory");
      }
      if (canonical < canonical_warps && lane < static_cast<int>(cluster_size)) {
        if (cluster_size == 1) {
          *const_cast<volatile float*>(&partials[slot][canonical]) = warp_sum;
        } else {
          asm volatile(
              "{\n\t.reg .u32 place, barrier;\n\t"
              "mapa.shared::cluster.u32 place, %0, %2;\n\t"
              "mapa.shared::cluster.u32 barrier, %1, %2;\n\t"
              "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [place], %3, "
              "[barrier];\n\t}" ::"r"(Shared(&partials[slot][canonical])),
              "r"(Shared(&complete[slot])), "r"(lane), "r"(__float_as_uint(warp_sum))
              : "memory");
        }
      }
      if (cluster_size == 1) {
        asm volatile("barrier.cta.sync 2, %0;" ::"r"(row_warps * 32) : "memory");
      } else {
        asm volatile(
            "{\n\t.reg .pred done;\n\tagain:\n\t"
            "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n\t"
            "@!done bra again;\n\t}" ::"r"(Shared(&complete[slot])),
            "r"(turn >> 1 & 1)
            : "memory");
      }
      const volatile float* sums = partials[slot];
      float total = lane < canonical_warps ? sums[lane] : 0.0f;
      if (canonical_warps > 32)
        total = total + (lane + 32 < canonical_warps ? sums[lane + 32] : 0.0f);
      total = WarpSum(total);
      const float rstd = __frcp_rn(__fsqrt_rn(__fmaf_rn(total, n.inverse_hidden, n.eps)));
      if (inside) {
        uint4 out{};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          At(out, i) = Pack((Low(At(x, i)) * rstd) * (n.weight_bias + Low(At(gamma, i))),
                            (High(At(x, i)) * rstd) * (n.weight_bias + High(At(gamma, i))));
        }
        StoreWeak(n.norm_out + at, out);
      }
    }
  }
  if (!service) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  asm volatile("barrier.cta.sync 1, %0;" ::"r"(blockDim.x) : "memory");
  if (!service || lane != 0) return;
  asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(&control->finished[epoch & 1u])
               : "memory");
}

}  // namespace

const void* HandWrittenFinalizeKernel() {
  return reinterpret_cast<const void*>(HandWrittenFinalize);
}

}  // namespace stoker::bench
