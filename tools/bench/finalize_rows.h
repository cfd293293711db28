// The rows of `stoker bench finalize`: a JSON line in a file and a line of the printed table each.
#pragma once

#include <fstream>
#include <string>

#include "absl/status/statusor.h"
#include "moe/arguments.h"
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

class RowWriter {
 public:
  // `path` may be empty: then rows are only printed. Rows name the run, the commit, the GPU of
  // device 0, its driver and today's date.
  static absl::StatusOr<RowWriter> Open(const std::string& path, const std::string& run,
                                        const std::string& commit);
  void Write(const Cell& cell, const FinalizeBenchOptions& options, const Contender& contender,
             const Timing& timing, const RowErrors& errors);
  void WriteFailure(const Cell& cell, const FinalizeBenchOptions& options,
                    const Contender& contender, const absl::Status& status);

 private:
  RowWriter() = default;
  std::string run_, commit_, gpu_, driver_, date_;
  std::ofstream out_;
};

}  // namespace stoker::bench
