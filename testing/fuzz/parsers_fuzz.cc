// What libFuzzer feeds to the parsers of files that come from elsewhere. STOKER_FUZZ names the one:
//   header   the JSON of a safetensors file
//   index    model.safetensors.index.json
//   config   config.json
//   sidecar  the header of a .stoker file: byte i of the input, exclusive-or '0', changes byte i of
//            a good one, whose checksum is then made right (a corpus of "0000" is text, and the
//            checksum would stop all but one mutation in 2^32)
//   trace    a routing trace
// A parser may refuse; what it accepts must hold. Anything else aborts.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>

#include "offload/store/crc32c.h"
#include "offload/store/expert_names.h"
#include "offload/store/safetensors.h"
#include "offload/store/scheme.h"
#include "offload/store/sidecar.h"
#include "offload/store/tensor_set.h"
#include "offload/trace/trace.h"

namespace stoker::offload {
namespace {

void Check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "accepted, but not true: %s\n", what);
  std::abort();
}

void Header(absl::string_view text) {
  constexpr uint64_t kBegin = 1000;
  // By the input's length, so that the same ranges lie inside and beyond the file.
  const uint64_t size = kBegin + 8 * (text.size() % 512);
  const auto tensors = ParseSafetensorsHeader(text, kBegin, size);
  if (!tensors.ok()) return;
  for (const Tensor& tensor : *tensors) {
    Check(tensor.offset >= kBegin && tensor.offset <= size && tensor.bytes <= size - tensor.offset,
          "a tensor lies in its file");
    if (const auto name = ParseExpertTensorName(tensor.name)) {
      Check(name->layer >= 0 && name->expert >= ExpertTensorName::kStacked,
            "a layer and an expert are numbers of some");
    }
  }
}

void Index(absl::string_view text) {
  const auto index = ParseShardIndex(text);
  if (!index.ok()) return;
  for (const auto& [tensor, file] : *index) {
    Check(file.find('/') == std::string::npos && file.find('\0') == std::string::npos,
          "a shard lies beside its index");
  }
}

void Config(absl::string_view text) {
  const auto scheme = ParseScheme(text);
  if (!scheme.ok()) return;
  Check(scheme->group == 32 || scheme->group == 64 || scheme->group == 128, "the kernels' groups");
  Check(scheme->swiglu.limit > 0, "a limit is positive");
}

void Sidecar(absl::string_view changes) {
  SidecarIndex good;
  good.shape.hidden = 256;
  good.shape.intermediate = 128;
  good.shape.group = 32;
  good.layers = {0, 1};
  good.experts = 4;
  good.complete = true;
  const RecordLayout layout(good.shape);
  good.checksums.resize(good.layers.size() * good.experts * good.ChecksumsOfExpert(layout));
  std::string header = EncodeSidecarIndex(good, layout).substr(0, kSidecarHeaderBytes);
  constexpr size_t kChecksumAt = 228;
  for (size_t i = 0; i < changes.size() && i < kChecksumAt; ++i) {
    header[i] = static_cast<char>(header[i] ^ changes[i] ^ '0');
  }
  const uint32_t checksum = Crc32c(absl::string_view(header).substr(0, kChecksumAt));
  std::memcpy(header.data() + kChecksumAt, &checksum, sizeof(checksum));
  const uint64_t size = good.FileBytes(layout);
  const auto index = ParseSidecarHeader(header, size);
  if (!index.ok()) return;
  Check(index->FileBytes(RecordLayout(index->shape)) == size, "the records fill the file");
  Check(index->architecture.size() < 128, "a name fits its field");
}

void TraceText(absl::string_view text) {
  const auto trace = ParseTrace(std::string(text), "input");
  if (!trace.ok()) return;
  Check(!trace->groups.empty(), "a trace has routes");
  for (const RouteGroup& group : trace->groups) {
    Check(group.layer >= 0 && group.layer < trace->layers, "a layer is one of the trace's");
    Check(!group.routes.empty() && group.routes.size() <= 32, "1 to 32 routes");
    for (const Route& route : group.routes) {
      Check(route.expert >= 0 && route.expert < trace->experts, "an expert is one of the trace's");
    }
  }
}

using Parser = void (*)(absl::string_view);

Parser Chosen() {
  const char* name = std::getenv("STOKER_FUZZ");
  constexpr std::pair<const char*, Parser> kParsers[] = {{"header", Header},
                                                         {"index", Index},
                                                         {"config", Config},
                                                         {"sidecar", Sidecar},
                                                         {"trace", TraceText}};
  for (const auto& [known, parser] : kParsers) {
    if (name != nullptr && std::strcmp(name, known) == 0) return parser;
  }
  std::fprintf(stderr, "STOKER_FUZZ is none of header, index, config, sidecar, trace\n");
  std::exit(1);
}

}  // namespace
}  // namespace stoker::offload

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto parser = stoker::offload::Chosen();
  parser({reinterpret_cast<const char*>(data), size});
  return 0;
}
