// A lane alone, as fio measures a disk: random aligned blocks of a file past the page cache, so
// many in flight. tools/bench/offload_fio.sh takes turns with fio. Prints GB/s.
//
//   lane_bench FILE BLOCK_BYTES MEBIBYTES DEPTH SEED
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/status.h"
#include "offload/io/read_lane.h"

namespace stoker::offload {
namespace {

struct Free {
  void operator()(char* data) const { std::free(data); }
};

absl::Status Measure(const std::string& path, size_t block, uint64_t bytes, int depth,
                     uint64_t seed) {
  STOKER_ASSIGN_OR_RETURN(const auto file, OpenPosixFile(path));
  if (file->direct_fd() < 0) return absl::UnavailableError(path + ": no direct I/O there");
  STOKER_ASSIGN_OR_RETURN(const FileIdentity identity, file->Identity());
  if (identity.size < block) return absl::InvalidArgumentError(path + " is smaller than a block");
  STOKER_ASSIGN_OR_RETURN(const auto lane, MakeUringLane(depth));
  const std::unique_ptr<char, Free> memory(
      static_cast<char*>(std::aligned_alloc(2 << 20, (block * depth + (2 << 20)) >> 21 << 21)));
  if (memory == nullptr) return absl::ResourceExhaustedError("no memory for the blocks");
  std::mt19937_64 random(seed);
  const uint64_t blocks = identity.size / block, wanted = std::max<uint64_t>(bytes / block, depth);
  uint64_t started = 0, ended = 0;
  const auto start = [&](uint64_t place) {
    ++started;
    lane->Start({file.get(), random() % blocks * block,
                 absl::MakeSpan(memory.get() + place * block, block), place, /*direct=*/true});
  };
  const auto begin = std::chrono::steady_clock::now();
  for (int place = 0; place < depth; ++place) start(place);
  std::vector<ReadOutcome> done;
  while (ended < wanted) {
    done.clear();
    lane->Wait(&done);
    for (const ReadOutcome& outcome : done) {
      STOKER_RETURN_IF_ERROR(outcome.status);
      ++ended;
      if (started < wanted) start(outcome.tag);
    }
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  std::printf("%.4f\n", 1e-9 * static_cast<double>(wanted * block) / seconds.count());
  return absl::OkStatus();
}

}  // namespace
}  // namespace stoker::offload

int main(int argc, char** argv) {
  if (argc != 6) {
    std::fprintf(stderr, "usage: lane_bench FILE BLOCK_BYTES MEBIBYTES DEPTH SEED\n");
    return 2;
  }
  const size_t block = std::clamp(std::atoll(argv[2]), 4096ll, 64ll << 20) / 4096 * 4096;
  const absl::Status status = stoker::offload::Measure(
      argv[1], block, std::clamp(std::atoll(argv[3]), 1ll, 1ll << 20) << 20,
      std::clamp(std::atoi(argv[4]), 1, 1024), std::strtoull(argv[5], nullptr, 10));
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
