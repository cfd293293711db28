#include "testing/faults/cpu_runner.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "comm/cpu_communicator.h"
#include "comm/cpu_exchange.h"
#include "comm/socket_exchange.h"
#include "moe/descriptor.h"
#include "moe/fused_cpu.h"
#include "moe/reference.h"
#include "testing/faults/member.h"
#include "testing/faults/script.h"
#include "testing/rank_processes.h"
#include "testing/unique_name.h"

namespace stoker::testing {
namespace {

// Two cores, and whatever else the machine does.
constexpr FaultPatience kPatience{.deadline = absl::Milliseconds(300),
                                  .precise = absl::Milliseconds(1000),
                                  .slack = absl::Seconds(3),
                                  .launches_after = 20};

class CpuMember : public FaultMember {
 public:
  explicit CpuMember(std::unique_ptr<comm::RankExchange> exchange)
      : exchange_(std::move(exchange)) {}

  absl::Status Create(const comm::GroupOptions& options) {
    STOKER_ASSIGN_OR_RETURN(communicator_, comm::CpuCommunicator::Create(options, *exchange_));
    return absl::OkStatus();
  }

  comm::RankExchange& exchange() override { return *exchange_; }
  const comm::HealthPage& page() const override { return communicator_->health_page(); }
  absl::Status Health() const override { return communicator_->Health(); }
  absl::Status SetTimeout(absl::Duration timeout) override {
    return communicator_->SetTimeout(timeout);
  }
  absl::Status Abort() override { return communicator_->Abort(); }
  absl::Status Reset(absl::Duration timeout) override {
    return communicator_->Reset(*exchange_, timeout);
  }
  absl::Status Close(absl::Duration timeout) override {
    return communicator_->Close(*exchange_, timeout);
  }

  absl::StatusOr<int> Prepare(const FaultLaunch& launch) override {
    prepared_.push_back({launch, MakeFaultData(launch, exchange_->rank(), exchange_->world())});
    return static_cast<int>(prepared_.size()) - 1;
  }

  FaultEnd Run(int launch) override {
    const Prepared& p = prepared_[static_cast<size_t>(launch)];
    return p.launch.hook == FaultHook::kNone ? RunShipped(p) : RunHooked(p);
  }
  FaultEnd RunTwice(int launch) override {
    const Prepared& p = prepared_[static_cast<size_t>(launch)];
    FaultEnd first;
    std::thread other([&] { first = RunHooked(p); });
    absl::SleepFor(p.launch.pause / 3);
    const FaultEnd second = RunShipped(p);
    other.join();
    return second.status.ok() ? first : second;
  }
  FaultEnd Replay(int) override { return Impossible(); }
  FaultEnd RunWithSecondStream(int) override { return Impossible(); }
  FaultEnd RunWithBrokenPromise(int) override { return Impossible(); }

  absl::Status SpoilMailbox() override {
    const comm::WorkspaceLayout& layout = communicator_->plan().layout;
    std::memset(comm::MailboxOf(Workspace()), 0x3F,
                layout.scales_offset() - comm::WorkspaceLayout::kMailboxOffset);
    return absl::OkStatus();
  }
  absl::Status SpoilHeader(int source, uint32_t epoch) override {
    const uint64_t word = comm::HeaderWord(epoch, 0);
    for (uint32_t parity : {0u, 1u}) {
      comm::HeadersOf(Workspace())[comm::WorkspaceLayout::header_index(parity, source)] = {word,
                                                                                           word};
    }
    return absl::OkStatus();
  }

  void EndProcess() override {}  // it has ended in its launch
  bool is_process() const override { return true; }

 private:
  struct Prepared {
    FaultLaunch launch;
    FaultData data;
  };

  static FaultEnd Impossible() {
    FaultEnd end;
    end.status = absl::UnimplementedError("CPU ranks have neither streams nor graphs");
    return end;
  }
  void* Workspace() const { return communicator_->Params().workspace[exchange_->rank()]; }

  FaultEnd RunShipped(const Prepared& p) {
    const moe::Shape& shape = p.launch.inputs.shape;
    const size_t elements = static_cast<size_t>(shape.tokens) * shape.hidden;
    moe::NormResult outputs{moe::Rows(elements, 0xABAB), moe::Rows(elements, 0xABAB)};
    moe::NormArguments norm = p.data.inputs.norm;
    norm.residual_out = outputs.residual_out.data();
    norm.norm_out = outputs.norm_out.data();
    const moe::LaunchOptions options{.site = p.launch.site};
    FaultEnd end;
    const absl::Time start = absl::Now();
    end.status = p.launch.plain ? moe::AllReduceRmsNorm(*communicator_, shape,
                                                        p.data.inputs.finalize.rows, norm, options)
                                : moe::MoeFinalizeAllReduceRmsNorm(
                                      *communicator_, shape, p.data.inputs.finalize, norm, options);
    end.time = absl::Now() - start;
    end.result = JudgeOutputs(p.data.expected, outputs);
    const bool untouched = std::count(outputs.norm_out.begin(), outputs.norm_out.end(), 0xABAB) ==
                           static_cast<int64_t>(elements);
    if (!end.status.ok() && untouched) end.result = FaultResult::kNan;  // refused
    return end;
  }

