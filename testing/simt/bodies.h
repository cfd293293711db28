// The shipped bodies on the simulated machine, and room for mutants: any environment, any exchange.
#pragma once

#include "comm/launch_frame.h"
#include "comm/one_shot.h"
#include "comm/two_shot.h"
#include "comm/wire_type.h"
#include "moe/finalize_producer.h"
#include "moe/plain_producer.h"
#include "moe/reduction_producer.h"
#include "moe/rms_norm_epilogue.h"
#include "testing/simt/environment.h"
#include "testing/simt/host_step.h"
#include "testing/simt/world.h"

namespace stoker::testing::simt {

inline constexpr int kRanksMax = 4;  // of the kernels' template

using Plain = moe::PlainProducer<comm::Bf16>;
using Finalize = moe::FinalizeProducer<comm::Bf16>;
using Reduction = moe::ReductionProducer<comm::Bf16>;

template <class Producer>
Producer MakeProducer(const KernelParams& kernel) {
  if constexpr (std::is_same_v<Producer, Plain>) return Producer(kernel.plain);
  if constexpr (std::is_same_v<Producer, Finalize>) return Producer(kernel.finalize);
  if constexpr (std::is_same_v<Producer, Reduction>) return Producer(kernel.reduction);
}

template <class Env, class Exchange, class Producer, int kVectors>
void RunBody(const comm::ExchangeParams& params, const KernelParams& kernel) {
  if (kernel.host != nullptr) return RunHostStep(Env(), params, *kernel.host);
  moe::RmsNormEpilogue<comm::Bf16, kVectors> epilogue(kernel.norm);
  Producer producer = MakeProducer<Producer>(kernel);
  comm::RunLaunch<Exchange, kVectors>(Env(), params, producer, epilogue);
}

using OneShot = comm::OneShot<comm::Bf16, kRanksMax>;
using TwoShot = comm::TwoShot<comm::Bf16, kRanksMax>;

template <class Env, class Exchange, int kVectors>
Body BodyOf(Source source) {
  switch (source) {
    case Source::kFinalize:
      return RunBody<Env, Exchange, Finalize, kVectors>;
    case Source::kReduction:
      return RunBody<Env, Exchange, Reduction, kVectors>;
    default:
      return RunBody<Env, Exchange, Plain, kVectors>;
  }
}

// With the environment in place of the simulated one, for what the scenario asks for.
template <class Env>
Body BodyFor(const Scenario& scenario) {
  const bool two =
      scenario.packets > 32 * scenario.row_warps * scenario.cluster_size;  // vectors a thread
  if (scenario.two_shot) {
    return two ? BodyOf<Env, TwoShot, 2>(scenario.source)
               : BodyOf<Env, TwoShot, 1>(scenario.source);
  }
  return two ? BodyOf<Env, OneShot, 2>(scenario.source) : BodyOf<Env, OneShot, 1>(scenario.source);
}

// The unchanged kernel.
Body ShippedBody(const Scenario& scenario);

}  // namespace stoker::testing::simt
