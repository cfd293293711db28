#include "comm/cuda_communicator.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/cuda_status.h"
#include "base/status.h"

namespace stoker::comm {
namespace {

// Makes `device` current for a scope.
class DeviceScope {
 public:
  explicit DeviceScope(int device) {
    cudaGetDevice(&previous_);
    if (previous_ != device) cudaSetDevice(device);
  }
  ~DeviceScope() { cudaSetDevice(previous_); }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  int previous_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CudaCommunicator>> CudaCommunicator::Create(
    const GroupOptions& options, const CudaOptions& cuda, RankExchange& exchange) {
  auto communicator = std::unique_ptr<CudaCommunicator>(new CudaCommunicator());
  // What may fail on one rank alone is followed by a word to the others, so that they learn it now
  // and not by the set-up deadline.
  STOKER_RETURN_IF_ERROR(exchange.AllSucceeded("choosing devices", communicator->ChooseDevice(cuda),
                                               options.setup_timeout));
  DeviceScope scope(communicator->device_);

  STOKER_ASSIGN_OR_RETURN(const EnvironmentVariables environment, EnvironmentVariables::Read());
  STOKER_ASSIGN_OR_RETURN(communicator->plan_, AgreeOnPlan(options, environment, exchange));
  const absl::Duration timeout = options.setup_timeout;
  STOKER_ASSIGN_OR_RETURN(
      communicator->health_,
      Health::Create(communicator->plan_, communicator->device_, exchange, timeout));
  communicator->placement_.sms = cuda.sm_budget;
  absl::Status allocated = communicator->Allocate();
  if (allocated.ok())
    allocated = communicator->Wipe(Epoch(communicator->plan_.first_epoch), Generation(0));
  STOKER_RETURN_IF_ERROR(exchange.AllSucceeded("allocating workspaces", allocated, timeout));
  STOKER_RETURN_IF_ERROR(communicator->Connect(exchange, timeout));
  if (communicator->plan_.nccl_tokens_max > 0) {
    STOKER_RETURN_IF_ERROR(communicator->AddNccl(options.nccl_optional, exchange, timeout));
  }
  communicator->at_termination_.emplace([c = communicator.get()] { c->Abort().IgnoreError(); });
  return communicator;
}

CudaCommunicator::~CudaCommunicator() {
  if (lifecycle_.closed()) return;
  DeviceScope scope(device_);
  const bool connected = at_termination_.has_value();
  at_termination_.reset();
  // A launch that still waits would lose the peers' memory and the health page under its feet, and
  // the peers would wait for this rank until their deadline.
  if (connected) {
    Abort().IgnoreError();
    cudaDeviceSynchronize();
  }
  // Without a collective Close a peer may still write to the workspace, so it stays allocated.
  Free(/*own_too=*/plan_.world <= 1);
}

absl::Status CudaCommunicator::ChooseDevice(const CudaOptions& options) {
  const int device = options.device;
  int count = 0;
  STOKER_RETURN_IF_ERROR(CudaStatus(cudaGetDeviceCount(&count),
                                    "looking for a GPU (is there one, with a driver for CUDA 13, "
                                    "and does CUDA_VISIBLE_DEVICES show it?)"));
  if (device >= count) {
    return absl::InvalidArgumentError(
        absl::StrCat("device ", device, ": this process sees ", count, " CUDA devices"));
  }
  device_ = device;
  if (device < 0) STOKER_CUDA(cudaGetDevice(&device_));
  int sms = 0;
  STOKER_CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device_));
  if (options.sm_budget >= 0 && options.sm_budget <= sms) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("SM budget of ", options.sm_budget, ": device ", device_, " has ", sms,
                   " SMs; ask for 1 to that many, or 0 for all that the group leaves"));
}

absl::Status CudaCommunicator::Allocate() {
  STOKER_CUDA(cudaStreamCreateWithFlags(&control_stream_, cudaStreamNonBlocking));
  STOKER_CUDA(cudaHostRegister(health_.page(), health_.bytes(),
                               cudaHostRegisterMapped | cudaHostRegisterPortable));
  STOKER_CUDA(cudaHostGetDevicePointer(&health_on_device_, health_.page(), 0));
  // cudaMalloc, whatever the caller's allocator is: CUDA IPC exports nothing else.
  return CudaStatus(cudaMalloc(&workspace_[plan_.rank], plan_.layout.bytes()),
                    absl::StrCat("cudaMalloc of a workspace of ", plan_.layout.bytes(),
                                 " bytes (lower the capacity or the largest hidden size)"));
}

