#include "tools/bench/finalize_rows.h"

#include <cuda_runtime_api.h>

#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/cuda_status.h"
#include "base/status.h"
#include "moe/kernels_hash.h"
#include "testing/comparers.h"

namespace stoker::bench {
namespace {

using nlohmann::json;

// Five digits: more than a measurement has, and rows are kept in the repository.
double Short(double value) {
  double rounded = 0.0;
  return absl::SimpleAtod(absl::StrFormat("%.5g", value), &rounded) ? rounded : value;
}

// The kernel module's version; the CUDA version that the driver speaks where that is not shown.
absl::StatusOr<std::string> DriverVersion() {
  std::string version;
  if (std::ifstream("/sys/module/nvidia/version") >> version) return version;
  int cuda = 0;
  STOKER_CUDA(cudaDriverGetVersion(&cuda));
  return absl::StrCat("CUDA ", cuda / 1000, ".", cuda % 1000 / 10);
}

}  // namespace

RowErrors ErrorsOf(const Cell& cell, const moe::OracleResult& exact,
                   const moe::NormResult& result) {
  const comm::WireType type = cell.shape.wire_type;
  const auto residual = testing::Errors(type, exact.residual_out, result.residual_out);
  const auto norm = testing::Errors(type, exact.norm_out, result.norm_out);
  return {residual.mean, residual.max, norm.mean, norm.max,
          testing::RoundingFloor(type, exact.residual_out).mean};
}

absl::StatusOr<RowContext> GpuContext(const FinalizeBenchOptions& options) {
  cudaDeviceProp properties;
  STOKER_CUDA(cudaGetDeviceProperties(&properties, 0));
  STOKER_ASSIGN_OR_RETURN(const std::string driver, DriverVersion());
  return RowContext{"streams", properties.name, driver, options.run, options.commit};
}

std::string CellKey(const std::string& placement, const Cell& cell) {
  return absl::StrCat(placement, " world ", cell.world, " hidden ", cell.shape.hidden, " tokens ",
                      cell.shape.tokens);
}

absl::StatusOr<std::set<std::string>> FinishedCells(const std::string& path) {
  std::set<std::string> keys;
  std::ifstream file(path);
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    const json row = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!row.is_object() || !row.contains("kernel")) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ":", number, ": not a row of a benchmark; cannot go on with it"));
    }
    // The last row that a cell writes.
    if (row["kernel"] != "stoker again") continue;
    const Cell cell{row.value("world", 0), {row.value("tokens", 0), row.value("hidden", 0)}};
    keys.insert(CellKey(row.value("placement", ""), cell));
  }
  return keys;
}

absl::StatusOr<RowWriter> RowWriter::Open(const std::string& path, const RowContext& context) {
  RowWriter rows;
  rows.context_ = context;
  rows.date_ = absl::FormatTime("%Y-%m-%d", absl::Now(), absl::UTCTimeZone());
  if (!path.empty()) {
    rows.out_.open(path, std::ios::app);
    if (!rows.out_) return ErrnoStatus(errno, absl::StrCat("open ", path));
  }
  return rows;
}

nlohmann::json RowWriter::Fields(const Cell& cell, const FinalizeBenchOptions& options,
                                 const Contender& contender) const {
  return json{{"op", "finalize"},
              {"kernel", contender.name},
              {"world", cell.world},
              {"placement", context_.placement},
              {"hidden", cell.shape.hidden},
              {"tokens", cell.shape.tokens},
              {"top_k", options.top_k},
              {"dtype", cell.shape.wire_type == comm::WireType::kBf16 ? "bf16" : "fp16"},
              {"programmatic", options.contenders.programmatic},
              {"launch", contender.launch_shape},
              {"run", context_.run},
              {"commit", context_.commit},
              {"gpu", context_.gpu},
              {"driver", context_.driver},
              {"ptx_hash", STOKER_KERNELS_PTX_HASH},
              {"date", date_}};
}

void RowWriter::Write(const Cell& cell, const FinalizeBenchOptions& options,
                      const Contender& contender, const std::optional<Timing>& timing,
                      const std::optional<RowErrors>& errors, const CellBound& bound) {
  json line = Fields(cell, options, contender);
  std::string text = absl::StrFormat("%-34s world %d  hidden %5d  tokens %4d", contender.name,
                                     cell.world, cell.shape.hidden, cell.shape.tokens);
  if (timing.has_value()) {
    line["us_min"] = Short(timing->min_us);
    line["us_median"] = Short(timing->median_us);
    line["us_p90"] = Short(timing->p90_us);
    absl::StrAppendFormat(&text, "  %8.2f us (min %.2f, p90 %.2f)", timing->median_us,
                          timing->min_us, timing->p90_us);
  }
  if (bound.us.has_value()) {
    line["bound_us"] = Short(*bound.us);
    absl::StrAppendFormat(&text, "  bound %.2f", *bound.us);
  }
  if (contender.bytes > 0) {
    line["bytes"] = contender.bytes;
    if (timing.has_value()) {
      const double rate =
          static_cast<double>(contender.bytes) / (timing->median_us - bound.edge_us);
      line["bytes_per_us"] = Short(rate);
      absl::StrAppendFormat(&text, "  %.0f GB/s", rate / 1000.0);
    }
  }
  if (errors.has_value()) {
    line["err_residual_mean"] = Short(errors->residual_mean);
    line["err_residual_max"] = Short(errors->residual_max);
    line["err_norm_mean"] = Short(errors->norm_mean);
    line["err_norm_max"] = Short(errors->norm_max);
    line["err_floor"] = Short(errors->floor);
    absl::StrAppendFormat(&text, "  err %.2e (floor %.2e) / %.2e", errors->residual_mean,
                          errors->floor, errors->norm_mean);
  }
  if (out_.is_open()) out_ << line.dump() << std::endl;
  absl::PrintF("%s  %s\n", text, contender.launch_shape);
  std::fflush(stdout);
}

void RowWriter::WriteFailure(const Cell& cell, const FinalizeBenchOptions& options,
                             const Contender& contender, const absl::Status& status) {
  json line = Fields(cell, options, contender);
  line["error"] = status.ToString();
  if (out_.is_open()) out_ << line.dump() << std::endl;
}

}  // namespace stoker::bench
