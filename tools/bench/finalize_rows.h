// The rows of `stoker bench finalize`: a JSON line in a file and a line of the printed table each.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>

#include "absl/status/statusor.h"
#include "moe/arguments.h"
#include "moe/oracle.h"
#include "moe/reference.h"
#include "tools/bench/finalize.h"
#include "tools/bench/measure.h"

namespace stoker::bench {

struct Cell {
  int world;
  moe::Shape shape;
};

// Absolute errors against FP64, and the mean error of rounding the exact residual_out.
struct RowErrors {
  double residual_mean, residual_max, norm_mean, norm_max, floor;
};

RowErrors ErrorsOf(const Cell& cell, const moe::OracleResult& exact, const moe::NormResult& result);

struct CellBound {
  std::optional<double> us;  // of the cell
  double edge_us = 0.0;      // part of a row's time in which its bytes do not move
};

// Where and of what a run's rows speak.
struct RowContext {
  std::string placement;  // streams or cpu
  std::string gpu;        // its name, or none
  std::string driver;
  std::string run;
  std::string commit;
};

// Of device 0; Unavailable without a GPU.
absl::StatusOr<RowContext> GpuContext(const FinalizeBenchOptions& options);

// Names a cell among those of one dtype and top-k.
std::string CellKey(const std::string& placement, const Cell& cell);

// Keys of the cells whose last row is in the file at `path`; none if there is no such file.
absl::StatusOr<std::set<std::string>> FinishedCells(const std::string& path);

class RowWriter {
 public:
  // `path` may be empty: then rows are only printed. Rows carry the context and today's date.
  static absl::StatusOr<RowWriter> Open(const std::string& path, const RowContext& context);
  // Without what was not measured.
  void Write(const Cell& cell, const FinalizeBenchOptions& options, const Contender& contender,
             const std::optional<Timing>& timing, const std::optional<RowErrors>& errors,
             const CellBound& bound);
  void WriteFailure(const Cell& cell, const FinalizeBenchOptions& options,
                    const Contender& contender, const absl::Status& status);

 private:
  RowWriter() = default;
  nlohmann::json Fields(const Cell& cell, const FinalizeBenchOptions& options,
                        const Contender& contender) const;

  RowContext context_;
  std::string date_;
  std::ofstream out_;
};

}  // namespace stoker::bench