absl::Status CudaCommunicator::Wipe(Epoch first, Generation generation) {
  char* workspace = static_cast<char*>(workspace_[plan_.rank]);
  const int64_t mailbox_bytes = plan_.layout.scales_offset() - WorkspaceLayout::kMailboxOffset;
  STOKER_CUDA(cudaMemsetAsync(workspace + WorkspaceLayout::kMailboxOffset, 0xFF, mailbox_bytes,
                              control_stream_));
  // As if every peer had launched the epoch two before the first one of each parity.
  Header headers[2 * kWorldMax];
  for (uint32_t epoch : {first.value(), first.value() + 1u}) {
    for (int source = 0; source < kWorldMax; ++source) {
      headers[WorkspaceLayout::header_index(epoch, source)] = {HeaderWord(epoch - 2u, 0),
                                                               HeaderWord(epoch - 2u, 0)};
    }
  }
  std::vector<uint64_t> scales(2 * plan_.layout.capacity);
  for (uint32_t epoch : {first.value(), first.value() + 1u}) {
    std::fill_n(scales.begin() + plan_.layout.scale_index(epoch, 0), plan_.layout.capacity,
                HeaderWord(epoch - 2u, 0));
  }
  STOKER_CUDA(cudaMemcpyAsync(workspace + plan_.layout.scales_offset(), scales.data(),
                              scales.size() * sizeof(uint64_t), cudaMemcpyHostToDevice,
                              control_stream_));
  STOKER_CUDA(cudaMemcpyAsync(workspace + WorkspaceLayout::kHeadersOffset, headers, sizeof(headers),
                              cudaMemcpyHostToDevice, control_stream_));
  const Control control = MakeControl(plan_, first, generation);
  STOKER_CUDA(cudaMemcpyAsync(workspace, &control, sizeof(control), cudaMemcpyHostToDevice,
                              control_stream_));
  STOKER_CUDA(cudaStreamSynchronize(control_stream_));
  generation_ = generation;
  eager_launches_ = 0;
  return absl::OkStatus();
}

absl::Status CudaCommunicator::Health() const {
  STOKER_RETURN_IF_ERROR(lifecycle_.over());
  const absl::Status reported = health_.Check();
  if (nccl_ == nullptr) return reported;
  if (!reported.ok()) {
    // Whoever failed has stopped all ranks; what waits in NCCL does not look there.
    nccl_->Abort();
    return reported;
  }
  const absl::Status noticed = nccl_->Check();
  // Outputs become NaN before NCCL, released, lets the stream go on.
  if (!noticed.ok()) lifecycle_.Stop([this] { return StopAll(); }).IgnoreError();
  return noticed;
}

ExchangeParams CudaCommunicator::Params() const {
  ExchangeParams params{};
  std::copy(std::begin(workspace_), std::end(workspace_), params.workspace);
  params.health = &static_cast<HealthPage*>(health_on_device_)->ranks[plan_.rank];
  params.layout = plan_.layout;
  params.rank = plan_.rank;
  return params;
}

absl::Status CudaCommunicator::SetTimeout(absl::Duration timeout) {
  const int64_t ms = absl::ToInt64Milliseconds(timeout);
  if (ms < 1 || ms > kTimeoutMsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("timeout of ", ms, " ms: 1 to ", kTimeoutMsMax, " (24 h) are supported"));
  }
  return lifecycle_.WhileMapped([this, ms] {
    const uint64_t both[2] = {static_cast<uint64_t>(ms) * 1'000'000u,
                              static_cast<uint64_t>(ms) * 1'000'000u};
    plan_.timeout_ns = plan_.startup_timeout_ns = ms * 1'000'000;
    DeviceScope scope(device_);
    STOKER_CUDA(cudaMemcpyAsync(&ControlOf(workspace_[plan_.rank])->timeout_ns, both, sizeof(both),
                                cudaMemcpyHostToDevice, control_stream_));
    return CudaStatus(cudaStreamSynchronize(control_stream_), "cudaStreamSynchronize");
  });
}

