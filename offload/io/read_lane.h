// A queue of reads that one thread keeps full: the pread lane does them one by one, the io_uring
// lane many at once.
//
//   std::unique_ptr<ReadLane> lane = MakePreadLane();
//   lane->Start({.file = &file, .offset = 0, .into = bytes, .tag = 7});   // up to capacity()
//   lane->Wait(&done);   // blocks until something is done or somebody calls Wake
//
// One thread owns a lane (Start, Wait); Wake from any thread. `into` and the file stay alive until
// the read is in `done`. Short reads are continued, EINTR and EAGAIN repeated. A read with `direct`
// goes past the page cache where the file allows it: its range is widened to 4 KiB on both sides,
// so `into` must lie at an address congruent to the offset modulo 4 KiB and the rest of its pages
// be free to write. A read that ends at the end of the file is complete if it covers `into`. Errors
// name the path and the offset.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "offload/io/file.h"

namespace stoker::offload {

struct ReadRequest {
  const File* file = nullptr;
  uint64_t offset = 0;
  absl::Span<char> into;
  uint64_t tag = 0;
  bool direct = false;
};

struct ReadOutcome {
  uint64_t tag = 0;
  absl::Status status;
};

class ReadLane {
 public:
  virtual ~ReadLane() = default;
  virtual int capacity() const = 0;
  virtual void Start(const ReadRequest& request) = 0;
  // Appends what is done. Returns at once if something is, else after a Wake or a completion; a
  // Wake that comes between two Waits is not lost.
  virtual void Wait(std::vector<ReadOutcome>* done) = 0;
  virtual void Wake() = 0;
};

std::unique_ptr<ReadLane> MakePreadLane();

// Unavailable, with the reason, where the system has no io_uring for us (old kernel, seccomp,
// io_uring_disabled). Needs files with descriptors. depth in [1, 1024].
absl::StatusOr<std::unique_ptr<ReadLane>> MakeUringLane(int depth);

}  // namespace stoker::offload
