// Prints docs/fault_plans.md:  page docs/benchmarks/fault_plans.jsonl > docs/fault_plans.md
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "testing/faults/page.h"

int main(int argc, char** argv) {
  std::ifstream file(argc == 2 ? argv[1] : "");
  if (!file) {
    std::fprintf(stderr, "usage: page ROWS.jsonl, which must be readable\n");
    return 2;
  }
  const std::string rows{std::istreambuf_iterator<char>(file), {}};
  std::fputs(stoker::testing::FaultPlansPage(rows).c_str(), stdout);
}
