#include "tools/bench/contenders.h"

#include <algorithm>
#include <memory>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "moe/fused_cuda.h"
#include "tools/bench/hand_written.h"
#include "tools/bench/local_finalize.h"
#include "tools/bench/pr6631.h"
#include "tools/bench/unguarded.h"

namespace stoker::bench {
namespace {

Way WayOf(comm::Protocol protocol) {
  return protocol == comm::Protocol::kOneShot ? Way::kOneShot : Way::kTwoShot;
}

// Makes Stoker's own contenders for one cell.
class Maker {
 public:
  Maker(const moe::Shape& shape, int top_k, testing::StreamWorld& world)
      : shape_(shape), top_k_(top_k), world_(world) {}

  comm::Protocol ProtocolOf(const moe::LaunchOptions& launch) const {
    return moe::ProtocolOf(world_.communicator(0), shape_, launch);
  }
  comm::LaunchShape ShapeOf(const moe::LaunchOptions& launch) const {
    return moe::ShapeOf(world_.communicator(0), shape_, launch);
  }

  Contender Fused(const std::string& name, const moe::LaunchOptions& launch) const {
    Contender contender;
    contender.name = name;
    contender.launch_shape = ShapeOf(launch).ToString();
    contender.bytes = LeastBytes(WayOf(ProtocolOf(launch)), world_.world(), shape_, top_k_);
    contender.own = true;
    contender.launch = [&world = world_, shape = shape_, launch](
                           int rank, const moe::FinalizeArguments& finalize,
                           const moe::NormArguments& norm, cudaStream_t stream) {
      return moe::MoeFinalizeAllReduceRmsNorm(world.communicator(rank), shape, finalize, norm,
                                              launch, stream);
    };
    return contender;
  }

  Contender Fp32Residual(const moe::LaunchOptions& launch) const {
    Contender contender = Fused("stoker, fp32 residual", launch);
    contender.timed = false;
    contender.launch = [fused = contender.launch](int rank, const moe::FinalizeArguments& finalize,
                                                  const moe::NormArguments& norm,
                                                  cudaStream_t stream) {
      moe::NormArguments unrounded = norm;
      unrounded.mode = comm::Mode::kFp32Residual;
      return fused(rank, finalize, unrounded, stream);
    };
    return contender;
  }

  Contender Unfused(const moe::LaunchOptions& launch) const {
    auto partials = std::make_shared<LocalFinalize>(world_.world(), shape_);
    Contender contender = Fused("unfused", launch);
    const bool one_shot = ProtocolOf(launch) == comm::Protocol::kOneShot;
    contender.bytes = LeastBytes(one_shot ? Way::kUnfusedOneShot : Way::kUnfusedTwoShot,
                                 world_.world(), shape_, top_k_);
    contender.launch = [&world = world_, shape = shape_, launch, partials](
                           int rank, const moe::FinalizeArguments& finalize,
                           const moe::NormArguments& norm, cudaStream_t stream) {
      STOKER_RETURN_IF_ERROR(partials->Launch(rank, finalize, launch.programmatic_launch, stream));
      return moe::AllReduceRmsNorm(world.communicator(rank), shape, partials->output(rank), norm,
                                   launch, stream);
    };
    return contender;
  }

  // The sibling that reads as many rows: top_k experts for every token, at the start of the
  // permuted rows. Its numbers are other ones, and are tested elsewhere.
  Contender Reduction(const moe::LaunchOptions& launch) const {
    const int64_t bytes = std::max<int64_t>(16, int64_t{4} * top_k_ * shape_.tokens);
    void* memory = nullptr;
    if (cudaMalloc(&memory, bytes) == cudaSuccess) cudaMemset(memory, 0, bytes);
    const std::shared_ptr<void> scales(memory, [](void* p) { cudaFree(p); });
    Contender contender = Fused("reduction", launch);
    contender.outputs = false;
    contender.launch = [&world = world_, shape = shape_, launch, scales](
                           int rank, const moe::FinalizeArguments& finalize,
                           const moe::NormArguments& norm, cudaStream_t stream) {
      return moe::MoeReduceAllReduceRmsNorm(world.communicator(rank), shape,
                                            {.rows = finalize.rows,
                                             .scales = static_cast<const float*>(scales.get()),
                                             .experts = finalize.top_k,
                                             .shared = finalize.shared},
                                            norm, launch, stream);
    };
    return contender;
  }

