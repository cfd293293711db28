#include "ops/offload_ops.h"

#include <torch/csrc/stable/ops.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/environment_variables.h"
#include "base/status.h"
#include "offload/cpu_expert_kernel.h"
#include "offload/engine.h"
#include "offload/trace/trace.h"
#include "ops/communicator_registry.h"
#include "ops/offload_api.h"

namespace stoker::ops {
namespace {

using torch::headeronly::ScalarType;
using EnginePtr = std::shared_ptr<offload::Engine>;

class Engines {
 public:
  static Engines& Get() {
    static auto* engines = new Engines();
    return *engines;
  }
  int64_t Add(EnginePtr engine) {
    absl::MutexLock lock(&mutex_);
    engines_[++last_] = std::move(engine);
    return last_;
  }
  absl::StatusOr<EnginePtr> Find(int64_t handle) {
    absl::MutexLock lock(&mutex_);
    const auto found = engines_.find(handle);
    if (found != engines_.end()) return found->second;
    return absl::NotFoundError(
        absl::StrCat("offload engine ", handle, " is not open in this process; was it closed?"));
  }
  EnginePtr Remove(int64_t handle) {
    absl::MutexLock lock(&mutex_);
    const auto found = engines_.find(handle);
    if (found == engines_.end()) return nullptr;
    EnginePtr engine = std::move(found->second);
    engines_.erase(found);
    return engine;
  }

 private:
  absl::Mutex mutex_;
  std::map<int64_t, EnginePtr> engines_;
  int64_t last_ = 0;
};

// All kernels give the same results.
absl::StatusOr<const offload::cpu::ExpertKernel*> Choose() {
  STOKER_ASSIGN_OR_RETURN(const EnvironmentVariables environment, EnvironmentVariables::Read());
  return offload::cpu::ChooseKernel(offload::cpu::DetectCpuFeatures(),
                                    environment.cpu_kernel.c_str());
}

absl::StatusOr<const offload::ExpertKernel*> Kernel() {
  static const auto* chosen = new auto(Choose());
  if (!chosen->ok()) return chosen->status();
  static const auto* kernel = new offload::CpuExpertKernel(***chosen);
  return kernel;
}

absl::StatusOr<int64_t> CreateEngine(const StokerOffloadOptions& in) {
  if (in.checkpoint == nullptr) return absl::InvalidArgumentError("checkpoint is missing");
  if (in.cache_bytes < 0 || in.timeout_ms < 0) {
    return absl::InvalidArgumentError("cache_bytes or timeout is negative");
  }
  STOKER_RETURN_IF_ERROR(offload::cpu::CheckFloatingPointMode());
  STOKER_ASSIGN_OR_RETURN(const offload::ExpertKernel* kernel, Kernel());
  STOKER_ASSIGN_OR_RETURN(auto checkpoint, offload::Checkpoint::Open(in.checkpoint));
  offload::EngineOptions options;
  options.cache_bytes = static_cast<uint64_t>(in.cache_bytes);
  options.rank = in.rank;
  options.world_size = in.world_size;
  options.compute_threads = in.compute_threads;
  if (in.io_threads != 0) options.io_threads = in.io_threads;
  options.record_groups = in.record_groups;
  if (in.timeout_ms != 0) options.timeout = absl::Milliseconds(in.timeout_ms);
  STOKER_ASSIGN_OR_RETURN(auto engine,
                          offload::Engine::Create(std::move(checkpoint), *kernel, options));
  return Engines::Get().Add(std::move(engine));
}

// An index of layers(), or an error that names them.
absl::StatusOr<int> LayerIndex(const offload::Checkpoint& checkpoint, int64_t layer) {
  const std::vector<int>& layers = checkpoint.layers();
  const auto found = std::lower_bound(layers.begin(), layers.end(), layer);
  if (found != layers.end() && *found == layer) return static_cast<int>(found - layers.begin());
  return absl::InvalidArgumentError(absl::StrCat("layer ", layer,
                                                 " has no experts in the checkpoint; its layers "
                                                 "are in [",
                                                 layers.front(), ", ", layers.back(), "]"));
}

template <class T, class From = T>
std::vector<T> Converted(const Tensor& tensor) {
  const From* data = static_cast<const From*>(tensor.const_data_ptr());
  return std::vector<T>(data, data + tensor.numel());
}

// Exact: every value of the three types is a float.
std::vector<float> Floats(const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case ScalarType::BFloat16:
      return Converted<float, torch::headeronly::BFloat16>(tensor);
    case ScalarType::Half:
      return Converted<float, torch::headeronly::Half>(tensor);
    default:
      return Converted<float>(tensor);
  }
}

// An id that does not fit becomes -1, which is skipped like it.
std::vector<int32_t> Ids(const Tensor& tensor) {
  if (tensor.scalar_type() == ScalarType::Int) return Converted<int32_t>(tensor);
  std::vector<int32_t> ids;
  for (const int64_t id : Converted<int64_t>(tensor)) {
    ids.push_back(id < 0 || id > INT32_MAX ? -1 : static_cast<int32_t>(id));
  }
  return ids;
}

}  // namespace

