#include "comm/cpu_exchange.h"

#include <cstring>
#include <iterator>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "base/status.h"
#include "comm/cpu_environment.h"
#include "comm/exchange_params.h"
#include "comm/failure_path.h"
#include "comm/header_check.h"
#include "comm/wire_type.h"

namespace stoker::comm {
namespace {

// One launch of this rank. `failed_` is set once, and nothing is waited for afterwards.
class Exchange {
 public:
  Exchange(const ExchangeParams& params, const CpuLaunch& launch)
      : p_(params), launch_(launch), control_(ControlOf(params.workspace[params.rank])) {}

  // True if the outputs stand.
  bool Run() {
    const uint32_t ticket = env_.AtomicAdd(&control_->started, 1u);
    epoch_ = env_.LoadWord(&control_->epoch);
    failed_ = env_.LoadWord(&control_->abort) != 0u;
    if (ticket != 0u) {
      // The launch in flight owns the counters; this one only says that it came too early.
      Fail(env_, p_, epoch_, FailureCode::kOverlap, -1, -1, -1, 0u);
      launch_.fill_nan();
      return false;
    }
    SendHeaders();
    PushAll();
    AwaitHeaders();
    for (int token = 0; token < p_.tokens; ++token) ReceiveToken(token);
    return Finish();
  }

 private:
  void SendHeaders() {
    // As on a GPU: a launch that starts after a failure tells nobody and logs nothing.
    if (failed_) return;
    for (int peer = 0; peer < p_.layout.world; ++peer) {
      if (peer == p_.rank) continue;
      Header* slot = HeadersOf(p_.workspace[peer]) + WorkspaceLayout::header_index(epoch_, p_.rank);
      env_.StoreHeader(&slot->tokens, HeaderWord(epoch_, static_cast<uint32_t>(p_.tokens)));
      env_.StoreHeader(&slot->signature, HeaderWord(epoch_, p_.signature));
    }
    LaunchEntry entry = p_.log;
    entry.epoch = epoch_;
    uint32_t words[sizeof(entry) / 4];
    std::memcpy(words, &entry, sizeof(entry));
    // By words: a second launch that came too early may be copying the ring for its report.
    uint32_t* logged =
        reinterpret_cast<uint32_t*>(RingOf(p_.workspace[p_.rank]) + epoch_ % kLaunchRing);
    for (size_t word = 0; word < std::size(words); ++word) {
      env_.StoreWord(logged + word, words[word]);
    }
    CopyRing(env_, p_, 0, 1);
  }

  void PushAll() {
    // A launch that starts after a failure may be epochs ahead of a peer that still reads this
    // half.
    if (failed_) return;
    own_.resize(static_cast<size_t>(p_.tokens) * p_.packets);
    for (int token = 0; token < p_.tokens; ++token) {
      Packet* row = &own_[static_cast<size_t>(token) * p_.packets];
      uint64_t bad_detail = 0;
      if (!launch_.produce(token, row, &bad_detail)) {
        Fail(env_, p_, epoch_, FailureCode::kIndexOutOfRange, -1, token, -1, bad_detail);
        failed_ = true;
      }
      for (int i = 1; i < p_.layout.world; ++i) {
        const int peer = (p_.rank + i) % p_.layout.world;
        Packet* mailbox =
            MailboxOf(p_.workspace[peer]) + p_.layout.packet_index(epoch_, p_.rank, token, 0);
        for (int packet = 0; packet < p_.packets; ++packet) {
          Packet sent = row[packet];
          for (uint32_t& word : sent.word) {
            if (word == kSentinel) word = kSentinelSubstitute;
          }
          env_.StorePacket(mailbox + packet, sent);
        }
      }
    }
  }

  // Looks at all peers in turn, so that a mismatch with one is seen while another is late.
  void AwaitHeaders() {
    uint32_t awaited = ((1u << p_.layout.world) - 1u) & ~(1u << p_.rank);
    for (int polls = 1; awaited != 0u; ++polls) {
      for (int peer = 0; peer < p_.layout.world; ++peer) {
        if ((awaited >> peer & 1u) == 0u) continue;
        const Header seen = LoadHeaderOf(env_, p_, epoch_, peer);
        if (HeaderMatches(p_, epoch_, seen)) {
          awaited &= ~(1u << peer);
        } else if (!HeaderMayCome(env_, p_, Launch{epoch_, failed_}, peer, seen)) {
          failed_ = true;
        }
      }
      if (failed_ || awaited == 0u) return;
      env_.Await();
      if (polls % CpuEnvironment::kPollsPerLook == 0) {
        failed_ = !MayWait(env_, p_, epoch_, awaited, -1, -1);
      }
    }
  }

