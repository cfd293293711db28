// Every fault plan that can happen on a GPU, with ranks as streams of one process. After each the
// process and its CUDA context work on.
#include "testing/faults/rows.h"
#include "testing/gpu/fault_hooks.h"
#include "testing/gpu/fault_streams.h"
#include "testing/gpu/gpu_fixture.h"

namespace stoker::testing {
namespace {

class FaultPlansOnStreams : public GpuTest, public ::testing::WithParamInterface<FaultPlan> {};

TEST_P(FaultPlansOnStreams, GiveWhatTheTableSays) {
  const absl::Status status = RunOnGpuStreams(GetParam(), FaultSeed(), TestBuildFaultKernels());
  EXPECT_TRUE(status.ok()) << status << "\nagain: STOKER_SEED=" << FaultSeed();
  WriteFaultRow(GetParam(), FaultWorld::kGpuStreams, status.ok());
}

INSTANTIATE_TEST_SUITE_P(Plans, FaultPlansOnStreams,
                         ::testing::ValuesIn(FaultPlansOf(FaultWorld::kGpuStreams)),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace stoker::testing
