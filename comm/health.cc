#include "comm/health.h"

#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace stoker::comm {
namespace {

template <class Word>
Word Load(const Word& word) {
  return __atomic_load_n(&word, __ATOMIC_ACQUIRE);
}

const char* Name(Op op) {
  switch (op) {
    case Op::kFinalize:
      return "finalize";
    case Op::kPlain:
      return "plain";
    case Op::kReduction:
      return "reduction";
    case Op::kAllReduce:
      return "all-reduce";
  }
  return "unknown op";
}

const char* Name(Protocol protocol) {
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

// A copy, word by word: the rank may be logging at the same time.
LaunchEntry LoadEntry(const LaunchEntry& entry) {
  uint32_t words[sizeof(entry) / 4];
  const auto* from = reinterpret_cast<const uint32_t*>(&entry);
  for (size_t word = 0; word < std::size(words); ++word) words[word] = Load(from[word]);
  LaunchEntry copy;
  std::memcpy(&copy, words, sizeof(copy));
  return copy;
}

// The launch that `rank` logged for `epoch`, if the ring still has it.
std::optional<LaunchEntry> FindLaunch(const HealthPage& page, int rank, uint32_t epoch) {
  const LaunchEntry entry = LoadEntry(page.ranks[rank].ring[epoch % kLaunchRing]);
  if (entry.signature == 0 || entry.epoch != epoch) return std::nullopt;
  return entry;
}

std::string DescribeSide(const HealthPage& page, int rank, uint32_t epoch, const Header& header) {
  std::string text = absl::StrFormat("rank %d ", rank);
  if (HeaderEpoch(header.tokens) != epoch) {
    return absl::StrCat(text, "has not launched epoch ", epoch, " (its header holds epoch ",
                        HeaderEpoch(header.tokens), ")");
  }
  const std::optional<LaunchEntry> entry = FindLaunch(page, rank, epoch);
  const int tokens = static_cast<int>(HeaderValue(header.tokens));
  if (!entry.has_value()) {
    return absl::StrFormat("%slaunched %d tokens with signature %08x", text, tokens,
                           HeaderValue(header.signature));
  }
  return absl::StrCat(text, "launched ", Describe(entry->descriptor, tokens));
}

// `rank` is the place in the page, not what the record claims.
std::string DescribeRecord(const HealthPage& page, int rank, const FailureRecord& record) {
  const uint32_t epoch = record.epoch;
  const int peer = record.peer;
  const bool peer_known = peer >= 0 && peer < page.world && peer < kWorldMax;
  const std::string sides = peer_known
                                ? absl::StrCat(DescribeSide(page, rank, epoch, record.expected),
                                               "; ", DescribeSide(page, peer, epoch, record.seen))
                                : DescribeSide(page, rank, epoch, record.expected);
  switch (record.code) {
    case FailureCode::kTimeout:
      if (peer == rank) {
        return absl::StrFormat(
            "rank %d waited %d ms for its own launch of epoch %u to start whole: other work holds "
            "its "
            "places on the GPU. Remedy: end that work, or lower the rank's SM budget.",
            rank, record.detail / 1'000'000, epoch);
      }
      return absl::StrFormat(
          "rank %d waited %d ms for rank %d in epoch %u%s. %s. Remedy: see whether rank %d is "
          "alive and "
          "launches the same calls; STOKER_TIMEOUT_MS sets the deadline.",
          rank, record.detail / 1'000'000, peer, epoch,
          record.token >= 0 ? absl::StrFormat(" (token %d, packet %d)", record.token, record.packet)
                            : std::string(" (header)"),
          sides, peer);
    case FailureCode::kMismatch:
      return absl::StrFormat(
          "ranks %d and %d launched different work in epoch %u. %s. Remedy: every rank must launch "
          "the "
          "same calls with the same shapes in the same order.",
          rank, peer, epoch, sides);
    case FailureCode::kStaleOrForeign:
      return absl::StrFormat(
          "rank %d found a header of rank %d from an epoch that this group cannot have sent: epoch "
          "%u "
          "expected, %u and %u seen. Remedy: does another group use this workspace?",
          rank, peer, epoch, HeaderEpoch(record.seen.tokens), HeaderEpoch(record.seen.signature));
    case FailureCode::kOverlap:
      return absl::StrFormat(
          "rank %d ran a second launch on its workspace before the first had completed (epoch %u). "
          "%s. "
          "Remedy: order the launches of a communicator on one stream or by events.",
          rank, epoch, sides);
    case FailureCode::kIndexOutOfRange:
      return absl::StrFormat(
          "rank %d: expanded index %d of token %d is not below the %d permuted rows (epoch %u)",
          rank, static_cast<int32_t>(record.detail), record.token, record.detail >> 32, epoch);
    case FailureCode::kAborted:
      return absl::StrFormat("the group was stopped by the host of rank %d (epoch %u)", rank,
                             epoch);
    case FailureCode::kNone:
      break;
  }
  return absl::StrFormat("rank %d reported the unknown failure code %u", rank,
                         static_cast<uint32_t>(record.code));
}

void Initialise(const GroupPlan& plan, HealthPage* page) {
  std::memset(static_cast<void*>(page), 0, sizeof(*page));
  page->version = kProtocolVersion;
  page->world = plan.world;
  page->capacity = plan.layout.capacity;
  page->stride = plan.layout.stride;
  page->generation = 0;
  plan.name.copy(page->group, sizeof(page->group) - 1);
  page->magic = kHealthMagic;
}

int WorldOf(const HealthPage& page) { return std::clamp(page.world, 0, kWorldMax); }

uint64_t NowNs(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000u + static_cast<uint64_t>(now.tv_nsec);
}

// For whom `rank` waits now.
std::vector<int> AwaitedBy(const HealthReading& earlier, const HealthReading& now, int rank) {
  std::vector<int> peers;
  for (int peer = 0; peer < WorldOf(now.page); ++peer) {
    if (now.page.ranks[rank].waited_ns[peer] != earlier.page.ranks[rank].waited_ns[peer]) {
      peers.push_back(peer);
    }
  }
  return peers;
}

std::string DescribeWait(const HealthReading& earlier, const HealthReading& now, int rank) {
  const RankHealth& health = now.page.ranks[rank];
  if (health.waiting_since_ns == 0) return "not waiting";
  std::string text = "waiting";
  const std::vector<int> peers = AwaitedBy(earlier, now, rank);
  if (!peers.empty()) absl::StrAppend(&text, " for rank ", absl::StrJoin(peers, ", "));
  const uint64_t clock = health.device < 0 ? now.monotonic_ns : now.realtime_ns;
  const uint64_t since = clock - health.waiting_since_ns;
  const uint64_t most = static_cast<uint64_t>(kTimeoutMsMax + 3'600'000) * 1'000'000u;
  if (since <= most) {
    absl::StrAppendFormat(&text, " since %.3f s", static_cast<double>(since) * 1e-9);
  }
  return text;
}

// Who is slow: for whom all others together waited, longest first.
std::string DescribeTotals(const HealthPage& page) {
  std::vector<std::pair<uint64_t, int>> totals;
  for (int peer = 0; peer < WorldOf(page); ++peer) {
    uint64_t total = 0;
    for (int rank = 0; rank < WorldOf(page); ++rank) {
      total += rank == peer ? 0 : page.ranks[rank].waited_ns[peer];
    }
    if (total != 0) totals.push_back({total, peer});
  }
  if (totals.empty()) return "";
  std::sort(totals.rbegin(), totals.rend());
  std::vector<std::string> words;
  for (const auto& [total, peer] : totals) {
    words.push_back(absl::StrFormat("rank %d %.3f ms", peer, static_cast<double>(total) * 1e-6));
  }
  return absl::StrCat("waited for, by all others together: ", absl::StrJoin(words, ", "), "\n");
}

}  // namespace

std::string Describe(const LaunchDescriptor& d, int tokens) {
  return absl::StrFormat(
      "%s of %d tokens (hidden %d, top-k %d, %s, %s, %s, eps %g, weight bias %g, routed scaling "
      "%g, site %u, generation %u)",
      Name(d.op), tokens, d.hidden, d.top_k, d.wire_type == WireType::kBf16 ? "bf16" : "fp16",
      d.mode == Mode::kRounded ? "rounded" : "fp32 residual", Name(d.protocol), d.eps,
      d.weight_bias, d.routed_scaling_factor, d.site, d.generation);
}

absl::StatusOr<Health> Health::Create(const GroupPlan& plan, int device, RankExchange& exchange,
                                      absl::Duration timeout) {
  Health health;
  health.rank_ = plan.rank;
  const std::string name = plan.SharedName("health");
  absl::Status created;
  if (plan.rank == 0) {
    SharedMemory::RemoveAbandoned("stoker_");  // of groups whose members were all killed
    auto memory = SharedMemory::Create(name, sizeof(HealthPage));
    created = memory.status();
    if (created.ok()) {
      health.memory_ = std::move(*memory);
      Initialise(plan, health.page());
    }
  }
  STOKER_RETURN_IF_ERROR(exchange.AllSucceeded("creating the health page", created, timeout));
  absl::Status opened;
  if (plan.rank != 0) {
    auto memory = SharedMemory::Open(name, sizeof(HealthPage));
    opened = memory.status();
    if (opened.ok()) health.memory_ = std::move(*memory);
  }
  if (opened.ok() && (health.page()->magic != kHealthMagic || health.page()->world != plan.world)) {
    opened = absl::FailedPreconditionError(
        absl::StrCat("shared memory ", name, " is not the health page of this group"));
  }
  STOKER_RETURN_IF_ERROR(exchange.AllSucceeded("opening the health page", opened, timeout));
  health.own()->pid = getpid();
  health.own()->device = device;
  return health;
}

absl::Status Health::Check() const { return StatusOf(*page()); }

void Health::Wipe(Generation generation) {
  // Only this word: others may be reading the record at this moment.
  __atomic_store_n(&own()->record.valid, 0u, __ATOMIC_RELEASE);
  __atomic_store_n(&page()->generation, generation.value(), __ATOMIC_RELEASE);
}

absl::Status StatusOf(const HealthPage& page) {
  const uint32_t generation = Load(page.generation);
  const int world = std::clamp(page.world, 0, kWorldMax);
  // The earliest epoch is the cause, later ones may be its consequences.
  int first = -1;
  for (int rank = 0; rank < world; ++rank) {
    const FailureRecord& record = page.ranks[rank].record;
    if (Load(record.valid) != generation + 1u) continue;
    if (first < 0 || static_cast<int32_t>(record.epoch - page.ranks[first].record.epoch) < 0) {
      first = rank;
    }
  }
  if (first < 0) return absl::OkStatus();
  const FailureRecord& record = page.ranks[first].record;
  const std::string message = DescribeRecord(page, first, record);
  switch (record.code) {
    case FailureCode::kTimeout:
      return absl::DeadlineExceededError(message);
    case FailureCode::kIndexOutOfRange:
      return absl::OutOfRangeError(message);
    case FailureCode::kAborted:
      return absl::AbortedError(message);
    default:
      return absl::FailedPreconditionError(message);
  }
}

void ReadPage(const HealthPage& page, HealthReading* reading) {
  static_assert(sizeof(HealthPage) % sizeof(uint64_t) == 0);
  const auto* from = reinterpret_cast<const uint64_t*>(&page);
  auto* to = reinterpret_cast<uint64_t*>(&reading->page);
  for (size_t word = 0; word < sizeof(HealthPage) / sizeof(uint64_t); ++word) {
    const uint64_t value = Load(from[word]);
    std::memcpy(to + word, &value, sizeof(value));
  }
  reading->monotonic_ns = NowNs(CLOCK_MONOTONIC);
  reading->realtime_ns = NowNs(CLOCK_REALTIME);
}

bool WantsALaterReading(const HealthReading& earlier, const HealthReading& now) {
  for (int rank = 0; rank < WorldOf(now.page); ++rank) {
    if (now.page.ranks[rank].waiting_since_ns != 0 && AwaitedBy(earlier, now, rank).empty()) {
      return true;
    }
  }
  return false;
}

std::string Describe(const HealthReading& earlier, const HealthReading& now) {
  const HealthPage& page = now.page;
  if (page.magic != kHealthMagic || page.version != kProtocolVersion) {
    return "not a health page of this version\n";
  }
  std::string text =
      absl::StrFormat("group %s, world %d, capacity %d tokens, generation %u: %s\n",
                      std::string(page.group, strnlen(page.group, sizeof(page.group))),
                      WorldOf(page), page.capacity, page.generation, StatusOf(page).ToString());
  absl::StrAppend(&text, DescribeTotals(page));
  for (int rank = 0; rank < WorldOf(page); ++rank) {
    const RankHealth& health = page.ranks[rank];
    const bool gone = health.pid > 0 && kill(health.pid, 0) != 0 && errno == ESRCH;
    absl::StrAppendFormat(&text, "rank %d: pid %d%s, device %d, %s\n", rank, health.pid,
                          gone ? " (gone)" : "", health.device, DescribeWait(earlier, now, rank));
    for (int peer = 0; peer < WorldOf(page); ++peer) {
      if (health.waited_ns[peer] == 0) continue;
      absl::StrAppendFormat(&text, "  waited for rank %d: %.3f ms in all\n", peer,
                            static_cast<double>(health.waited_ns[peer]) * 1e-6);
    }
    std::vector<const LaunchEntry*> entries;
    for (const LaunchEntry& entry : health.ring) {
      if (entry.signature != 0) entries.push_back(&entry);
    }
    std::sort(entries.begin(), entries.end(), [](const LaunchEntry* a, const LaunchEntry* b) {
      return static_cast<int32_t>(a->epoch - b->epoch) < 0;  // it wraps
    });
    for (const LaunchEntry* entry : entries) {
      absl::StrAppendFormat(&text, "  epoch %u: %s\n", entry->epoch,
                            Describe(entry->descriptor, entry->tokens));
    }
  }
  return text;
}

}  // namespace stoker::comm