  void ReceiveToken(int token) {
    std::vector<float> sum(static_cast<size_t>(p_.packets) * kPacketElements);
    const bool bf16 = launch_.descriptor.wire_type == WireType::kBf16;
    for (int packet = 0; packet < p_.packets && !failed_; ++packet) {
      for (int source = 0; source < p_.layout.world; ++source) {
        const Packet row = source == p_.rank
                               ? own_[static_cast<size_t>(token) * p_.packets + packet]
                               : Receive(source, token, packet);
        float* at = &sum[static_cast<size_t>(packet) * kPacketElements];
        for (int w = 0; w < kPacketWords; ++w) {
          float low, high;
          bf16 ? Unpack<Bf16>(row.word[w], low, high) : Unpack<Fp16>(row.word[w], low, high);
          at[2 * w] = source == 0 ? low : at[2 * w] + low;
          at[2 * w + 1] = source == 0 ? high : at[2 * w + 1] + high;
        }
      }
    }
    if (!failed_) launch_.consume(token, sum.data());
  }

  Packet Receive(int source, int token, int packet) {
    Packet* place =
        MailboxOf(p_.workspace[p_.rank]) + p_.layout.packet_index(epoch_, source, token, packet);
    for (int polls = 1; !failed_; ++polls) {
      const Packet row = env_.LoadPacket(place);
      bool arrived = true;
      for (uint32_t word : row.word) arrived = arrived && word != kSentinel;
      if (arrived) {
        env_.StorePacket(place, Packet{{kSentinel, kSentinel, kSentinel, kSentinel}});
        return row;
      }
      env_.Await();
      if (polls % CpuEnvironment::kPollsPerLook == 0) {
        failed_ = !MayWait(env_, p_, epoch_, 1u << source, token, packet);
      }
    }
    return Packet{};
  }

  bool Finish() {
    const bool stands = !failed_ && env_.LoadWord(&control_->abort) == 0u;
    if (!stands) launch_.fill_nan();
    if (env_.LoadWord64(&control_->wait_since_ns) != 0u) {
      for (int peer = 0; peer < p_.layout.world; ++peer) {
        env_.StoreWord64(&control_->waited_ns[peer], env_.LoadWord64(&p_.health->waited_ns[peer]));
      }
      env_.StoreWord64(&p_.health->waiting_since_ns, 0u);
    }
    env_.StoreWord64(&control_->wait_since_ns, 0u);
    env_.StoreWord(&control_->epoch, epoch_ + 1u);
    env_.StoreWord(&control_->started, 0u);
    return stands;
  }

  CpuEnvironment env_;
  const ExchangeParams& p_;
  const CpuLaunch& launch_;
  Control* control_;
  uint32_t epoch_ = 0;
  bool failed_ = false;
  std::vector<Packet> own_;
};

}  // namespace

absl::Status RunOneShot(CpuCommunicator& communicator, const CpuLaunch& launch) {
  STOKER_RETURN_IF_ERROR(communicator.BeginLaunch());
  absl::Cleanup end = [&communicator] { communicator.EndLaunch(); };
  if (launch.descriptor.generation != communicator.generation().value()) {
    return absl::FailedPreconditionError("the group was reset while this launch was prepared");
  }
  // As on a GPU: what a launch after a report is told of its peers would be reported as well, and
  // hide the cause.
  const absl::Status failed = communicator.Health();
  if (!failed.ok()) {
    launch.fill_nan();
    return failed;
  }
  ExchangeParams params = communicator.Params();
  params.tokens = launch.tokens;
  params.packets = launch.packets;
  params.signature = Signature(launch.descriptor);
  params.log.descriptor = launch.descriptor;
  params.log.signature = params.signature;
  params.log.tokens = launch.tokens;
  const bool stands = Exchange(params, launch).Run();
  if (stands) return absl::OkStatus();
  const absl::Status failure = communicator.Health();
  if (!failure.ok()) return failure;
  return absl::AbortedError(
      "a peer stopped the group before it could say why (its record is not written yet)");
}

}  // namespace stoker::comm