absl::Status CudaCommunicator::StopAll() const {
  DeviceScope scope(device_);
  const uint32_t one = 1;
  for (int rank = 0; rank < plan_.world; ++rank) {
    STOKER_CUDA(cudaMemcpyAsync(&ControlOf(workspace_[rank])->abort, &one, sizeof(one),
                                cudaMemcpyHostToDevice, control_stream_));
  }
  const cudaError_t stopped = cudaStreamSynchronize(control_stream_);
  if (nccl_ != nullptr) nccl_->Abort();
  return CudaStatus(stopped, "cudaStreamSynchronize");
}

absl::Status CudaCommunicator::Abort() {
  return lifecycle_.Stop([this] { return ReportAndStopAll(); });
}

absl::Status CudaCommunicator::ReportAndStopAll() {
  FailureRecord* record = &health_.own()->record;
  // A failure that somebody has reported is the cause; stopping is what follows from it.
  if (health_.Check().ok()) {
    DeviceScope scope(device_);
    STOKER_CUDA(cudaMemcpyAsync(&record->epoch, &ControlOf(workspace_[plan_.rank])->epoch,
                                sizeof(record->epoch), cudaMemcpyDeviceToHost, control_stream_));
    STOKER_CUDA(cudaStreamSynchronize(control_stream_));
    record->code = FailureCode::kAborted;
    record->rank = plan_.rank;
    record->peer = record->token = record->packet = -1;
    __atomic_store_n(&record->valid, generation_.value() + 1u, __ATOMIC_RELEASE);
  }
  return StopAll();
}

absl::Status CudaCommunicator::Reset(RankExchange& exchange, absl::Duration timeout) {
  STOKER_RETURN_IF_ERROR(lifecycle_.BeginReset([this] { return StopAll(); }));
  DeviceScope scope(device_);
  return lifecycle_.EndReset(WipeTogether(exchange, timeout),
                             [this] { return ReportAndStopAll(); });
}

absl::Status CudaCommunicator::WipeTogether(RankExchange& exchange, absl::Duration timeout) {
  STOKER_CUDA(cudaDeviceSynchronize());
  uint32_t epoch = 0;
  STOKER_CUDA(cudaMemcpy(&epoch, &ControlOf(workspace_[plan_.rank])->epoch, sizeof(epoch),
                         cudaMemcpyDeviceToHost));
  STOKER_ASSIGN_OR_RETURN(
      const std::vector<std::string> messages,
      exchange.AllGather("resetting",
                         absl::string_view(reinterpret_cast<const char*>(&epoch), sizeof(epoch)),
                         timeout));
  // The largest in the order of a counter that wraps: members are at most a few launches apart.
  uint32_t latest = epoch;
  for (const std::string& message : messages) {
    uint32_t theirs = 0;
    if (message.size() != sizeof(theirs)) return absl::InternalError("a reset message is torn");
    std::memcpy(&theirs, message.data(), sizeof(theirs));
    if (static_cast<int32_t>(theirs - latest) > 0) latest = theirs;
  }
  STOKER_RETURN_IF_ERROR(Wipe(Epoch(latest + 2u), Generation(generation_.value() + 1u)));
  health_.Wipe(generation_);
  STOKER_RETURN_IF_ERROR(exchange.Barrier("wiping after a failure", timeout));
  return nccl_ == nullptr ? absl::OkStatus() : ConnectNccl(exchange, timeout);
}

absl::Status CudaCommunicator::Close(RankExchange& exchange, absl::Duration timeout) {
  STOKER_ASSIGN_OR_RETURN(const bool first, lifecycle_.BeginClose());
  if (!first) return absl::OkStatus();
  DeviceScope scope(device_);
  absl::Status status = exchange.Barrier("closing", timeout);
  if (!status.ok()) status.Update(Abort());
  // Launches that every rank has made still end by themselves; nobody makes others now.
  status.Update(Synchronise(timeout));
  if (status.ok()) status = exchange.Barrier("draining", timeout);
  // From here on Abort and SetTimeout are refused, in whatever thread.
  at_termination_.reset();
  lifecycle_.EndClose();
  Free(/*own_too=*/status.ok());
  return status;
}