  // The same launch through the exchange itself, which lets the hook in between. Its outputs are
  // the peers' business: what this rank would make of the sums is not looked at.
  FaultEnd RunHooked(const Prepared& p) {
    const moe::Shape& shape = p.launch.inputs.shape;
    const int packets = shape.hidden / comm::kPacketElements;
    const moe::Rows partial = moe::ReferencePartial(shape, p.data.inputs.finalize);
    const FaultHook hook = p.launch.hook;
    const auto produce = [&](int token, comm::Packet* row, uint64_t*) {
      std::memcpy(row, &partial[static_cast<size_t>(token) * shape.hidden],
                  static_cast<size_t>(shape.hidden) * 2);
      if (token == 0 && (hook == FaultHook::kTorn || hook == FaultHook::kReordered)) {
        PushAhead(shape, partial, hook == FaultHook::kReordered);
      }
      const bool half = token == shape.tokens / 2;
      if (half && hook == FaultHook::kDies) std::raise(SIGKILL);
      if (half && (hook == FaultHook::kPausesInside || hook == FaultHook::kDelayed)) {
        absl::SleepFor(p.launch.pause);
      }
      return true;
    };
    int consumed = 0;
    const auto consume = [&](int, const float*) {
      if (++consumed == shape.tokens && hook == FaultHook::kPausesAtEnd) {
        absl::SleepFor(p.launch.pause);
      }
    };
    bool filled = false;
    const auto fill_nan = [&] { filled = true; };
    comm::CpuLaunch launch{
        .descriptor = moe::DescribeFinalize(shape, p.data.inputs.finalize, p.data.inputs.norm,
                                            {.site = p.launch.site}, communicator_->generation()),
        .tokens = shape.tokens,
        .packets = packets,
        .produce = produce,
        .consume = consume,
        .fill_nan = fill_nan};
    FaultEnd end;
    const absl::Time start = absl::Now();
    end.status = comm::RunOneShot(*communicator_, launch);
    end.time = absl::Now() - start;
    end.result = filled ? FaultResult::kNan : FaultResult::kRight;
    return end;
  }

  // Stores all words of all packets but the last of each, with pauses, before the launch itself
  // stores them in order, the last word last: so every packet is torn and, `reversed`, the last
  // packets come first. A packet without its last word is not taken.
  void PushAhead(const moe::Shape& shape, const moe::Rows& partial, bool reversed) {
    const comm::ExchangeParams params = communicator_->Params();
    const uint32_t epoch = comm::ControlOf(Workspace())->epoch;
    const int packets = shape.hidden / comm::kPacketElements;
    const int count = shape.tokens * packets;
    for (int i = 0; i < count; ++i) {
      const int at = reversed ? count - 1 - i : i;
      comm::Packet packet;
      std::memcpy(&packet, &partial[static_cast<size_t>(at) * comm::kPacketElements],
                  sizeof(packet));
      for (int peer = 0; peer < params.layout.world; ++peer) {
        if (peer == params.rank) continue;
        uint32_t* words =
            comm::MailboxOf(
                params.workspace[peer])[params.layout.packet_index(epoch, params.rank, at / packets,
                                                                   at % packets)]
                .word;
        for (int w = comm::kPacketWords - 2; w >= 0; --w) {
          __atomic_store_n(words + w, packet.word[w], __ATOMIC_RELEASE);
        }
      }
      if (i % 16 == 0) absl::SleepFor(absl::Microseconds(100));
    }
  }

  std::unique_ptr<comm::RankExchange> exchange_;
  std::unique_ptr<comm::CpuCommunicator> communicator_;
  std::vector<Prepared> prepared_;
};

}  // namespace

absl::Status RunOnCpuRanks(const FaultPlan& plan, uint64_t seed) {
  const Fault fault = DrawFault(plan, seed);
  const std::string name = UniqueName("plan");
  const auto outcomes =
      RunRankProcesses(kFaultRanks, absl::Seconds(110), [&](int rank) -> absl::Status {
        int members = 0;
        const auto make =
            [&](const comm::GroupOptions& options) -> absl::StatusOr<std::unique_ptr<FaultMember>> {
          STOKER_ASSIGN_OR_RETURN(auto exchange,
                                  comm::MakeSocketExchange(absl::StrCat(name, "-", members++), rank,
                                                           kFaultRanks, absl::Seconds(40)));
          auto member = std::make_unique<CpuMember>(std::move(exchange));
          STOKER_RETURN_IF_ERROR(member->Create(options));
          return std::unique_ptr<FaultMember>(std::move(member));
        };
        return RunFaultScript(plan, fault, rank, name, kPatience, make);
      });
  std::vector<std::string> failures;
  for (int rank = 0; rank < kFaultRanks; ++rank) {
    const RankOutcome& outcome = outcomes[static_cast<size_t>(rank)];
    const bool died = plan.deviation == Deviation::kDies && rank == fault.rank;
    if (died ? outcome.kind == RankOutcome::Kind::kSignalled : outcome.status.ok()) continue;
    failures.push_back(absl::StrCat("rank ", rank, ": ", outcome.status.ToString()));
  }
  if (failures.empty()) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("rank ", fault.rank, " deviates in launch ", fault.launch,
                                          ": ", absl::StrJoin(failures, "; ")));
}

}  // namespace stoker::testing