 private:
  moe::Shape shape_;
  int top_k_;
  testing::StreamWorld& world_;
};

}  // namespace

bool ContenderOptions::Wants(const std::string& name) const {
  return against.empty() || std::any_of(against.begin(), against.end(), [&](const auto& word) {
           return absl::StartsWith(name, word);
         });
}

std::vector<Contender> OwnContenders(const ContenderOptions& options, const moe::Shape& shape,
                                     int top_k, testing::StreamWorld& world) {
  moe::LaunchOptions launch;
  launch.programmatic_launch = options.programmatic;
  launch.early_trigger = options.early_trigger;
  const Maker maker(shape, top_k, world);
  const comm::Protocol protocol = maker.ProtocolOf(launch);
  const int vectors = maker.ShapeOf(launch).vectors;
  const bool bf16 = shape.wire_type == comm::WireType::kBf16;

  std::vector<Contender> contenders = {maker.Fused("stoker", launch)};
  for (const comm::LaunchShape& choice : options.shapes) {
    moe::LaunchOptions chosen = launch;
    chosen.shape = &choice;
    contenders.push_back(maker.Fused("stoker " + choice.ToString(), chosen));
  }
  moe::LaunchOptions by_hand = launch;
  // It has the one-shot exchange only, whatever the policy says, and one vector a thread.
  by_hand.protocol = comm::Protocol::kOneShot;
  by_hand.kernel = HandWrittenFinalizeKernel();
  if (options.Wants("hand-written") && bf16 && world.world() <= 4 &&
      maker.ShapeOf(by_hand).vectors == 1) {
    contenders.push_back(maker.Fused("hand-written", by_hand));
  }
  const void* unguarded = UnguardedFinalizeKernel(protocol, world.world(), vectors);
  if (options.Wants("unguarded") && unguarded != nullptr && bf16 && !options.early_trigger) {
    moe::LaunchOptions without = launch;
    without.kernel = unguarded;
    contenders.push_back(maker.Fused("unguarded", without));
  }
  if (options.programmatic && !options.early_trigger) {
    moe::LaunchOptions early = launch;
    early.early_trigger = true;
    contenders.push_back(maker.Fused("stoker, early trigger", early));
  }
  if (world.world() > 1) {
    moe::LaunchOptions other = launch;
    other.protocol =
        protocol == comm::Protocol::kOneShot ? comm::Protocol::kTwoShot : comm::Protocol::kOneShot;
    contenders.push_back(
        maker.Fused(absl::StrCat("stoker, ", comm::ProtocolName(*other.protocol)), other));
  }
  contenders.push_back(maker.Fp32Residual(launch));
  if (options.Wants("reduction")) contenders.push_back(maker.Reduction(launch));
  if (options.Wants("unfused")) contenders.push_back(maker.Unfused(launch));
  contenders.push_back(maker.Fused("stoker again", launch));
  return contenders;
}

Peer Pr6631Peer() {
  return {"pr6631", Way::kLamport,
          [](int world, const moe::Shape& shape,
             bool programmatic) -> absl::StatusOr<std::vector<PeerLaunch>> {
            STOKER_ASSIGN_OR_RETURN(std::shared_ptr<Pr6631Finalize> peer,
                                    Pr6631Finalize::Create(world, shape));
            std::vector<PeerLaunch> launches;
            for (const Pr6631Finalize::Shape& how : peer->Shapes()) {
              launches.push_back(
                  {how.ToString(),
                   [peer, how, programmatic](int rank, const moe::FinalizeArguments& finalize,
                                             const moe::NormArguments& norm, cudaStream_t stream) {
                     return peer->Launch(rank, how, finalize, norm, programmatic, stream);
                   }});
            }
            return launches;
          }};
}

Peer PacketsPeer(PacketKind kind) {
  constexpr int kTokensMax = 32;
  const std::string name = kind == PacketKind::kSentinel ? "packets, sentinel" : "packets, tagged";
  return {name, Way::kOneShot,
          [kind](int world, const moe::Shape& shape,
                 bool programmatic) -> absl::StatusOr<std::vector<PeerLaunch>> {
            if (shape.tokens > kTokensMax) return std::vector<PeerLaunch>();
            STOKER_ASSIGN_OR_RETURN(std::shared_ptr<PacketExchange> exchange,
                                    PacketExchange::Create(kind, world, shape));
            PeerLaunch launch;
            launch.bytes = exchange->bytes();
            launch.outputs = false;
            launch.launch = [exchange, programmatic](
                                int rank, const moe::FinalizeArguments& finalize,
                                const moe::NormArguments& norm, cudaStream_t stream) {
              return exchange->Launch(rank, finalize.rows, norm.residual_out, programmatic, stream);
            };
            return std::vector<PeerLaunch>{launch};
          }};
}

}  // namespace stoker::bench
