#include "testing/precision.h"

#include <cmath>
#include <cstring>

#include "comm/wire_type.h"

namespace stoker::testing {
namespace {

constexpr int kHidden = 64;

// Exactly representable in bf16: 8 bits of significand.
float Large(int column) { return std::ldexp(static_cast<float>(129 + column % 64), 3); }
float Small(int column) { return std::ldexp(static_cast<float>(128 + column), -9); }

// What token `token` sums to over all ranks and routes.
double Exact(int token, int column) {
  const double small = Small(column);
  // On every rank: large + small - large + 0 over the routes.
  if (token == 0) return kPrecisionWorld * small;
  // Token 1, on rank 0 alone: the routes give small, the shared row adds large, the cold row takes
  // it. Token 2: rank 0 large, rank 1 small, rank 2 -large, rank 3 nothing.
  return small;
}

float Row(int token, int rank, int route, int column) {
  if (token == 0) {
    const float values[] = {Large(column), Small(column), -Large(column), 0.0f};
    return values[route];
  }
  if (token == 1) {
    return rank == 0 && route == 0 ? Small(column) : 0.0f;
  }
  if (route != 0) return 0.0f;
  const float values[] = {Large(column), Small(column), -Large(column), 0.0f};
  return values[rank];
}

}  // namespace

moe::Shape PrecisionShape() { return {3, kHidden, comm::WireType::kBf16}; }

Inputs PrecisionInputs(int rank) {
  const moe::Shape shape = PrecisionShape();
  Inputs in;
  in.shared.resize(shape.tokens * kHidden);
  in.cold.resize(shape.tokens * kHidden * 2);
  for (int token = 0; token < shape.tokens; ++token) {
    for (int route = 0; route < kPrecisionTopK; ++route) {
      in.indices.push_back(token * kPrecisionTopK + route);
      for (int column = 0; column < kHidden; ++column) {
        in.rows.push_back(comm::Bf16::FromFloat(Row(token, rank, route, column)));
      }
    }
    for (int column = 0; column < kHidden; ++column) {
      const float shared = token == 1 && rank == 0 ? Large(column) : 0.0f;
      const int at = token * kHidden + column;
      in.shared[at] = comm::Bf16::FromFloat(shared);
      const uint16_t cold = comm::Bf16::FromFloat(-shared);
      std::memcpy(&in.cold[2 * at], &cold, 2);
    }
  }
  for (int column = 0; column < kHidden; ++column) {
    in.gamma.push_back(0x80);  // bf16 1.0, low byte first
    in.gamma.push_back(0x3F);
  }
  in.finalize.rows = in.rows.data();
  in.finalize.row_count = static_cast<int64_t>(in.rows.size()) / kHidden;
  in.finalize.indices = in.indices.data();
  in.finalize.top_k = kPrecisionTopK;
  in.finalize.shared = in.shared.data();
  in.finalize.cold = in.cold.data();
  in.norm.gamma = in.gamma.data();
  in.norm.eps = 1e-5f;
  return in;
}

std::vector<int> WrongTokens(const std::vector<uint16_t>& residual_out) {
  std::vector<int> wrong;
  for (int token = 0; token < PrecisionShape().tokens; ++token) {
    for (int column = 0; column < kHidden; ++column) {
      const double exact = Exact(token, column);
      const double actual = comm::Bf16::ToFloat(residual_out[token * kHidden + column]);
      // Half a unit of bf16's last place; a NaN compares false.
      if (!(std::abs(actual - exact) <= std::abs(exact) * 0x1p-8)) {
        wrong.push_back(token);
        break;
      }
    }
  }
  return wrong;
}

}  // namespace stoker::testing
