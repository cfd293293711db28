#include "testing/simt/bodies.h"
#include "testing/simt/mutants/mutant_environment.h"
#include "testing/simt/mutants/mutants.h"
#include "testing/simt/scenarios.h"

namespace stoker::testing::simt {
namespace {

using comm::Packet;

// Rows stay at their source, and everybody polls and empties them there.
class PollsThePeers : public MutantEnvironment {
 public:
  Packet LoadPacket(const Packet* p) { return SimtEnvironment::LoadPacket(AtSource(p)); }
  void StorePacket(Packet* p, const Packet& packet) {
    SimtEnvironment::StorePacket(AtSource(p), packet);
  }

 private:
  Packet* AtSource(const Packet* p) const {
    Place at = PlaceOf(p);
    at.rank = at.source;
    return AddressOf(at);
  }
};

class SingleBuffer : public MutantEnvironment {
 public:
  Packet LoadPacket(const Packet* p) { return SimtEnvironment::LoadPacket(First(p)); }
  void StorePacket(Packet* p, const Packet& packet) {
    SimtEnvironment::StorePacket(First(p), packet);
  }

 private:
  Packet* First(const Packet* p) const {
    Place at = PlaceOf(p);
    at.half = 0;
    return AddressOf(at);
  }
};

class RearmsBeforeAllIsRead : public MutantEnvironment {
 public:
  Packet LoadPacket(const Packet* p) {
    const Packet packet = SimtEnvironment::LoadPacket(p);
    if (!IsEmpty(packet)) SimtEnvironment::StorePacket(const_cast<Packet*>(p), comm::EmptyPacket());
    return packet;
  }
};

class LeavesTheLastPartialWarp : public MutantEnvironment {
 public:
  void StorePacket(Packet* p, const Packet& packet) {
    if (IsEmpty(packet) && PlaceOf(p).vector >= params().packets / 32 * 32) return;
    SimtEnvironment::StorePacket(p, packet);
  }
};

// Empties as many tokens as the launch before had.
class ClearsTheLastSize : public MutantEnvironment {
 public:
  void StorePacket(Packet* p, const Packet& packet) {
    const Grid* before = Running()->cta->grid->before;
    const int last = before == nullptr ? params().tokens : before->spec->params.tokens;
    if (IsEmpty(packet) && PlaceOf(p).token >= last) return;
    SimtEnvironment::StorePacket(p, packet);
  }
};

// Halves and sources are as far apart as this launch's tokens make them.
class SizeDependentAddresses : public MutantEnvironment {
 public:
  Packet LoadPacket(const Packet* p) { return SimtEnvironment::LoadPacket(Packed(p)); }
  void StorePacket(Packet* p, const Packet& packet) {
    SimtEnvironment::StorePacket(Packed(p), packet);
  }

 private:
  Packet* Packed(const Packet* p) const {
    const Place at = PlaceOf(p);
    comm::WorkspaceLayout layout = params().layout;
    layout.capacity = params().tokens;
    return comm::MailboxOf(params().workspace[at.rank]) +
           layout.packet_index(at.half, at.source, at.token, at.vector);
  }
};

class ArrivedIsNotNan : public MutantEnvironment {
 public:
  Packet LoadPacket(const Packet* p) {
    Packet packet = SimtEnvironment::LoadPacket(p);
    for (uint32_t& word : packet.word) {
      if ((word & 0x7FFFFFFFu) > 0x7F800000u) word = comm::kSentinel;
    }
    return packet;
  }
};

class SendsSentinels : public MutantEnvironment {
 public:
  void StorePacket(Packet* p, const Packet& packet) {
    Packet sent = packet;
    for (uint32_t& word : sent.word) {
      if (word == comm::kSentinelSubstitute) word = comm::kSentinel;
    }
    SimtEnvironment::StorePacket(p, sent);
  }
};

// A packet has arrived when its last word has.
class TestsOneWord : public MutantEnvironment {
 public:
  Packet LoadPacket(const Packet* p) {
    Packet packet = SimtEnvironment::LoadPacket(p);
    if (packet.word[3] == comm::kSentinel) return packet;
    for (uint32_t& word : packet.word) word = word == comm::kSentinel ? 0u : word;
    return packet;
  }
};

// Takes whatever lies in the place of a scale for this launch's.
class ScaleWithoutEpoch : public MutantEnvironment {
 public:
  uint64_t LoadHeader(const uint64_t* p) {
    const uint64_t word = SimtEnvironment::LoadHeader(p);
    if (IsHeader(p) || comm::HeaderValue(word) == 0u) return word;
    return comm::HeaderWord(ThisEpoch(), comm::HeaderValue(word));
  }
};

template <class Env>
Mutant Make(const char* name, const char* what, const char* step, std::vector<Verdict> predicted,
            const Scenario& scenario) {
  return {name, what, step, predicted, scenario, BodyFor<Env>(scenario), ShippedBody(scenario)};
}

}  // namespace

std::vector<Mutant> MailboxMutants() {
  using V = Verdict;
  Scenario three = Smallest();
  three.world = 3;
  Scenario partial = Smallest();
  partial.packets = 33;
  partial.row_warps = 2;
  Scenario sizes = Smallest();
  sizes.tokens = {1, 2, 1, 2, 2};
  Scenario shrinking = TwoClusters();
  shrinking.tokens = {2, 1, 2, 1, 2};
  Scenario nan = Smallest();
  nan.payload = Payload::kNan;
  Scenario sentinel = Smallest();
  sentinel.payload = Payload::kSentinel;
  return {
      Make<PollsThePeers>("PollsThePeers", "polls and empties the peers' mailboxes",
                          "a rank polls only its own mailbox", {V::kHang}, three),
      Make<SingleBuffer>("SingleBuffer", "one half for both parities",
                         "claim: epoch e + 2, not e + 1, reuses a half", {V::kHang, V::kWrongBits},
                         Smallest()),
      Make<RearmsBeforeAllIsRead>("RearmsBeforeAllIsRead", "empties a packet at its first word",
                                  "each word is re-armed after it was read", {V::kHang},
                                  Smallest()),
      Make<LeavesTheLastPartialWarp>(
          "LeavesTheLastPartialWarp", "does not re-arm the row's last partial warp",
          "3: B's grid e completes with all its re-arming stores", {V::kWrongBits}, partial),
      Make<ClearsTheLastSize>(
          "ClearsTheLastSize", "re-arms as many tokens as the launch before had",
          "3: B's grid e completes with all its re-arming stores", {V::kWrongBits}, sizes),
      Make<SizeDependentAddresses>(
          "SizeDependentAddresses", "addresses depend on this launch's tokens",
          "an address does not depend on a launch", {V::kHang, V::kWrongBits}, shrinking),
      Make<ArrivedIsNotNan>("ArrivedIsNotNan", "a word has arrived if it is no NaN",
                            "the sentinel is compared as an integer", {V::kHang}, nan),
      Make<SendsSentinels>("SendsSentinels", "a payload equal to the sentinel is sent as it is",
                           "a payload word never equals the sentinel", {V::kHang}, sentinel),
      Make<TestsOneWord>("TestsOneWord", "tests the last word of a packet only",
                         "each 32-bit word is tested", {V::kWrongBits}, Smallest()),
      Make<ScaleWithoutEpoch>("ScaleWithoutEpoch", "takes the last scale of a place for this one",
                              "a scale carries its epoch", {V::kWrongBits}, ThreeRanksInTwoShots()),
  };
}

}  // namespace stoker::testing::simt
