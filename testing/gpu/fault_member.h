// A rank of a fault plan on a GPU: a communicator, a stream, and the kernels that misbehave.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "comm/group.h"
#include "testing/faults/member.h"

namespace stoker::testing {

// Takes over the exchange. `process`: the rank is a process of its own, which EndProcess ends.
absl::StatusOr<std::unique_ptr<FaultMember>> MakeGpuFaultMember(
    const comm::GroupOptions& options, std::unique_ptr<comm::RankExchange> exchange, bool process);

}  // namespace stoker::testing
