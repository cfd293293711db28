// The exchange alone, a row of every rank pushed to all others and summed, with either of two
// packets: which one the mailboxes have was chosen by this (docs/decisions/packets.md).
//   sentinel  eight elements; a word that is not the sentinel has arrived, and the reader puts the
//             sentinel back. What comm/one_shot.h does.
//   tagged    seven elements and the launch's epoch in 16 bits, in 16 bytes that are read and
//             written as one; nothing is put back, but a warp needs 37 packets for 32 vectors.
// For measuring only: no headers, and waits that end with wrong sums after a while.
#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "moe/arguments.h"

namespace stoker::bench {

enum class PacketKind { kSentinel, kTagged };

class PacketExchange {
 public:
  // World 2, 4 or 8; bf16; hidden a multiple of 256. Runs the exchange a few times, and gives
  // DataLoss if a sum is not what the same sum on the host is.
  static absl::StatusOr<std::unique_ptr<PacketExchange>> Create(PacketKind kind, int world,
                                                                const moe::Shape& shape);
  ~PacketExchange();

  // output = the sum over ranks of `input`, [tokens, H] each. Asynchronous.
  absl::Status Launch(int rank, const void* input, void* output, bool programmatic,
                      cudaStream_t stream);

  // That all ranks read and write in a launch.
  int64_t bytes() const;

 private:
  PacketExchange() = default;
  absl::Status Allocate();
  absl::Status Check();

  PacketKind kind_ = PacketKind::kSentinel;
  int world_ = 0;
  int ctas_ = 0;  // of a rank, all resident at once
  moe::Shape shape_;
  int64_t row_packets_ = 0;       // of a token in a mailbox
  std::vector<void*> mailboxes_;  // [half][source][token][row_packets_]
  std::vector<void*> epochs_;     // one word a CTA
};

}  // namespace stoker::bench
