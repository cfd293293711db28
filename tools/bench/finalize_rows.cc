#include "tools/bench/finalize_rows.h"

#include <cuda_runtime_api.h>

#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/cuda_status.h"
#include "base/status.h"

namespace stoker::bench {
namespace {

using nlohmann::json;

// The kernel module's version; the CUDA version that the driver speaks where that is not shown.
absl::StatusOr<std::string> DriverVersion() {
  std::string version;
  if (std::ifstream("/sys/module/nvidia/version") >> version) return version;
  int cuda = 0;
  STOKER_CUDA(cudaDriverGetVersion(&cuda));
  return absl::StrCat("CUDA ", cuda / 1000, ".", cuda % 1000 / 10);
}

json CellFields(const Cell& cell, const FinalizeBenchOptions& options, const Contender& contender) {
  return json{{"op", "finalize"},
              {"kernel", contender.name},
              {"world", cell.world},
              {"placement", "streams"},
              {"hidden", cell.shape.hidden},
              {"tokens", cell.shape.tokens},
              {"top_k", options.top_k},
              {"dtype", cell.shape.wire_type == comm::WireType::kBf16 ? "bf16" : "fp16"},
              {"programmatic", options.contenders.programmatic},
              {"launch", contender.launch_shape}};
}

}  // namespace

absl::StatusOr<RowWriter> RowWriter::Open(const std::string& path, const std::string& run,
                                          const std::string& commit) {
  RowWriter rows;
  rows.run_ = run;
  rows.commit_ = commit;
  cudaDeviceProp properties;
  STOKER_CUDA(cudaGetDeviceProperties(&properties, 0));
  rows.gpu_ = properties.name;
  STOKER_ASSIGN_OR_RETURN(rows.driver_, DriverVersion());
  rows.date_ = absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone());
  if (!path.empty()) {
    rows.out_.open(path, std::ios::app);
    if (!rows.out_) return ErrnoStatus(errno, absl::StrCat("open ", path));
  }
  return rows;
}

void RowWriter::Write(const Cell& cell, const FinalizeBenchOptions& options,
                      const Contender& contender, const Timing& timing, const RowErrors& errors) {
  json line = CellFields(cell, options, contender);
  line["us_min"] = timing.min_us;
  line["us_median"] = timing.median_us;
  line["us_p90"] = timing.p90_us;
  line["err_residual_mean"] = errors.residual_mean;
  line["err_residual_max"] = errors.residual_max;
  line["err_norm_mean"] = errors.norm_mean;
  line["err_norm_max"] = errors.norm_max;
  line["err_floor"] = errors.floor;
  line.update(json{
      {"run", run_}, {"commit", commit_}, {"gpu", gpu_}, {"driver", driver_}, {"date", date_}});
  if (out_.is_open()) out_ << line.dump() << std::endl;
  absl::PrintF(
      "%-34s world %d  hidden %5d  tokens %4d  %8.2f us (min %.2f, p90 %.2f)  err %.2e (floor "
      "%.2e) / %.2e  %s\n",
      contender.name, cell.world, cell.shape.hidden, cell.shape.tokens, timing.median_us,
      timing.min_us, timing.p90_us, errors.residual_mean, errors.floor, errors.norm_mean,
      contender.launch_shape);
  std::fflush(stdout);
}

void RowWriter::WriteFailure(const Cell& cell, const FinalizeBenchOptions& options,
                             const Contender& contender, const absl::Status& status) {
  json line = CellFields(cell, options, contender);
  line["error"] = status.ToString();
  line.update(json{
      {"run", run_}, {"commit", commit_}, {"gpu", gpu_}, {"driver", driver_}, {"date", date_}});
  if (out_.is_open()) out_ << line.dump() << std::endl;
}

}  // namespace stoker::bench