// A launch whose peers never come waits for its own deadline, which may be a day: after `timeout`
// the group is stopped.
absl::Status CudaCommunicator::Synchronise(absl::Duration timeout) {
  std::mutex mutex;
  std::condition_variable changed;
  bool done = false;
  std::thread watch([&] {
    std::unique_lock<std::mutex> lock(mutex);
    const auto limit = absl::ToChronoNanoseconds(std::min(timeout, absl::Hours(24)));
    if (!changed.wait_for(lock, limit, [&] { return done; })) Abort().IgnoreError();
  });
  const absl::Status status = CudaStatus(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  {
    std::lock_guard<std::mutex> lock(mutex);
    done = true;
  }
  changed.notify_one();
  watch.join();
  return status;
}

void CudaCommunicator::Free(bool own_too) {
  DeviceScope scope(device_);
  if (nccl_ != nullptr) nccl_->Abort();  // drained: it frees its memory
  for (int peer = 0; peer < plan_.world; ++peer) {
    if (opened_[peer]) cudaIpcCloseMemHandle(workspace_[peer]);
    opened_[peer] = false;
  }
  if (own_too && workspace_[plan_.rank] != nullptr) cudaFree(workspace_[plan_.rank]);
  if (health_on_device_ != nullptr) cudaHostUnregister(health_.page());
  health_on_device_ = nullptr;
  if (control_stream_ != nullptr) cudaStreamDestroy(control_stream_);
  control_stream_ = nullptr;
}

absl::StatusOr<CudaCommunicator::Place> CudaCommunicator::PlaceOf(cudaStream_t stream) {
  Place place;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  STOKER_CUDA(cudaStreamGetCaptureInfo(stream, &capture, &place.capture, nullptr, nullptr, nullptr,
                                       nullptr));
  if (capture == cudaStreamCaptureStatusNone) {
    place.capture = 0;
    STOKER_CUDA(cudaStreamGetId(stream, &place.stream));
  } else {
    // The identity may not be asked for while capturing; the handle cannot be reused meanwhile.
    place.stream = reinterpret_cast<uintptr_t>(stream);
  }
  return place;
}

absl::StatusOr<bool> CudaCommunicator::LaunchInFlight() {
  // Another thread may be capturing: this copy must not break its capture.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  STOKER_CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
  Control control;
  const cudaError_t copied = cudaMemcpyAsync(&control, workspace_[plan_.rank], sizeof(control),
                                             cudaMemcpyDeviceToHost, control_stream_);
  const cudaError_t waited = cudaStreamSynchronize(control_stream_);
  STOKER_CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
  STOKER_RETURN_IF_ERROR(CudaStatus(copied, "reading the launch counters"));
  STOKER_RETURN_IF_ERROR(CudaStatus(waited, "reading the launch counters"));
  // Replays of graphs advance the epoch as well, so this can miss a launch that is still queued;
  // the ticket that every CTA takes on the device cannot.
  const int32_t missing =
      static_cast<int32_t>(control.first_epoch + eager_launches_ - control.epoch);
  // A launch advances the epoch before its last CTA arrives.
  const bool arriving = control.finished[(control.epoch - 1u) & 1u] != control.last_ctas;
  return control.started != 0 || arriving || missing > 0;
}

absl::Status CudaCommunicator::BeforeLaunch(cudaStream_t stream) {
  STOKER_RETURN_IF_ERROR(lifecycle_.Check());
  STOKER_RETURN_IF_ERROR(Health());
  STOKER_ASSIGN_OR_RETURN(const Place place, PlaceOf(stream));
  bool unordered = false;
  if (place.capture != 0) {
    unordered = place.capture == last_.capture && place.stream != last_.stream;
  } else if (eager_launches_ > 0 && place.stream != last_eager_stream_) {
    STOKER_ASSIGN_OR_RETURN(unordered, LaunchInFlight());
  }
  if (!unordered) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "this launch is on another stream than the communicator's last one, which has not completed. "
      "Launch on one stream, or synchronise the last stream first; for concurrent streams create a "
      "communicator for each.");
}

absl::Status CudaCommunicator::AfterLaunch(cudaStream_t stream) {
  STOKER_ASSIGN_OR_RETURN(last_, PlaceOf(stream));
  if (last_.capture == 0) {
    last_eager_stream_ = last_.stream;
    ++eager_launches_;
  }
  return CudaStatus(cudaGetLastError(), "launch");
}

}  // namespace stoker::comm
