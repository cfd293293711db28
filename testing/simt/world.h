// A world of simulated ranks: a group with its workspaces, a list of launches with inputs, and what
// must come out. One world runs many schedules; each starts from the same memory.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/health_page.h"
#include "moe/kernel_params.h"
#include "moe/reference.h"
#include "testing/simt/machine.h"

namespace stoker::testing::simt {

enum class Payload {
  kRandom,
  kNan,       // many NaN patterns
  kSentinel,  // many words equal to the sentinel
};

// Where a rank's row of a token comes from.
enum class Source {
  kPlain,      // it is the input
  kFinalize,   // gathered expert rows
  kReduction,  // rows of all experts
};

// What the host does in a launch's place (testing/simt/host_step.h).
struct HostStep {
  enum class Kind { kReset, kStop } kind = Kind::kReset;
  comm::Control fresh{};       // what a reset leaves, but for the epoch
  uint32_t* epochs = nullptr;  // [rank], what the hosts tell each other
};

// What one launch's thread finds through Running()->cta->grid->spec and needs beside the group's
// parameters.
struct KernelParams {
  moe::PlainParams plain;
  moe::FinalizeParams finalize;
  moe::ReductionParams reduction;
  moe::RmsNormParams norm;
  const HostStep* host;
};

// Runs a launch on the running thread: the shipped body, or a mutant's.
using Body = void (*)(const comm::ExchangeParams& params, const KernelParams& kernel);

// One rank's deviation from what the others do.
struct Fault {
  int rank = -1;
  int launch = -1;                  // from 0; -1: every launch
  int tokens = -1;                  // instead of the launch's
  uint32_t site = 0;                // in the descriptor, and so in the signature
  bool never = false;               // this launch and all later ones do not happen
  bool skips = false;               // this one does not
  bool repeats = false;             // the last one happens once more
  bool alone = false;               // nobody else makes this launch or later ones
  bool dies = false;                // within this launch: its results are nobody's
  bool index_out_of_range = false;  // of the finalize producer
  bool fails_again = false;         // and so in the launch after it
  bool overlaps = false;            // does not wait for the launch before, which triggers early
  bool second_stream = false;       // the same without the trigger
  bool stale_mailbox = false;       // full of rubbish at the start
  bool foreign_header = false;      // of an epoch that there cannot be
  bool stops = false;               // the host stops the group in this launch's place
  uint64_t late_ns = 0;
  uint64_t pause_ns = 0;
  void (*describe)(comm::LaunchDescriptor&) = nullptr;  // changes what its header says
  Body body = nullptr;  // what runs instead of the kernel in this launch
};

struct Scenario {
  std::string name;
  int world = 2;
  int clusters = 1;
  int cluster_size = 1;
  int row_warps = 1;        // per CTA
  int packets = 1;          // per row
  std::vector<int> tokens;  // of each launch
  bool two_shot = false;
  Source source = Source::kPlain;
  bool early_trigger = false;
  bool own_sites = false;  // each launch has a site of its own
  int replays = 1;         // of a graph of all launches; each has its inputs negated
  int reset_before = -1;   // this launch all ranks reset the group; it may have failed until then
  bool residual_chain = true;  // residual_out is residual_in, and the next launch's residual
  Payload payload = Payload::kRandom;
  uint32_t first_epoch = 0xFFFFFFFEu;
  Limits limits;
  uint32_t look_rate = 0;  // instead of the policy's, if not 0
  Fault fault;
  // With a fault: the codes that may be reported (bit c for code c), and until when all launches
  // must have ended. 0: nothing may be reported and every result is right.
  uint32_t codes = 0;
  uint64_t end_ns = 0;
  bool outside = false;  // the fault model: rows may be exchanged
  uint64_t timeout_ns = 100'000'000;

  int capacity() const;
};

enum class Verdict {
  kRight,
  kHang,           // nothing can happen any more, although a launch has not ended
  kWrongBits,      // a finite value that is not the right one, in a launch that ended
  kFalseAlarm,     // a failure was reported that is none, or a wrong one
  kNoReport,       // a failure was not reported, or not to every rank, or too late
  kBrokenMachine,  // a barrier, shuffle or shared memory was used as none may be
};
const char* VerdictName(Verdict verdict);

struct Outcome {
  Verdict verdict = Verdict::kRight;
  std::string what;
  uint64_t schedule_hash = 0;
  uint64_t class_hash = 0;
  int64_t operations = 0;
};

class World {
 public:
  explicit World(const Scenario& scenario);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  Outcome Run(Body body, uint64_t seed);
  // The same with a given policy instead of one drawn from the seed.
  Outcome Run(Body body, uint64_t seed, const Policy& policy);
  int choices() const { return machine_->choices(); }
  const Scenario& scenario() const { return scenario_; }

 private:
  struct Launch;
  struct Arrays;

  void Layout();
  void Fill();
  void MakeLaunches();
  void MakeHostSteps();
  void FillStream(Body body, int rank);
  moe::NormArguments NormOf(const uint16_t* residual) const;
  void NegateInputs(int rank);
  void Check(int rank, int launch, bool negated);
  Verdict Judge(const std::string& wrong, std::string* what) const;
  comm::RankHealth* HealthOf(int rank);
  template <class T>
  T* At(int64_t offset) const {
    return reinterpret_cast<T*>(machine_->memory().base() + offset);
  }
  int64_t Take(int64_t bytes);

  Scenario scenario_;
  comm::WorkspaceLayout layout_;
  std::unique_ptr<Machine> machine_;
  int64_t used_ = 0;
  std::unique_ptr<Arrays> arrays_;
  std::vector<char> image_;
  std::vector<std::unique_ptr<Launch>> launches_;  // [rank][launch]
  std::vector<std::vector<GridSpec>> streams_;
  std::vector<std::unique_ptr<Launch>> host_steps_;  // [rank]
  HostStep host_step_;
  std::vector<uint32_t> epochs_;
  std::string first_wrong_, incomplete_record_;
};

}  // namespace stoker::testing::simt
