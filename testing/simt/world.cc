#include "testing/simt/world.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "moe/arguments.h"
#include "testing/simt/world_parts.h"

namespace stoker::testing::simt {
namespace {

constexpr int64_t kArenaBytes = 1 << 20;
constexpr int kTopK = 2;
constexpr int kRowsPerToken = 2;
constexpr int kExperts = 9;  // of a reduction: a chunk and one

uint16_t RandomElement(Random& random, Payload payload) {
  if (payload == Payload::kNan && random.Below(3) == 0) return comm::kStoredNan;
  if (payload == Payload::kSentinel && random.Below(2) == 0) return 0xFFFFu;
  // A bf16 of either sign between 2^-4 and 2^4.
  return static_cast<uint16_t>(random.Below(2) << 15 | (123u + random.Below(8)) << 7 |
                               random.Below(128));
}

}  // namespace

int Scenario::capacity() const {
  int most = std::max(1, fault.tokens);
  for (int t : tokens) most = std::max(most, t);
  return most;
}

World::World(const Scenario& scenario)
    : scenario_(scenario),
      machine_(std::make_unique<Machine>(kArenaBytes)),
      arrays_(std::make_unique<Arrays>()) {
  layout_.world = scenario.world;
  layout_.capacity = scenario.capacity();
  layout_.stride = scenario.packets;
  Layout();
  MakeLaunches();
  MakeHostSteps();
  for (int r = 0; r < scenario.world; ++r) {
    const comm::FailureRecord* record = &At<comm::RankHealth>(arrays_->health[r])->record;
    machine_->Watch(&record->valid, [this, record, r] {
      if (record->valid == 0u) return;
      if (record->code == comm::FailureCode::kNone || record->rank != r ||
          record->expected.signature == 0u) {
        incomplete_record_ = absl::StrCat("rank ", r, "'s record is valid before it is complete");
      }
    });
  }
  image_.assign(machine_->memory().base(), machine_->memory().base() + used_);
}

World::~World() = default;

int64_t World::Take(int64_t bytes) {
  const int64_t offset = used_;
  used_ += (bytes + 255) / 256 * 256;
  if (used_ > kArenaBytes) std::abort();
  return offset;
}

void World::Layout() {
  const int64_t row_bytes = int64_t{scenario_.packets} * comm::kPacketBytes;
  const int64_t rows = layout_.capacity * row_bytes;
  arrays_->gamma = Take(row_bytes);
  for (int r = 0; r < scenario_.world; ++r) {
    arrays_->workspace.push_back(Take(layout_.bytes()));
    arrays_->health.push_back(Take(sizeof(comm::RankHealth)));
    arrays_->residual.push_back(Take(rows));
    arrays_->norm_out.push_back(Take(rows));
  }
  Random random(99);
  const auto fill = [&](int64_t offset, int64_t elements) {
    for (int64_t i = 0; i < elements; ++i) {
      At<uint16_t>(offset)[i] = RandomElement(random, Payload::kRandom);
    }
  };
  fill(arrays_->gamma, row_bytes / 2);
  fill(arrays_->residual[0], rows / 2);
  for (int r = 0; r < scenario_.world; ++r) {
    std::memcpy(At<char>(arrays_->residual[r]), At<char>(arrays_->residual[0]), rows);
    char* workspace = At<char>(arrays_->workspace[r]);
    std::memset(workspace + comm::WorkspaceLayout::kMailboxOffset, 0xFF,
                layout_.bytes() - comm::WorkspaceLayout::kMailboxOffset);
    comm::Control control{};
    control.magic = comm::kWorkspaceMagic;
    control.epoch = control.first_epoch = scenario_.first_epoch;
    control.timeout_ns = control.startup_timeout_ns = scenario_.timeout_ns;
    std::memcpy(workspace, &control, sizeof(control));
    for (uint32_t epoch : {scenario_.first_epoch, scenario_.first_epoch + 1u}) {
      for (int source = 0; source < comm::kWorldMax; ++source) {
        comm::Header* headers = comm::HeadersOf(workspace);
        headers[comm::WorkspaceLayout::header_index(epoch, source)] = {
            comm::HeaderWord(epoch - 2u, 0), comm::HeaderWord(epoch - 2u, 0)};
        if (scenario_.two_shot) {
          for (int t = 0; t < layout_.capacity; ++t) {
            comm::ScalesOf(workspace, layout_)[layout_.scale_index(epoch, t)] =
                comm::HeaderWord(epoch - 2u, 0);
          }
        }
      }
    }
  }
  if (scenario_.fault.stale_mailbox) {
    char* workspace = At<char>(arrays_->workspace[scenario_.fault.rank]);
    std::memset(comm::MailboxOf(workspace), 0x3F,
                static_cast<size_t>(2 * layout_.half_packets()) * comm::kPacketBytes);
  }
  if (scenario_.fault.foreign_header) {
    const uint64_t word = comm::HeaderWord(0x40000000u, 0);
    comm::Header* headers = comm::HeadersOf(At<char>(arrays_->workspace[scenario_.fault.rank]));
    for (uint32_t parity : {0u, 1u}) {
      headers[comm::WorkspaceLayout::header_index(
          parity, (scenario_.fault.rank + 1) % scenario_.world)] = {word, word};
    }
  }
}

void World::MakeHostSteps() {
  epochs_.assign(static_cast<size_t>(scenario_.world), 0u);
  host_step_.kind = scenario_.fault.stops ? HostStep::Kind::kStop : HostStep::Kind::kReset;
  host_step_.epochs = epochs_.data();
  host_step_.fresh.magic = comm::kWorkspaceMagic;
  host_step_.fresh.generation = 1u;
  host_step_.fresh.timeout_ns = host_step_.fresh.startup_timeout_ns = scenario_.timeout_ns;
  for (int r = 0; r < scenario_.world; ++r) {
    auto step = std::make_unique<Launch>();
    step->params = launches_[static_cast<size_t>(r)]->params;
    step->kernel = {};
    step->kernel.host = &host_step_;
    host_steps_.push_back(std::move(step));
  }
}

void World::MakeLaunches() {
  const Scenario& s = scenario_;
  const int launches = static_cast<int>(s.tokens.size());
  const int hidden = s.packets * comm::kPacketElements;
  moe::Rows residual(At<uint16_t>(arrays_->residual[0]),
                     At<uint16_t>(arrays_->residual[0]) + int64_t{layout_.capacity} * hidden);
  Random random(7);
  for (int i = 0; i < launches; ++i) {
    const moe::Shape shape{.tokens = s.tokens[i], .hidden = hidden};
    moe::NormArguments norm;
    norm.gamma = At<uint16_t>(arrays_->gamma);
    norm.residual_in = s.residual_chain ? residual.data() : nullptr;
    std::vector<moe::Rows> partials;
    for (int r = 0; r < s.world; ++r) {
      auto launch = std::make_unique<Launch>();
      const Fault* fault =
          s.fault.rank == r && (s.fault.launch < 0 || s.fault.launch == i) ? &s.fault : nullptr;
      const int tokens = fault != nullptr && fault->tokens >= 0 ? fault->tokens : s.tokens[i];
      const int64_t row_count = int64_t{kRowsPerToken} * layout_.capacity;
      const int64_t rows = s.source == Source::kFinalize    ? row_count
                           : s.source == Source::kReduction ? int64_t{kExperts} * layout_.capacity
                                                            : layout_.capacity;
      const int64_t input = Take(rows * hidden * 2);
      const int64_t indices = Take(int64_t{layout_.capacity} * kTopK * 4);
      const int64_t weights = Take(int64_t{layout_.capacity} * kTopK * 4);
      const int64_t scale_count =
          s.source == Source::kReduction ? int64_t{layout_.capacity} * kExperts : 0;
      const int64_t scales = Take(scale_count * 4);
      for (int64_t k = 0; k < rows * hidden; ++k) {
        At<uint16_t>(input)[k] = RandomElement(random, s.payload);
      }
      for (int64_t k = 0; k < int64_t{layout_.capacity} * kTopK; ++k) {
        // The first route counts: an index out of range takes its place.
        const bool dropped = k > 0 && random.Below(5) == 0;
        At<int32_t>(indices)[k] =
            dropped ? -1 : static_cast<int32_t>(random.Below(uint32_t(row_count)));
        At<float>(weights)[k] = 0.25f + 0.125f * static_cast<float>(random.Below(8));
      }
      const moe::FinalizeArguments finalize{.rows = At<void>(input),
                                            .row_count = row_count,
                                            .indices = At<int32_t>(indices),
                                            .weights = At<void>(weights),
                                            .weight_type = moe::ScalarType::kFp32,
                                            .top_k = kTopK,
                                            .routed_scaling_factor = 2.5f};
      for (int64_t k = 0; k < scale_count; ++k) {
        At<float>(scales)[k] = 0.125f * static_cast<float>(random.Below(8));
      }
      const moe::ReductionArguments reduction{
          .rows = At<void>(input), .scales = At<float>(scales), .experts = kExperts};
      partials.push_back(s.source == Source::kFinalize ? moe::ReferencePartial(shape, finalize)
                         : s.source == Source::kReduction
                             ? moe::ReferencePartial(shape, reduction)
                             : moe::Rows(At<uint16_t>(input),
                                         At<uint16_t>(input) + int64_t{s.tokens[i]} * hidden));
      const bool again = s.fault.rank == r && s.fault.fails_again && i == s.fault.launch + 1;
      if ((fault != nullptr && fault->index_out_of_range) || again) {
        At<int32_t>(indices)[0] = static_cast<int32_t>(row_count);
      }
      comm::ExchangeParams& p = launch->params;
      p = {};
      for (int k = 0; k < s.world; ++k) p.workspace[k] = At<void>(arrays_->workspace[k]);
      p.health = At<comm::RankHealth>(arrays_->health[r]);
      p.layout = layout_;
      p.rank = r;
      p.tokens = tokens;
      p.packets = s.packets;
      p.early_trigger =
          s.early_trigger || (s.fault.overlaps && !s.fault.second_stream && s.fault.rank == r);
      comm::LaunchDescriptor descriptor{};
      descriptor.op = s.source == Source::kFinalize    ? comm::Op::kFinalize
                      : s.source == Source::kReduction ? comm::Op::kReduction
                                                       : comm::Op::kPlain;
      descriptor.protocol = s.two_shot ? comm::Protocol::kTwoShot : comm::Protocol::kOneShot;
      descriptor.hidden = hidden;
      descriptor.site =
          (fault != nullptr ? fault->site : 0u) + (s.own_sites ? static_cast<uint32_t>(i) : 0u);
      descriptor.generation = s.reset_before >= 0 && i >= s.reset_before ? 1u : 0u;
      if (fault != nullptr && fault->describe != nullptr) fault->describe(descriptor);
      p.signature = comm::Signature(descriptor);
      p.log.descriptor = descriptor;
      p.log.signature = p.signature;
      p.log.tokens = tokens;

      KernelParams& k = launch->kernel;
      k = {};
      k.plain = {At<comm::Packet>(input), s.packets};
      k.finalize.rows = At<comm::Packet>(input);
      k.finalize.indices = At<int32_t>(indices);
      k.finalize.weights = At<void>(weights);
      k.finalize.row_count = row_count;
      k.finalize.packets = s.packets;
      k.finalize.top_k = kTopK;
      k.finalize.routed_scaling_factor = 2.5f;
      k.finalize.weights_fp32 = 1u;
      k.reduction.rows = At<comm::Packet>(input);
      k.reduction.scales = At<float>(scales);
      k.reduction.tokens = tokens;
      k.reduction.packets = s.packets;
      k.reduction.experts = kExperts;
      k.reduction.expert_packets = static_cast<uint32_t>(tokens * s.packets);
      launch->residual_out = arrays_->residual[r];
      comm::Packet* residual_at = At<comm::Packet>(launch->residual_out);
      k.norm.residual_in = s.residual_chain ? residual_at : nullptr;
      k.norm.residual_out = residual_at;
      k.norm.norm_out = At<comm::Packet>(arrays_->norm_out[r]);
      k.norm.gamma = At<void>(arrays_->gamma);
      k.norm.tokens = tokens;
      k.norm.packets = s.packets;
      k.norm.inverse_hidden = 1.0f / static_cast<float>(hidden);
      k.norm.eps = norm.eps;
      launches_.push_back(std::move(launch));
    }
    const moe::NormResult expected = moe::ReferenceSumAndNorm(shape, partials, norm);
    std::copy(expected.residual_out.begin(), expected.residual_out.end(), residual.begin());
    for (int r = 0; r < s.world; ++r) {
      launches_[static_cast<size_t>(i * s.world + r)]->expected = expected;
    }
  }
}

// As a host copies new inputs between two replays.
void World::NegateInputs(int rank) {
  for (size_t i = static_cast<size_t>(rank); i < launches_.size();
       i += static_cast<size_t>(scenario_.world)) {
    const uint32_t* words = reinterpret_cast<const uint32_t*>(launches_[i]->kernel.plain.input);
    for (int64_t w = 0; w < layout_.capacity * int64_t{scenario_.packets} * 4; ++w) {
      machine_->memory().HostStore(machine_->memory().Word(words + w), words[w] ^ 0x80008000u);
    }
  }
}

void World::FillStream(Body body, int rank) {
  const Scenario& s = scenario_;
  const Fault& fault = s.fault;
  const bool mine = fault.rank == rank;
  std::vector<GridSpec>& stream = streams_[static_cast<size_t>(rank)];
  const auto add_host = [&] {
    Launch* step = host_steps_[static_cast<size_t>(rank)].get();
    GridSpec grid;
    grid.params = step->params;
    grid.body = [body, step] { body(step->params, step->kernel); };
    grid.warps = 1;
    grid.host = true;
    stream.push_back(std::move(grid));
  };
  const int launches = static_cast<int>(s.tokens.size());
  const auto add_launch = [&](int i, bool faulty, int replay) {
    Launch* launch = launches_[static_cast<size_t>(i * s.world + rank)].get();
    const Body runs = faulty && fault.body != nullptr ? fault.body : body;
    GridSpec grid;
    grid.params = launch->params;
    grid.body = [runs, launch] { runs(launch->params, launch->kernel); };
    grid.clusters = std::clamp(launch->params.tokens, 1, s.clusters);
    grid.cluster_size = s.cluster_size;
    grid.warps = s.row_warps + 1;
    grid.waits_for_last = !(faulty && fault.overlaps);
    grid.second_stream = faulty && fault.second_stream;
    if (faulty) grid.not_before_ns = fault.late_ns;
    if (faulty) grid.pause_ns = fault.pause_ns;
    // Its own header would hide the foreign one.
    if (fault.foreign_header && rank == (fault.rank + 1) % s.world) {
      grid.not_before_ns = 4 * s.limits.tick_ns;
    }
    const bool last = i == launches - 1 && replay < s.replays - 1;
    grid.after = [this, rank, i, last, replay] {
      Check(rank, i, replay % 2 == 1);
      if (last) NegateInputs(rank);
    };
    stream.push_back(std::move(grid));
  };
  for (int i = 0; i < launches; ++i) {
    Launch& launch = *launches_[static_cast<size_t>(i * s.world + rank)];
    launch.result = Launch::Result::kNotEnded;
    const bool now = fault.launch < 0 || fault.launch == i;
    const bool later = fault.launch >= 0 && i > fault.launch;
    if (i == s.reset_before) add_host();
    const bool missing = mine ? ((fault.never || fault.stops) && (now || later)) ||
                                    (fault.skips && now) || (fault.dies && later)
                              : fault.alone && (now || later);
    if (mine && fault.stops && i == fault.launch) add_host();
    if (missing) {
      launch.result = Launch::Result::kRight;
    } else {
      add_launch(i, mine && now, 0);
    }
  }
  if (mine && fault.repeats) add_launch(launches - 1, false, 0);
  for (int replay = 1; replay < s.replays; ++replay) {
    for (int i = 0; i < launches; ++i) add_launch(i, false, replay);
  }
}

Outcome World::Run(Body body, uint64_t seed) {
  Random random(seed ^ 0xA5A5A5A5u);
  Policy policy = Policy::Draw(random);
  if (scenario_.look_rate > 0) policy.look_rate = scenario_.look_rate;
  return Run(body, seed, policy);
}

Outcome World::Run(Body body, uint64_t seed, const Policy& policy) {
  std::memcpy(machine_->memory().base(), image_.data(), image_.size());
  first_wrong_.clear();
  incomplete_record_.clear();
  const Scenario& s = scenario_;
  streams_.assign(static_cast<size_t>(s.world), {});
  for (int r = 0; r < s.world; ++r) FillStream(body, r);
  Outcome outcome;
  const std::string wrong = machine_->Run(seed, policy, s.limits, streams_);
  outcome.verdict = Judge(wrong, &outcome.what);
  outcome.schedule_hash = machine_->memory().schedule_hash();
  outcome.class_hash = machine_->memory().class_hash();
  outcome.operations = machine_->memory().operations();
  return outcome;
}

}  // namespace stoker::testing::simt
