// How much a test that repeats or explores should do: the usual amount, or far more in a run that
// was asked for by name (`tools/test --long` sets STOKER_LONG=1).
#pragma once

#include <cstdlib>

namespace stoker::testing {

inline int Repetitions(int usual, int in_long_runs) {
  return std::getenv("STOKER_LONG") == nullptr ? usual : in_long_runs;
}

}  // namespace stoker::testing
