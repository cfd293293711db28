#include "tools/stoker/bench_compare.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace stoker::command {
namespace {

using nlohmann::json;

struct Cell {
  std::optional<double> first;
  std::optional<double> again;
};

absl::StatusOr<std::map<std::string, Cell>> Load(const std::string& path) {
  std::ifstream file(path);
  if (!file) return absl::NotFoundError(absl::StrCat("cannot read ", path));
  std::map<std::string, Cell> cells;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (line.empty()) continue;
    const json row = json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!row.is_object() || !row.contains("kernel") || !row["kernel"].is_string()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ":", number, ": not a row of a benchmark"));
    }
    const std::string kernel = row["kernel"];
    const bool again = kernel == "stoker again";
    if ((kernel != "stoker" && !again) || !row.contains("us_median")) continue;
    std::string key;
    for (const char* field : {"op", "world", "placement", "hidden", "tokens", "top_k", "dtype"}) {
      if (row.contains(field)) absl::StrAppend(&key, field, " ", row[field].dump(), "  ");
    }
    (again ? cells[key].again : cells[key].first) = row["us_median"].get<double>();
  }
  if (file.bad()) return absl::NotFoundError(absl::StrCat("cannot read ", path, " as a file"));
  if (cells.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, " has no row of stoker with a time; give a file of bench finalize --out"));
  }
  return cells;
}

const char* Verdict(const Cell& before, const Cell& after) {
  if (!before.again.has_value() || !after.again.has_value()) return "unclear (no A/A pair)";
  const double spread = std::max({std::abs(*before.first - *before.again),
                                  std::abs(*after.first - *after.again), 0.01 * *before.first});
  const double difference = *after.first - *before.first;
  if (std::abs(difference) <= spread) return "same";
  return difference < 0 ? "faster" : "slower";
}

}  // namespace

int RunBenchCompare(const std::string& old_path, const std::string& new_path) {
  const auto before = Load(old_path);
  const auto after = Load(new_path);
  for (const absl::Status& status : {before.status(), after.status()}) {
    if (!status.ok()) {
      absl::FPrintF(stderr, "%s\n", status.ToString());
      return 2;
    }
  }
  int slower = 0;
  int common = 0;
  for (const auto& [key, cell] : *after) {
    const auto found = before->find(key);
    if (found == before->end() || !cell.first.has_value() || !found->second.first.has_value())
      continue;
    ++common;
    const std::string verdict = Verdict(found->second, cell);
    slower += verdict == "slower";
    absl::PrintF("%s  %.2f -> %.2f us  %s\n", key, *found->second.first, *cell.first, verdict);
  }
  if (common == 0) {
    absl::FPrintF(stderr, "the files have no cell in common\n");
    return 2;
  }
  absl::PrintF(
      "%d cells, %d slower. Times of different runs are compared: only a large difference means "
      "something.\n",
      common, slower);
  return slower == 0 ? 0 : 1;
}

}  // namespace stoker::command
