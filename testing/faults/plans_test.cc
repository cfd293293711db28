// The table of fault plans: complete, drawn from seeds, and the same as the page.
#include "testing/faults/plans.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "testing/faults/page.h"

namespace stoker::testing {
namespace {

std::string Read(const std::string& path) {
  std::ifstream file(path);
  EXPECT_TRUE(file.good()) << path;
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(FaultPlans, EveryOneRunsSomewhereOrSaysWhyNot) {
  std::set<std::string> names;
  std::set<Deviation> deviations;
  for (const FaultPlan& plan : FaultPlans()) {
    EXPECT_TRUE(names.insert(plan.name).second) << plan.name;
    deviations.insert(plan.deviation);
    int worlds = 0;
    for (const char* cannot : plan.cannot) {
      worlds += cannot == nullptr;
      EXPECT_TRUE(cannot == nullptr || std::string(cannot).size() > 10) << plan.name;
    }
    EXPECT_GT(worlds, 0) << plan.name << " runs in no world";
    EXPECT_TRUE(plan.codes != 0 || !plan.names_the_rank) << plan.name;
  }
  for (int d = 0; d <= static_cast<int>(Deviation::kStops); ++d) {
    EXPECT_EQ(deviations.count(static_cast<Deviation>(d)), 1u) << "no plan for deviation " << d;
  }
}

TEST(FaultPlans, ASeedIsAFaultAndSeedsDrawAllRanksAndLaunches) {
  for (const FaultPlan& plan : FaultPlans()) {
    std::set<std::pair<int, int>> drawn;
    for (uint64_t seed = 0; seed < 60; ++seed) {
      const Fault fault = DrawFault(plan, seed), again = DrawFault(plan, seed);
      EXPECT_TRUE(fault.rank == again.rank && fault.launch == again.launch);
      EXPECT_TRUE(fault.launch > 0 && fault.launch < kFaultLaunches - 1);
      drawn.insert({fault.rank, fault.launch});
    }
    EXPECT_EQ(drawn.size(), 2u * kFaultRanks) << plan.name;
  }
}

TEST(FaultPlans, ThePageIsGenerated) {
  EXPECT_EQ(FaultPlansPage(Read("docs/benchmarks/fault_plans.jsonl")), Read("docs/fault_plans.md"))
      << "bazel run //testing/faults:page -- $PWD/docs/benchmarks/fault_plans.jsonl "
      << "> docs/fault_plans.md";
}

TEST(FaultPlans, ThePageTellsWhatHasNotRunAndWhatHasFailed) {
  const std::string name = FaultPlans()[0].name;
  const std::string start = "| `" + name + "`";
  const auto line_of = [&](const std::string& rows) {
    const std::string page = FaultPlansPage(rows);
    const size_t at = page.find(start);
    return page.substr(at, page.find('\n', at) - at);
  };
  const auto row = [&](const char* placement, const char* result) {
    return "{\"plan\":\"" + name + "\",\"world\":\"GPU processes\",\"placement\":\"" + placement +
           "\",\"result\":\"" + result + "\"}\n";
  };
  EXPECT_NE(line_of("").find("| not run yet | not run yet |"), std::string::npos) << line_of("");
  const std::string one = line_of(row("MPS", "FAILED") + row("MPS", "passed"));
  EXPECT_NE(one.find("| not run yet | passed (MPS) |"), std::string::npos) << one;
  const std::string both = line_of(row("MPS", "passed") + row("time-sliced", "FAILED"));
  EXPECT_NE(both.find("| FAILED (time-sliced); passed (MPS) |"), std::string::npos) << both;
}

}  // namespace
}  // namespace stoker::testing
