#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "offload/dispatch/load_plan.h"
#include "offload/pack/expert_source.h"
#include "offload/pack/pack.h"
#include "offload/store/checkpoint.h"
#include "tools/stoker/offload_checkpoint.h"

ABSL_DECLARE_FLAG(std::string, json);
ABSL_DECLARE_FLAG(int, top_k);

namespace stoker::command {
namespace {

using Json = nlohmann::ordered_json;

// A token's experts of one layer, and the two slots that the engine keeps free.
constexpr uint64_t kScratchSlots = 2;

int Fail(const absl::Status& status) {
  absl::FPrintF(stderr, "%s\n", status.ToString());
  return 1;
}

int Report(const Json& row) {
  const std::string path = absl::GetFlag(FLAGS_json);
  if (path.empty()) return 0;
  std::ofstream out(path, std::ios::app);
  out << row.dump(-1, ' ', false, Json::error_handler_t::replace) << "\n";
  out.close();
  if (out) return 0;
  absl::FPrintF(stderr, "cannot write %s; choose another file for --json\n", path);
  return 1;
}

Json Describe(const offload::ExpertShape& shape, const std::string& format,
              const std::string& architecture, size_t layers, int experts, uint64_t expert_bytes) {
  Json row = {{"format", format},
              {"names", architecture},
              {"layers", layers},
              {"experts", experts},
              {"hidden", shape.hidden},
              {"intermediate", shape.intermediate},
              {"group", shape.group},
              {"scales", offload::ScaleTypeName(shape.scale_type)},
              {"zero_points", shape.zero_points},
              {"expert_bytes", expert_bytes},
              {"layer_bytes", expert_bytes * experts},
              {"all_bytes", expert_bytes * experts * layers}};
  absl::PrintF("format        %s\nnames         %s\nlayers        %d of %d experts\n", format,
               architecture, layers, experts);
  absl::PrintF("expert        hidden %d, intermediate %d, groups of %d, scales %s, %s\n",
               shape.hidden, shape.intermediate, shape.group,
               offload::ScaleTypeName(shape.scale_type),
               shape.zero_points ? "zero points" : "symmetric");
  absl::PrintF("bytes         %d an expert, %d a layer, %d in all\n", expert_bytes,
               expert_bytes * experts, expert_bytes * experts * layers);
  return row;
}

// AWQ and GPTQ: what they would be.
int InspectSource(const std::string& path, const absl::Status& in_place) {
  auto source = offload::OpenExpertSource(path);
  if (!source.ok()) return Fail(in_place);
  const offload::RecordLayout layout((*source)->shape());
  uint64_t bytes = 0;
  for (int part = 0; part < offload::kParts; ++part) bytes += layout.PartBytes(part);
  Json row =
      Describe((*source)->shape(), offload::FormatName((*source)->format()),
               (*source)->architecture(), (*source)->layers().size(), (*source)->experts(), bytes);
  row["in_place"] = false;
  absl::PrintF("in place      no: convert it with stoker offload pack %s OUT.stoker\n", path);
  return Report(row);
}

}  // namespace

int RunOffloadInspect(const std::string& path) {
  auto opened = offload::Checkpoint::Open(path);
  if (!opened.ok()) return InspectSource(path, opened.status());
  const offload::Checkpoint& checkpoint = **opened;
  const offload::ExpertExtents& first = checkpoint.extents(0, 0);
  const bool record = checkpoint.record_layout() != nullptr;
  Json row = Describe(
      checkpoint.shape(), record ? "stoker" : offload::FormatName(offload::Format::kPackQuantized),
      checkpoint.architecture(), checkpoint.layers().size(), checkpoint.experts(), first.bytes());
  bool direct = true;
  for (int f = 0; f < checkpoint.files(); ++f) direct &= checkpoint.file(f).direct_fd() >= 0;
  const uint64_t slot = offload::SlotLayout(first).slot_bytes;
  const int top_k = absl::GetFlag(FLAGS_top_k);
  const uint64_t smallest = slot * (kScratchSlots + 1);
  const uint64_t useful = slot * (kScratchSlots + top_k * checkpoint.layers().size());
  row.update({{"in_place", true},
              {"files", checkpoint.files()},
              {"slot_bytes", slot},
              {"smallest_budget", smallest},
              {"smallest_useful_budget", useful},
              {"direct_io", direct}});
  absl::PrintF("in place      yes, %d files, a slot of the cache has %d bytes\n",
               checkpoint.files(), slot);
  absl::PrintF("budget        %d at least; from %d on the experts of a token (--top_k=%d) stay\n",
               smallest, useful, top_k);
  absl::PrintF("direct I/O    %s\n",
               direct ? "possible (4 KiB)" : "not on this file system: reads are buffered");
  return Report(row);
}

int RunOffloadPack(const std::string& path, const std::string& out) {
  offload::PackOptions options;
  int shown = -1;
  options.progress = [&shown](int64_t done, int64_t all) {
    const int percent = static_cast<int>(100 * done / all);
    if (percent != shown) absl::FPrintF(stderr, "\rpacked %3d%%", shown = percent);
    return true;
  };
  const auto result = offload::PackCheckpoint(path, out, options);
  if (shown >= 0) absl::FPrintF(stderr, "\n");
  if (!result.ok()) return Fail(result.status());
  absl::PrintF("%s: %d experts from %s, %d kept from an earlier run, %d bytes\n", out,
               result->experts, offload::FormatName(result->format), result->resumed,
               result->file_bytes);
  absl::PrintF("weights and scales have the CRC-32C %08x, in the file as in the source\n",
               result->checksum);
  return Report({{"out", out},
                 {"format", offload::FormatName(result->format)},
                 {"experts", result->experts},
                 {"resumed", result->resumed},
                 {"file_bytes", result->file_bytes},
                 {"crc32c", absl::StrFormat("%08x", result->checksum)}});
}

}  // namespace stoker::command
