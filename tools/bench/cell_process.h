// Runs one cell of a benchmark in a child process with a deadline, and runs it again without the
// contenders that left it unable to go on: launches that hang on a GPU end with their process only.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace stoker::bench {

// The child's side; one thread.
class CellRun {
 public:
  CellRun(std::vector<std::string> failed, int pipe) : failed_(std::move(failed)), pipe_(pipe) {}
  // Whether an earlier run of this cell reported `name`.
  bool Failed(const std::string& name) const;
  // Prints the failure once and keeps `name` out of later runs of the cell.
  void ReportFailure(const std::string& name, const absl::Status& status);
  // Ends this process; the parent runs the cell again.
  [[noreturn]] void StartAgain() const;

 private:
  std::vector<std::string> failed_;
  int pipe_;
};

// Internal, naming `what`, if `cell` returns an error or the child dies; DeadlineExceeded if it
// had to be killed.
absl::Status RunInChild(const std::string& what, const std::function<absl::Status(CellRun&)>& cell);

// Asks in a child process: CUDA that a parent has initialised does not work in its children.
bool AskInChild(const std::function<bool()>& question);

}  // namespace stoker::bench
