// What mutants share: where an address lies in the group's memory.
#pragma once

#include <cstdint>

#include "testing/simt/environment.h"

namespace stoker::testing::simt {

class MutantEnvironment : public SimtEnvironment {
 protected:
  // A packet's place in somebody's mailbox; rank is -1 if it lies elsewhere.
  struct Place {
    int rank = -1;
    uint32_t half = 0;
    int source = 0, token = 0, vector = 0;
  };

  Place PlaceOf(const comm::Packet* p) const {
    const comm::WorkspaceLayout& layout = params().layout;
    for (int r = 0; r < layout.world; ++r) {
      const int64_t index = p - comm::MailboxOf(params().workspace[r]);
      if (index < 0 || index >= 2 * layout.half_packets()) continue;
      const int64_t in_half = index % layout.half_packets();
      return {r, static_cast<uint32_t>(index / layout.half_packets()),
              static_cast<int>(in_half / (int64_t{layout.capacity} * layout.stride)),
              static_cast<int>(in_half / layout.stride % layout.capacity),
              static_cast<int>(in_half % layout.stride)};
    }
    return {};
  }
  comm::Packet* AddressOf(const Place& at) const {
    return comm::MailboxOf(params().workspace[at.rank]) +
           params().layout.packet_index(at.half, at.source, at.token, at.vector);
  }
  bool IsOwn(const Place& at) const { return at.rank == params().rank; }
  static bool IsEmpty(const comm::Packet& packet) {
    for (uint32_t word : packet.word) {
      if (word != comm::kSentinel) return false;
    }
    return true;
  }
  comm::Control* control() const { return comm::ControlOf(params().workspace[params().rank]); }
  // The number of this launch on its rank, from 0.
  static int launch() { return Running()->cta->grid->number; }
  bool IsServiceWarp() const { return warp() == threads() / 32 - 1; }
  // The header slot that an address is part of, as offset from its workspace's headers; -1 if none.
  int64_t HeaderOffset(const uint64_t* p, int* rank) const {
    for (int r = 0; r < params().layout.world; ++r) {
      const int64_t offset = reinterpret_cast<const char*>(p) -
                             reinterpret_cast<const char*>(comm::HeadersOf(params().workspace[r]));
      if (offset < 0 || offset >= int64_t{2} * comm::kWorldMax * int64_t{sizeof(comm::Header)}) {
        continue;
      }
      *rank = r;
      return offset;
    }
    return -1;
  }
  bool IsHeader(const uint64_t* p) const {
    int rank;
    return HeaderOffset(p, &rank) >= 0;
  }
  bool IsTokensWord(const uint64_t* p) const {
    int rank;
    return HeaderOffset(p, &rank) % int64_t{sizeof(comm::Header)} == 0;
  }
  // For mutants that need to know and not to look.
  uint32_t ThisEpoch() const { return control()->first_epoch + static_cast<uint32_t>(launch()); }
};

}  // namespace stoker::testing::simt
