// The demonstration on one GPU, ranks as streams.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/cuda_status.h"
#include "base/status.h"
#include "moe/fused_cuda.h"
#include "testing/stream_world.h"
#include "tools/bench/measure.h"
#include "tools/layer_tail_demo/demo.h"

namespace stoker::demo {
namespace {

absl::Status RunTokens(testing::StreamWorld& world, int tokens) {
  const testing::InputOptions options = DemoInputs(tokens);
  Progress(absl::StrCat("T = ", tokens, ": making inputs and launching"));
  std::vector<testing::DeviceInputs> device;
  for (int rank = 0; rank < kWorld; ++rank) {
    STOKER_ASSIGN_OR_RETURN(
        testing::DeviceInputs inputs,
        testing::DeviceInputs::Upload(testing::MakeInputs(options, rank), options.shape));
    device.push_back(std::move(inputs));
  }
  const moe::LaunchOptions launch{.programmatic_launch = true};
  std::vector<cudaStream_t> streams;
  for (int rank = 0; rank < kWorld; ++rank) streams.push_back(world.stream(rank));
  STOKER_ASSIGN_OR_RETURN(const bench::Timing timing,
                          bench::MeasureLaunches(streams, 20, 30, absl::Seconds(30),
                                                 [&](int rank, cudaStream_t stream) {
                                                   return moe::MoeFinalizeAllReduceRmsNorm(
                                                       world.communicator(rank), options.shape,
                                                       device[rank].finalize(), device[rank].norm(),
                                                       launch, stream);
                                                 }));
  STOKER_RETURN_IF_ERROR(world.communicator(0).Health());
  Result result;
  result.tokens = tokens;
  result.us_per_launch = timing.median_us;
  result.launch = moe::ShapeOf(world.communicator(0), options.shape, launch).ToString();
  result.ranks_equal = true;
  STOKER_ASSIGN_OR_RETURN(result.outputs, device[0].Download());
  for (int rank = 1; rank < kWorld; ++rank) {
    STOKER_ASSIGN_OR_RETURN(const moe::NormResult other, device[rank].Download());
    result.ranks_equal = result.ranks_equal && other.residual_out == result.outputs.residual_out &&
                         other.norm_out == result.outputs.norm_out;
  }
  return CheckAndPrint(result);
}

}  // namespace

bool HasGpu() {
  int count = 0;
  const bool found = cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
  if (!found) cudaGetLastError();
  return found;
}

absl::Status RunOnGpu() {
  cudaDeviceProp properties;
  STOKER_CUDA(cudaGetDeviceProperties(&properties, 0));
  absl::PrintF("World: one GPU (%s), %d ranks as streams that share its SMs.\n", properties.name,
               kWorld);
  comm::GroupOptions group;
  group.capacity = kTokensMax;
  group.hidden_max = kHidden;
  STOKER_ASSIGN_OR_RETURN(auto world, testing::StreamWorld::Create(kWorld, group));
  Progress(world->communicator(0).plan().ToString());
  for (int tokens : kTokens) STOKER_RETURN_IF_ERROR(RunTokens(*world, tokens));
  return absl::OkStatus();
}

}  // namespace stoker::demo
