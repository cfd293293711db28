// What a simulated world is made of, for world.cc and world_judge.cc.
#pragma once

#include <cstdint>
#include <vector>

#include "testing/simt/world.h"

namespace stoker::testing::simt {

struct World::Arrays {
  std::vector<int64_t> workspace, health, residual, norm_out;  // by rank
  int64_t gamma = 0;
  std::vector<moe::Rows> residual0;  // one: equal on all ranks
};

struct World::Launch {
  comm::ExchangeParams params;
  KernelParams kernel;
  int64_t residual_out = 0;
  moe::NormResult expected;
  enum class Result { kNotEnded, kRight, kNan, kWrong } result = Result::kNotEnded;
};

}  // namespace stoker::testing::simt
