#include "testing/gpu/fault_member.h"

#include <unistd.h>

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/cuda_status.h"
#include "base/status.h"
#include "comm/cuda_communicator.h"
#include "moe/fused_cuda.h"
#include "testing/stream_world.h"

namespace stoker::testing {
namespace {

constexpr absl::Duration kHung = absl::Seconds(45);  // longer than any deadline of a plan

class GpuMember : public FaultMember {
 public:
  GpuMember(std::unique_ptr<comm::RankExchange> exchange, bool process, const FaultKernels* kernels)
      : exchange_(std::move(exchange)), process_(process), kernels_(kernels) {}
  ~GpuMember() override {
    communicator_.reset();
    for (Prepared& p : prepared_) {
      if (p.graph != nullptr) cudaGraphExecDestroy(p.graph);
    }
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
    if (other_ != nullptr) cudaStreamDestroy(other_);
  }

  absl::Status Create(const comm::GroupOptions& options) {
    STOKER_ASSIGN_OR_RETURN(communicator_,
                            comm::CudaCommunicator::Create(options, {.device = 0}, *exchange_));
    STOKER_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    return CudaStatus(cudaStreamCreateWithFlags(&other_, cudaStreamNonBlocking), "second stream");
  }

  comm::RankExchange& exchange() override { return *exchange_; }
  const comm::HealthPage& page() const override { return communicator_->health_page(); }
  absl::Status Health() const override { return communicator_->Health(); }
  absl::Status SetTimeout(absl::Duration timeout) override {
    return communicator_->SetTimeout(timeout);
  }
  absl::Status Abort() override { return communicator_->Abort(); }
  absl::Status Reset(absl::Duration timeout) override {
    return communicator_->Reset(*exchange_, timeout);
  }
  absl::Status Close(absl::Duration timeout) override {
    return communicator_->Close(*exchange_, timeout);
  }

  absl::StatusOr<int> Prepare(const FaultLaunch& launch) override {
    Prepared p;
    p.launch = launch;
    p.data = MakeFaultData(launch, exchange_->rank(), exchange_->world());
    STOKER_ASSIGN_OR_RETURN(p.device, DeviceInputs::Upload(p.data.inputs, launch.inputs.shape));
    prepared_.push_back(std::move(p));
    Prepared& made = prepared_.back();
    if (launch.graph) {
      cudaGraph_t graph = nullptr;
      STOKER_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
      const absl::Status captured = Enqueue(made, stream_, FaultHook::kNone, {});
      STOKER_CUDA(cudaStreamEndCapture(stream_, &graph));
      STOKER_RETURN_IF_ERROR(captured);
      STOKER_CUDA(cudaGraphInstantiate(&made.graph, graph, 0));
      STOKER_CUDA(cudaGraphDestroy(graph));
    }
    if (launch.hook != FaultHook::kNone) {
      if (kernels_ == nullptr) return absl::UnimplementedError("this fault needs a test build");
      const int64_t pause_ns = absl::ToInt64Nanoseconds(launch.pause);
      STOKER_CUDA(kernels_->set_pause(static_cast<uint64_t>(pause_ns)));
    }
    return static_cast<int>(prepared_.size()) - 1;
  }

  FaultEnd Run(int launch) override {
    Prepared& p = prepared_[static_cast<size_t>(launch)];
    return Timed(p, [&] { return Enqueue(p, stream_, p.launch.hook, {}); });
  }
  FaultEnd Replay(int launch) override {
    Prepared& p = prepared_[static_cast<size_t>(launch)];
    return Timed(p, [&] { return CudaStatus(cudaGraphLaunch(p.graph, stream_), "graph"); });
  }
  FaultEnd RunTwice(int launch) override {
    Prepared& p = prepared_[static_cast<size_t>(launch)];
    return Timed(p, [&]() -> absl::Status {
      STOKER_RETURN_IF_ERROR(Enqueue(p, stream_, p.launch.hook, {}));
      return CudaStatus(cudaGraphLaunch(p.graph, other_), "a graph on a second stream");
    });
  }
  FaultEnd RunWithSecondStream(int launch) override {
    Prepared& p = prepared_[static_cast<size_t>(launch)];
    return Timed(p, [&]() -> absl::Status {
      STOKER_RETURN_IF_ERROR(Enqueue(p, stream_, p.launch.hook, {}));
      const absl::Status refused = Enqueue(p, other_, FaultHook::kNone, {});
      if (refused.code() == absl::StatusCode::kFailedPrecondition) return absl::OkStatus();
      return absl::InternalError(absl::StrCat("not refused: ", refused.ToString()));
    });
  }
  FaultEnd RunWithBrokenPromise(int launch) override {
    Prepared& p = prepared_[static_cast<size_t>(launch)];
    return Timed(p, [&]() -> absl::Status {
      STOKER_RETURN_IF_ERROR(
          Enqueue(p, stream_, p.launch.hook, {.programmatic_launch = true, .early_trigger = true}));
      STOKER_CUDA(kernels_->impatient(stream_));
      return Enqueue(p, stream_, FaultHook::kNone, {.programmatic_launch = true});
    });
  }

