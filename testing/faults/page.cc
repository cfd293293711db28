#include "testing/faults/page.h"

#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "testing/faults/plans.h"

namespace stoker::testing {
namespace {

// The value of a string field in a line of JSON that our own tests have written.
std::string Field(const std::string& line, const std::string& key) {
  const std::string start = absl::StrCat("\"", key, "\":\"");
  const size_t at = line.find(start);
  if (at == std::string::npos) return "";
  const size_t from = at + start.size();
  return line.substr(from, line.find('"', from) - from);
}

// The last result of each placement: "passed (time-sliced, MPS)".
std::string GpuCell(const FaultPlan& plan, FaultWorld world, const std::string& rows) {
  std::map<std::string, std::string> results;  // by placement
  for (const absl::string_view row : absl::StrSplit(rows, '\n')) {
    const std::string line(row);
    if (Field(line, "plan") != plan.name || Field(line, "world") != FaultWorldName(world)) continue;
    results[Field(line, "placement")] = Field(line, "result");
  }
  if (results.empty()) return "not run yet";
  std::vector<std::string> passed, others;
  for (const auto& [placement, result] : results) {
    result == "passed" ? passed.push_back(placement)
                       : others.push_back(absl::StrCat(result, " (", placement, ")"));
  }
  if (!passed.empty()) {
    others.push_back(absl::StrCat("passed (", absl::StrJoin(passed, ", "), ")"));
  }
  return absl::StrJoin(others, "; ");
}

}  // namespace

std::string FaultPlansPage(const std::string& gpu_rows) {
  std::string page = R"(# Fault plans

What one rank of a group may do differently, and what must come of it. Generated from the table
`testing/faults/plans.cc` (`bazel run //testing/faults:page`); a test compares the two. Which rank
deviates and in which launch is drawn from a seed. "passed" in the first two columns: a test of
every CI run, which fails otherwise. In the GPU columns it is the last run in
`docs/benchmarks/fault_plans.jsonl`; "not run yet" is said where there is none.

Where only a field of the header differs, the simulator changes that field; on real ranks the whole
launch is another one. After every error the group is reset and right again; with a rank that died
the reset names it instead. `stoker doctor --faults` shows it on your machine.

)";
  absl::StrAppend(&page, "| plan: one rank … | fault model | must give | simulator | CPU ranks | ",
                  "GPU, streams | GPU, processes |\n",
                  "| --- | --- | --- | --- | --- | --- | --- |\n");
  for (const FaultPlan& plan : FaultPlans()) {
    absl::StrAppend(&page, "| `", plan.name, "`: ", plan.what, " | ",
                    plan.inside ? "inside" : "outside", " | ", plan.Expectation());
    for (int w = 0; w < kFaultWorlds; ++w) {
      const auto world = static_cast<FaultWorld>(w);
      const bool gpu = world == FaultWorld::kGpuStreams || world == FaultWorld::kGpuProcesses;
      absl::StrAppend(&page, " | ",
                      !plan.runs_in(world) ? absl::StrCat("— ", plan.cannot[w])
                      : gpu                ? GpuCell(plan, world, gpu_rows)
                                           : "passed");
    }
    absl::StrAppend(&page, " |\n");
  }
  return page;
}

}  // namespace stoker::testing
