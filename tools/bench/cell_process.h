// Runs cells of a benchmark in a child process with a deadline, and runs a cell again without the
// contenders that left it unable to go on: launches that hang on a GPU end with their process only.
// Cells share a process because a CUDA context takes as long to make as a cell to measure.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace stoker::bench {

// The child's side; one thread.
class CellRun {
 public:
  CellRun(std::vector<std::string> known, int pipe) : known_(std::move(known)), pipe_(pipe) {}
  // Whether an earlier run of this cell reported `name`.
  bool Failed(const std::string& name) const { return Knows(name); }
  // Prints the failure once and keeps `name` out of later runs of the cell.
  void ReportFailure(const std::string& name, const absl::Status& status);
  // Ends this process; the parent runs the cell again, in another one.
  [[noreturn]] void StartAgain() const;

 private:
  friend absl::Status RunInChild(const std::vector<std::string>& cells,
                                 const std::function<absl::Status(size_t, CellRun&)>& run_cell);
  absl::Status RunAll(const std::vector<std::string>& cells,
                      const std::function<absl::Status(size_t, CellRun&)>& run_cell);
  bool Knows(const std::string& what) const;
  void Remember(const std::string& what);

  std::string cell_;                // which one runs
  std::vector<std::string> known_;  // "CELL: what", from this process and those before
  int pipe_;
};

// Calls `run_cell` with the number of each cell, one after the other. A cell that returns an error
// is an Internal error that names it, after the others have run; so is a child that dies. Deadline-
// Exceeded if it had to be killed; the cells behind are then lost.
absl::Status RunInChild(const std::vector<std::string>& cells,
                        const std::function<absl::Status(size_t, CellRun&)>& run_cell);

// Asks in a child process: CUDA that a parent has initialised does not work in its children.
bool AskInChild(const std::function<bool()>& question);

}  // namespace stoker::bench
