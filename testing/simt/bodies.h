// The shipped bodies on the simulated machine, and room for mutants: any environment, any exchange.
#pragma once

#include "comm/launch_frame.h"
#include "comm/one_shot.h"
#include "comm/two_shot.h"
#include "comm/wire_type.h"
#include "moe/finalize_producer.h"
#include "moe/plain_producer.h"
#include "moe/rms_norm_epilogue.h"
#include "testing/simt/environment.h"
#include "testing/simt/world.h"

namespace stoker::testing::simt {

inline constexpr int kRanksMax = 4;  // of the kernels' template

template <class Env, class Exchange, class Producer, int kVectors>
void RunBody(const comm::ExchangeParams& params, const KernelParams& kernel) {
  moe::RmsNormEpilogue<comm::Bf16, kVectors> epilogue(kernel.norm);
  if constexpr (std::is_same_v<Producer, moe::PlainProducer<comm::Bf16>>) {
    Producer producer(kernel.plain);
    comm::RunLaunch<Exchange, kVectors>(Env(), params, producer, epilogue);
  } else {
    Producer producer(kernel.finalize);
    comm::RunLaunch<Exchange, kVectors>(Env(), params, producer, epilogue);
  }
}

using Plain = moe::PlainProducer<comm::Bf16>;
using Finalize = moe::FinalizeProducer<comm::Bf16>;
using OneShot = comm::OneShot<comm::Bf16, kRanksMax>;
using TwoShot = comm::TwoShot<comm::Bf16, kRanksMax>;

// With the environment in place of the simulated one, for what the scenario asks for.
template <class Env>
Body BodyFor(const Scenario& scenario) {
  const bool two =
      scenario.packets > 32 * scenario.row_warps * scenario.cluster_size;  // vectors a thread
  if (scenario.two_shot) {
    if (scenario.finalize) {
      return two ? RunBody<Env, TwoShot, Finalize, 2> : RunBody<Env, TwoShot, Finalize, 1>;
    }
    return two ? RunBody<Env, TwoShot, Plain, 2> : RunBody<Env, TwoShot, Plain, 1>;
  }
  if (scenario.finalize) {
    return two ? RunBody<Env, OneShot, Finalize, 2> : RunBody<Env, OneShot, Finalize, 1>;
  }
  return two ? RunBody<Env, OneShot, Plain, 2> : RunBody<Env, OneShot, Plain, 1>;
}

// The unchanged kernel.
Body ShippedBody(const Scenario& scenario);

}  // namespace stoker::testing::simt
