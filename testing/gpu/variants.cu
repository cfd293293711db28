#include "comm/cuda_environment.cuh"
#include "comm/one_shot.h"
#include "comm/wire_type.h"
#include "moe/kernel_entry.cuh"
#include "testing/gpu/delayed_environment.cuh"
#include "testing/gpu/variants.h"

namespace stoker::testing {
namespace {

class PeerPollEnvironment : public DelayedEnvironment {
 public:
  __device__ explicit PeerPollEnvironment(const ExchangeParams& p) : DelayedEnvironment(p), p_(p) {}

  __device__ Packet LoadPacket(const Packet* p) {
    return DelayedEnvironment::LoadPacket(AtSource(p));
  }
  __device__ void StorePacket(Packet* p, const Packet& v) {
    const int64_t own = p - Mailbox(p_.rank);
    if (own >= 0 && own < 2 * p_.layout.half_packets()) {
      DelayedEnvironment::StorePacket(AtSource(p), v);
      return;
    }
    DelayedEnvironment::StorePacket(p, v);
    for (int r = 0; r < p_.layout.world; ++r) {
      const int64_t index = p - Mailbox(r);
      if (r != p_.rank && index >= 0 && index < 2 * p_.layout.half_packets()) {
        CudaEnvironment::StorePacket(Mailbox(p_.rank) + index, v);
      }
    }
  }

 private:
  __device__ Packet* Mailbox(int rank) const { return comm::MailboxOf(p_.workspace[rank]); }
  // The same place in the mailbox of the rank whose packet it is.
  __device__ Packet* AtSource(const Packet* p) const {
    const int64_t index = p - Mailbox(p_.rank);
    const int64_t in_half = index % p_.layout.half_packets();
    const int source =
        static_cast<int>(in_half / (static_cast<int64_t>(p_.layout.capacity) * p_.layout.stride));
    return Mailbox(source) + index;
  }
  const ExchangeParams& p_;
};

enum class Rounded { kRoute, kAdd, kRank };

template <Rounded kWhere>
class RoundingEnvironment : public ShippedEnvironment {
 public:
  using ShippedEnvironment::ShippedEnvironment;
  __device__ static float Fma(float a, float b, float c) {
    const float sum = CudaEnvironment::Fma(a, b, c);
    return kWhere == Rounded::kRoute ? Round(sum) : sum;
  }
  __device__ static float Add(float a, float b) {
    const float sum = CudaEnvironment::Add(a, b);
    return kWhere == Rounded::kAdd ? Round(sum) : sum;
  }
  __device__ static float AddRanks(float a, float b) {
    const float sum = CudaEnvironment::AddRanks(a, b);
    return kWhere == Rounded::kRank ? Round(sum) : sum;
  }

 private:
  __device__ static float Round(float x) { return comm::Bf16::ToFloat(comm::Bf16::FromFloat(x)); }
};

template <template <class, int> class Exchange, class Env, int kVectors>
__global__ void __launch_bounds__(moe::kThreadsMax, 1)
    VariantKernelOf(const __grid_constant__ ExchangeParams params,
                    const __grid_constant__ moe::FinalizeParams producer_params,
                    const __grid_constant__ moe::RmsNormParams epilogue_params) {
  moe::FinalizeProducer<comm::Bf16> producer(producer_params);
  moe::RmsNormEpilogue<comm::Bf16, kVectors> epilogue(epilogue_params);
  comm::RunLaunch<Exchange<comm::Bf16, 4>, kVectors>(Env(params), params, producer, epilogue);
}

template <class Env, template <class, int> class Exchange = comm::OneShot>
const void* Kernel(int vectors) {
  return vectors == 1 ? reinterpret_cast<const void*>(VariantKernelOf<Exchange, Env, 1>)
                      : reinterpret_cast<const void*>(VariantKernelOf<Exchange, Env, 2>);
}

}  // namespace

const void* VariantKernel(Variant variant, int vectors) {
  switch (variant) {
    case Variant::kDelayed:
      return Kernel<DelayedEnvironment>(vectors);
    case Variant::kDelayedTwoShot:
      return Kernel<DelayedEnvironment, comm::TwoShot>(vectors);
    case Variant::kPeerPoll:
      return Kernel<PeerPollEnvironment>(vectors);
    case Variant::kRoundRoute:
      return Kernel<RoundingEnvironment<Rounded::kRoute>>(vectors);
    case Variant::kRoundAdd:
      return Kernel<RoundingEnvironment<Rounded::kAdd>>(vectors);
    case Variant::kRoundRank:
      return Kernel<RoundingEnvironment<Rounded::kRank>>(vectors);
  }
  return nullptr;
}

}  // namespace stoker::testing
