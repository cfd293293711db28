// A RankExchange for ranks that are threads of one process (tests, benchmarks, several GPUs driven
// by one process).
#pragma once

#include <memory>
#include <vector>

#include "comm/rank_exchange.h"

namespace stoker::comm {

// One exchange a rank; each may be used from its own thread and keeps the shared state alive.
std::vector<std::unique_ptr<RankExchange>> MakeThreadExchanges(int world);

}  // namespace stoker::comm
