#include "comm/cuda_environment.cuh"
#include "comm/mailbox.h"
#include "moe/finalize_producer.h"
#include "moe/local_finalize_kernel.h"

namespace stoker::moe {
namespace {

constexpr int kCtasPerSm = 8;

}  // namespace

// A CTA does kLocalFinalizeThreads vectors of one token; the CTAs of a token follow each other.
// Without the second bound ptxas makes do with 32 registers, for more CTAs than an SM ever gets,
// and has two rows in flight instead of eight.
template <class T>
__global__ void __launch_bounds__(kLocalFinalizeThreads, kCtasPerSm)
    LocalFinalizeKernel(const __grid_constant__ FinalizeParams params, comm::Packet* output,
                        int ctas_per_token) {
  comm::CudaEnvironment env;
  const int token = env.cta() / ctas_per_token;
  comm::Vectors<1> vectors;
  vectors.index[0] = (env.cta() - token * ctas_per_token) * kLocalFinalizeThreads + env.thread();
  vectors.inside[0] = vectors.index[0] < params.packets;
  vectors.row_warps = kLocalFinalizeThreads / 32;
  FinalizeProducer<T> producer(params);
  env.GridDependencyWait();
  producer.Fetch(env, token);
  comm::Packet row[1];
  producer.Row(env, token, vectors, row);
  if (vectors.inside[0]) {
    env.StoreOutput(output + static_cast<int64_t>(token) * params.packets + vectors.index[0],
                    row[0]);
  }
  env.LaunchDependents();
}

const void* LocalFinalizeKernelOf(comm::WireType type) {
  return type == comm::WireType::kBf16
             ? reinterpret_cast<const void*>(&LocalFinalizeKernel<comm::Bf16>)
             : reinterpret_cast<const void*>(&LocalFinalizeKernel<comm::Fp16>);
}

}  // namespace stoker::moe