  absl::Status SpoilMailbox() override {
    const comm::WorkspaceLayout& layout = communicator_->plan().layout;
    constexpr int64_t kFrom = comm::WorkspaceLayout::kMailboxOffset;
    return CudaStatus(cudaMemset(Workspace() + kFrom, 0x3F, layout.scales_offset() - kFrom),
                      "cudaMemset");
  }
  absl::Status SpoilHeader(int source, uint32_t epoch) override {
    const uint64_t word = comm::HeaderWord(epoch, 0);
    const comm::Header header{word, word};
    for (uint32_t parity : {0u, 1u}) {
      comm::Header* slot =
          comm::HeadersOf(Workspace()) + comm::WorkspaceLayout::header_index(parity, source);
      STOKER_CUDA(cudaMemcpy(slot, &header, sizeof(header), cudaMemcpyHostToDevice));
    }
    return absl::OkStatus();
  }

  // Its peers learn it from their exchange. What they map stays until they have closed it: that a
  // process may take it away before is nowhere promised.
  void EndProcess() override {
    if (!process_) return;
    cudaStreamSynchronize(stream_);
    exchange_.reset();
    absl::SleepFor(absl::Seconds(10));
    _exit(0);
  }
  bool is_process() const override { return process_; }

 private:
  struct Prepared {
    FaultLaunch launch;
    FaultData data;
    DeviceInputs device;
    cudaGraphExec_t graph = nullptr;
  };

  char* Workspace() const {
    return static_cast<char*>(communicator_->Params().workspace[exchange_->rank()]);
  }

  absl::Status Enqueue(Prepared& p, cudaStream_t stream, FaultHook hook,
                       moe::LaunchOptions options) {
    const moe::Shape& shape = p.launch.inputs.shape;
    options.site = p.launch.site;
    options.protocol = p.launch.two_shot ? comm::Protocol::kTwoShot : comm::Protocol::kOneShot;
    if (hook != FaultHook::kNone) options.kernel = kernels_->kernel(hook);
    if (options.kernel != nullptr && moe::ShapeOf(*communicator_, shape, options).vectors != 1) {
      return absl::InternalError("the kernels with faults have one vector a thread");
    }
    if (p.launch.plain) {
      return moe::AllReduceRmsNorm(*communicator_, shape, p.device.finalize().rows, p.device.norm(),
                                   options, stream);
    }
    return moe::MoeFinalizeAllReduceRmsNorm(*communicator_, shape, p.device.finalize(),
                                            p.device.norm(), options, stream);
  }

  template <class Launch>
  FaultEnd Timed(Prepared& p, Launch launch) {
    FaultEnd end;
    end.status = p.device.Poison(stream_);
    const absl::Time start = absl::Now();
    if (end.status.ok()) end.status = launch();
    if (!end.status.ok()) {
      end.result = FaultResult::kNan;  // nothing was launched, or what was is judged by its report
      Await().IgnoreError();
      end.time = absl::Now() - start;
      return end;
    }
    end.status = Await();
    end.time = absl::Now() - start;
    if (!end.status.ok()) return end;
    end.status = communicator_->Health();
    auto outputs = p.device.Download();
    if (!outputs.ok()) {
      end.status = outputs.status();
      return end;
    }
    end.result = JudgeOutputs(p.data.expected, *outputs);
    return end;
  }

  absl::Status Await() {
    const absl::Time limit = absl::Now() + kHung;
    for (cudaStream_t stream : {stream_, other_}) {
      cudaError_t state = cudaErrorNotReady;
      while ((state = cudaStreamQuery(stream)) == cudaErrorNotReady) {
        if (absl::Now() > limit) return absl::InternalError("a launch hangs");
        absl::SleepFor(absl::Microseconds(20));
      }
      STOKER_RETURN_IF_ERROR(CudaStatus(state, "cudaStreamQuery"));
    }
    return absl::OkStatus();
  }

  std::unique_ptr<comm::RankExchange> exchange_;
  const bool process_;
  const FaultKernels* const kernels_;
  std::unique_ptr<comm::CudaCommunicator> communicator_;
  cudaStream_t stream_ = nullptr, other_ = nullptr;
  std::vector<Prepared> prepared_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<FaultMember>> MakeGpuFaultMember(
    const comm::GroupOptions& options, std::unique_ptr<comm::RankExchange> exchange, bool process,
    const FaultKernels* kernels) {
  auto member = std::make_unique<GpuMember>(std::move(exchange), process, kernels);
  STOKER_RETURN_IF_ERROR(member->Create(options));
  return std::unique_ptr<FaultMember>(std::move(member));
}

}  // namespace stoker::testing
