// The page docs/fault_plans.md, generated from the table of fault plans.
#pragma once

#include <string>

namespace stoker::testing {

// `gpu_rows` are the lines that GPU runs have written (testing/faults/rows.h): JSON objects with
// "plan", "world", "placement" and "result"; the last one of each counts.
std::string FaultPlansPage(const std::string& gpu_rows);

}  // namespace stoker::testing
