#include "comm/launch_policy.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_format.h"

namespace stoker::comm {
namespace {

constexpr int kWarpsPerCtaMin = 4;
// Small CTAs may share an SM, as long as there are not more of them than this.
constexpr int kSharedCtasPerSm = 3;
constexpr int kVectorsUsual = 2;
constexpr int kVectorsMax = 4;  // only where a row does not fit a CTA otherwise

int DivideUp(int a, int b) { return (a + b - 1) / b; }

// A CTA's warps are dealt to the four partitions of an SM, each with a quarter of the registers;
// the count holds wherever the dealing starts.
int CtasPerSm(int threads, const Placement& placement) {
  constexpr int kPartitions = 4;
  const int warps = DivideUp(threads / 32 + 1, kPartitions);  // with the service warp
  return std::max(1, placement.warps_per_sm / kPartitions / warps);
}

// The shape with these choices, and as many clusters as there are tokens and room.
LaunchShape Make(int tokens, int warps, int cluster, int vectors, const Placement& placement) {
  LaunchShape shape;
  shape.vectors = vectors;
  shape.threads = 32 * DivideUp(warps, cluster * vectors);
  // The smallest cluster that covers the row with CTAs of this size.
  shape.cluster = DivideUp(warps, vectors * shape.threads / 32);
  const int sms = std::max(1, placement.sms / placement.launches_in_flight);
  const int ctas = sms * CtasPerSm(shape.threads, placement);
  shape.clusters = std::clamp(ctas / shape.cluster, 1, std::max(1, tokens));
  return shape;
}

// A row over as many SMs as there are for it; without idle warps if that can be had.
std::optional<LaunchShape> Spread(int tokens, int warps, const Placement& placement) {
  const int sms = std::max(1, placement.sms / placement.launches_in_flight);
  for (bool exactly : {true, false}) {
    for (int cluster = placement.cluster_max; cluster > 1; --cluster) {
      const LaunchShape shape = Make(tokens, warps, cluster, 1, placement);
      if (exactly && shape.threads / 32 * shape.cluster != warps) continue;
      if (shape.threads < 32 * kWarpsPerCtaMin) continue;
      if (shape.cta_threads() > placement.threads_per_cta) continue;
      if (tokens * shape.cluster <= sms) return shape;
    }
  }
  return std::nullopt;
}

// Small CTAs that share SMs and still hold all tokens at once; none that has idle warps, which
// would take the room.
std::optional<LaunchShape> SmallCtas(int tokens, int warps, const Placement& placement) {
  const int sms = std::max(1, placement.sms / placement.launches_in_flight);
  for (int cluster = placement.cluster_max; cluster > 1; --cluster) {
    const LaunchShape shape = Make(tokens, warps, cluster, 1, placement);
    const int ctas_per_sm = std::min(kSharedCtasPerSm, CtasPerSm(shape.threads, placement));
    const int warps_per_cta = shape.threads / 32;
    if (warps_per_cta < kWarpsPerCtaMin || warps_per_cta >= 2 * kWarpsPerCtaMin) continue;
    if (warps_per_cta * shape.cluster != warps) continue;
    if (tokens * shape.cluster <= sms * ctas_per_sm) return shape;
  }
  return std::nullopt;
}

// With `vectors` a thread, the fewest CTAs that a row fits into.
LaunchShape FewCtas(int tokens, int warps, int cluster_min, int vectors,
                    const Placement& placement) {
  for (int cluster = cluster_min; cluster <= placement.cluster_max; ++cluster) {
    const LaunchShape shape = Make(tokens, warps, cluster, vectors, placement);
    if (shape.cta_threads() <= placement.threads_per_cta) return shape;
  }
  return vectors < kVectorsMax ? FewCtas(tokens, warps, 1, 2 * vectors, placement)
                               : Make(tokens, warps, placement.cluster_max, kVectorsMax, placement);
}

LaunchShape WholeRows(int tokens, int warps, const Placement& placement) {
  return FewCtas(tokens, warps, 1, 1, placement);
}

// Two CTAs a row, if that splits it evenly.
LaunchShape HalfRows(int tokens, int warps, const Placement& placement) {
  const bool halves = warps % 2 == 0 && warps / 2 >= kWarpsPerCtaMin && placement.cluster_max > 1;
  return FewCtas(tokens, warps, halves ? 2 : 1, 1, placement);
}

}  // namespace

std::string LaunchShape::ToString() const {
  return absl::StrFormat("%d x (%d x %d) x %d", clusters, cluster, threads, vectors);
}

const char* ProtocolName(Protocol protocol) {
  switch (protocol) {
    case Protocol::kOneShot:
      return "one-shot";
    case Protocol::kTwoShot:
      return "two-shot";
    case Protocol::kNccl:
      return "NCCL";
  }
  return "unknown exchange";
}

Protocol ChooseProtocol(int world, int tokens, int packets, const Placement& placement,
                        const Wire& wire) {
  if (world <= 2 || tokens == 0) return Protocol::kOneShot;
  // Rows a token that a rank pushes: world - 1, or 2 (world - 1) / world.
  const double rows_saved = tokens * (world - 1.0) * (world - 2.0) / world;
  const double us_saved = rows_saved * packets * kPacketBytes / wire.bytes_per_us;
  const bool at_once = WholeRows(tokens, DivideUp(packets, 32), placement).clusters >= tokens;
  return us_saved > wire.hop_us || !at_once ? Protocol::kTwoShot : Protocol::kOneShot;
}

LaunchShape ChooseLaunchShape(Protocol protocol, int world, int tokens, int packets,
                              const Placement& placement) {
  if (tokens == 0) return LaunchShape{};
  const int warps = DivideUp(packets, 32);
  if (protocol == Protocol::kOneShot) {
    if (const auto shape = Spread(tokens, warps, placement)) return *shape;
  }
  if (const auto shape = SmallCtas(tokens, warps, placement)) return *shape;
  const LaunchShape halves = HalfRows(tokens, warps, placement);
  if (protocol == Protocol::kTwoShot) return halves;
  if (world <= 2 && halves.clusters >= tokens) return halves;
  const LaunchShape whole = WholeRows(tokens, warps, placement);
  if (whole.clusters >= tokens) return whole;
  return FewCtas(tokens, warps, 1, kVectorsUsual, placement);
}

}  // namespace stoker::comm