Tensor OffloadExperts(Tensor hidden, Tensor topk_ids, Tensor topk_weights,
                      double routed_scaling_factor, int64_t layer, int64_t handle) {
  CheckOffloadArguments(hidden, topk_ids, topk_weights);
  auto engine = Engines::Get().Find(handle);
  ThrowIfError(engine.status());
  ThrowIfError(offload::cpu::CheckFloatingPointMode());
  const offload::Checkpoint& checkpoint = (*engine)->checkpoint();
  const auto layer_index = LayerIndex(checkpoint, layer);
  ThrowIfError(layer_index.status());
  if (hidden.size(1) != checkpoint.shape().hidden) {
    ThrowIfError(absl::InvalidArgumentError(
        absl::StrCat("hidden has ", hidden.size(1), " columns; the checkpoint's hidden size is ",
                     checkpoint.shape().hidden)));
  }
  const std::array<int64_t, 2> sizes = {hidden.size(0), hidden.size(1)};
  const Tensor out =
      torch::stable::new_empty(hidden, {sizes.data(), sizes.size()}, ScalarType::Float);
  const std::vector<float> rows = Floats(hidden);
  const std::vector<float> weights = Floats(topk_weights);
  const std::vector<int32_t> ids = Ids(topk_ids);
  offload::Batch batch;
  batch.layer_index = *layer_index;
  batch.tokens = static_cast<int>(hidden.size(0));
  batch.top_k = static_cast<int>(topk_ids.size(1));
  batch.hidden = rows.data();
  batch.expert_ids = ids.data();
  batch.weights = weights.data();
  batch.routed_scaling_factor = static_cast<float>(routed_scaling_factor);
  ThrowIfError((*engine)->Run(
      batch, absl::MakeSpan(static_cast<float*>(out.mutable_data_ptr()), rows.size())));
  return out;
}

}  // namespace stoker::ops

int stoker_offload_create(const StokerOffloadOptions* options, int64_t* handle, char* error,
                          int64_t bytes) {
  const auto created = stoker::ops::CreateEngine(*options);
  if (created.ok()) *handle = *created;
  return stoker::ops::Report(created.status(), error, bytes);
}

int stoker_offload_stats(int64_t handle, StokerOffloadStats* out, char* error, int64_t bytes) {
  const auto engine = stoker::ops::Engines::Get().Find(handle);
  if (engine.ok()) {
    const stoker::offload::EngineStats s = (*engine)->stats();
    *out = {s.hits, s.misses, s.evictions, s.skipped_routes, s.bytes_read, s.failed_calls, s.slots};
  }
  return stoker::ops::Report(engine.status(), error, bytes);
}

int stoker_offload_save_trace(int64_t handle, const char* path, char* error, int64_t bytes) {
  const auto engine = stoker::ops::Engines::Get().Find(handle);
  return stoker::ops::Report(
      engine.ok() ? stoker::offload::WriteTrace((*engine)->RecordedTrace(), path) : engine.status(),
      error, bytes);
}

int stoker_offload_close(int64_t handle, char*, int64_t) {
  // Destroyed by whoever lets go last: a call that runs keeps it.
  stoker::ops::Engines::Get().Remove(handle);
  return 0;
}
