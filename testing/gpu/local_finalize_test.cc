// Finalize alone on a GPU: the reference's bits, eager and captured, whatever the shape.
#include "moe/local_finalize.h"

#include "moe/reference.h"
#include "testing/gpu/gpu_fixture.h"

namespace stoker::testing {
namespace {

class LocalFinalize : public GpuTest {};

// The output goes where the fused tail's norm_out would.
moe::Rows Download(const DeviceInputs& device) {
  auto result = device.Download();
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? result->norm_out : moe::Rows();
}

TEST_F(LocalFinalize, HasTheReferencesBitsInEveryVariant) {
  const int hidden[] = {8, 1344, 2688, 2880, 3584, 7168, 16384};
  const int tokens[] = {1, 3, 64, 0, 17};
  for (int variant = 0; variant < 35; ++variant) {
    InputOptions options;
    options.shape = {tokens[variant % 5], hidden[variant % 7],
                     variant % 2 == 0 ? comm::WireType::kBf16 : comm::WireType::kFp16};
    options.top_k = 1 + variant * 5 % 32;
    options.weights = variant % 3 != 0;
    options.weight_type = variant % 4 < 2 ? moe::ScalarType::kWire : moe::ScalarType::kFp32;
    options.shared = variant % 5 < 3;
    options.cold = variant % 8 < 3;
    options.cold_type = variant % 3 == 1 ? moe::ScalarType::kFp32 : moe::ScalarType::kWire;
    options.dropped_routes = variant % 2 == 1;
    options.special_values = variant % 4 == 3;
    options.seed = variant + 1;
    auto data = UploadAll(options, 1);
    ASSERT_TRUE(data.ok()) << data.status();
    const DeviceInputs& device = data->device[0];
    STOKER_ASSERT_OK(moe::MoeFinalize(options.shape, device.finalize(), device.norm().norm_out,
                                      variant % 2 == 0, nullptr));
    ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(DifferenceInBits(options.shape,
                               moe::ReferencePartial(options.shape, data->host[0].finalize),
                               Download(device)),
              "")
        << "variant " << variant;
  }
}

TEST_F(LocalFinalize, ACapturedChainReplaysWithChangedInputs) {
  InputOptions options;
  options.shape = {16, 2880, comm::WireType::kBf16};
  auto data = UploadAll(options, 1);
  options.seed = 2;
  auto other = UploadAll(options, 1);
  ASSERT_TRUE(data.ok() && other.ok());
  DeviceInputs& device = data->device[0];
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  for (int i = 0; i < 3; ++i) {
    STOKER_ASSERT_OK(moe::MoeFinalize(options.shape, device.finalize(), device.norm().norm_out,
                                      /*programmatic_launch=*/true, stream));
  }
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t replay = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&replay, graph, 0), cudaSuccess);
  for (const Inputs* inputs : {&data->host[0], &other->host[0]}) {
    if (inputs == &other->host[0]) STOKER_ASSERT_OK(device.CopyInputs(other->device[0], stream));
    STOKER_ASSERT_OK(device.Poison(stream));
    ASSERT_EQ(cudaGraphLaunch(replay, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(
        DifferenceInBits(options.shape, moe::ReferencePartial(options.shape, inputs->finalize),
                         Download(device)),
        "");
  }
  cudaGraphExecDestroy(replay);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
}

TEST_F(LocalFinalize, ATokenWithAnIndexOutOfRangeIsNanThroughout) {
  InputOptions options;
  options.shape = {3, 2880, comm::WireType::kFp16};
  Inputs in = MakeInputs(options, 0);
  const moe::Rows right = moe::ReferencePartial(options.shape, in.finalize);
  in.indices[8 + 5] = static_cast<int32_t>(in.finalize.row_count);
  auto device = DeviceInputs::Upload(in, options.shape);
  ASSERT_TRUE(device.ok()) << device.status();
  STOKER_ASSERT_OK(moe::MoeFinalize(options.shape, device->finalize(), device->norm().norm_out,
                                    /*programmatic_launch=*/false, nullptr));
  ASSERT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  const moe::Rows actual = Download(*device);
  ASSERT_EQ(actual.size(), right.size());
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(actual[i], i / 2880 == 1 ? comm::kStoredNan : right[i]) << "element " << i;
  }
}

}  // namespace
}  // namespace stoker::testing
