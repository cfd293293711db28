#include "comm/cuda_environment.cuh"
#include "comm/launch_frame.h"
#include "comm/one_shot.h"
#include "comm/row_reduction.h"
#include "moe/kernel_entry.cuh"
#include "tools/bench/stages.h"
#include "tools/bench/unguarded_frame.cuh"

namespace stoker::bench {
namespace {

using comm::CudaEnvironment;
using comm::ExchangeParams;
using comm::Packet;
using Vectors = comm::Vectors<1>;

// Whether the bits are those of no sum: what depends on the answer cannot be left out, and never
// happens.
__device__ __forceinline__ bool Impossible(const Packet& packet) {
  return packet.word[0] == comm::kSentinel && packet.word[1] == comm::kSentinel &&
         packet.word[2] == comm::kSentinel && packet.word[3] == comm::kSentinel;
}

// A row that costs nothing.
struct NoProducer {
  template <class Env>
  __device__ void Fetch(Env, int) {}
  template <class Env>
  __device__ void Row(Env env, int token, const Vectors& vectors, Packet (&rows)[1]) {
    const uint32_t word = 0x3C003C00u + static_cast<uint32_t>(token);
    rows[0] = Packet{{word, word, word, word}};
  }
  __device__ int32_t bad_token() const { return -1; }
  template <class Env>
  __device__ uint64_t bad_detail(Env) const {
    return 0;
  }
};

// Takes the sum, reduces it if told to, and writes nothing.
template <bool kReduce>
struct NoEpilogue {
  const moe::RmsNormParams& p;
  float squares[1] = {};

  template <class Env>
  __device__ void Fetch(Env, int, const Vectors&) {}
  template <class Env>
  __device__ void Take(Env env, int, const Vectors& vectors, int,
                       const float (&sums)[comm::kPacketElements]) {
#pragma unroll
    for (float sum : sums) squares[0] = env.Fma(sum, sum, squares[0]);
  }
  template <class Env>
  __device__ float Finish(Env env, int, const Vectors& vectors, int turn) {
    float total = squares[0];
    if (kReduce) total = comm::SumOverRow<1>(env, squares, vectors.row_warps, p.packets, turn);
    if (total == -1.0f) env.StoreOutput(p.norm_out, Packet{});
    return total;
  }
  template <class Env>
  __device__ void FillNan(Env) {}
};

struct NoRows {
  template <class Env, class Producer, class Epilogue>
  __device__ static void Rows(Env env, const ExchangeParams&, comm::Launch&, comm::Tokens,
                              const Vectors&, Producer&, Epilogue&) {
    env.ArriveRows();
  }
};

// The gather, and the pushes of words that say "nothing here yet".
template <int kWorld, bool kPush>
struct GatherOnly {
  template <class Env, class Producer, class Epilogue>
  __device__ static void Rows(Env env, const ExchangeParams& p, comm::Launch& launch,
                              comm::Tokens tokens, const Vectors& vectors, Producer& producer,
                              Epilogue& epilogue) {
    for (int token = tokens.first; token < tokens.end; ++token) {
      Packet own[1];
      producer.Row(env, token, vectors, own);
      if (kPush && vectors.inside[0]) {
        Packet empty = own[0];
        const auto ones = static_cast<uint32_t>(env.Fresh(0xFFFFFFFF));
#pragma unroll
        for (uint32_t& word : empty.word) word |= ones;
        const int64_t index = p.layout.packet_index(launch.epoch, p.rank, token, vectors.index[0]);
#pragma unroll
        for (int i = 1; i < kWorld; ++i) {
          const int peer = p.rank + i < p.layout.world ? p.rank + i : p.rank + i - p.layout.world;
          if (i < p.layout.world)
            env.StorePacket(comm::MailboxOf(p.workspace[peer]) + index, empty);
        }
      } else if (Impossible(own[0])) {
        env.StoreOutput(epilogue.p.norm_out, own[0]);
      }
      if (token == tokens.first) env.ArriveRows();
      if (token + 1 < tokens.end) producer.Fetch(env, token + 1);
    }
  }
};

template <Stage kStage, int kWorld>
__global__ void __launch_bounds__(moe::kThreadsMax, 1)
    StagesKernel(const __grid_constant__ ExchangeParams params,
                 const __grid_constant__ moe::FinalizeParams producer_params,
                 const __grid_constant__ moe::RmsNormParams epilogue_params) {
  using OneShot = comm::OneShot<comm::Bf16, kWorld>;
  constexpr bool kReduces = kStage == Stage::kReduction || kStage == Stage::kFloor;
  NoProducer none;
  NoEpilogue<kReduces> rubbish{epilogue_params};
  moe::FinalizeProducer<comm::Bf16> gather(producer_params);
  if constexpr (kStage == Stage::kEdge) {
    CudaEnvironment env;
    env.GridDependencyWait();
    env.LaunchDependents();
  } else if constexpr (kStage == Stage::kEpoch) {
    RunUnguarded<NoRows, 1>(params, none, rubbish);
  } else if constexpr (kStage == Stage::kGather) {
    RunUnguarded<GatherOnly<kWorld, false>, 1>(params, gather, rubbish);
  } else if constexpr (kStage == Stage::kPush) {
    RunUnguarded<GatherOnly<kWorld, true>, 1>(params, gather, rubbish);
  } else if constexpr (kStage == Stage::kPoll || kStage == Stage::kReduction) {
    RunUnguarded<OneShot, 1>(params, gather, rubbish);
  } else if constexpr (kStage == Stage::kEpilogue) {
    moe::RmsNormEpilogue<comm::Bf16, 1> epilogue(epilogue_params);
    RunUnguarded<OneShot, 1>(params, gather, epilogue);
  } else {
    comm::RunLaunch<OneShot, 1>(CudaEnvironment(), params, none, rubbish);
  }
}

template <Stage kStage>
const void* KernelOf(int world) {
  if (world <= 2) return reinterpret_cast<const void*>(StagesKernel<kStage, 2>);
  if (world <= 4) return reinterpret_cast<const void*>(StagesKernel<kStage, 4>);
  if (world <= 8) return reinterpret_cast<const void*>(StagesKernel<kStage, 8>);
  return nullptr;
}

}  // namespace

const char* StageName(Stage stage) {
  switch (stage) {
    case Stage::kEdge:
      return "part 1, launch edge";
    case Stage::kEpoch:
      return "part 2, epoch";
    case Stage::kGather:
      return "part 3, index to row";
    case Stage::kPush:
      return "part 4, push";
    case Stage::kPoll:
      return "part 5, poll";
    case Stage::kReduction:
      return "part 6, reduction";
    case Stage::kEpilogue:
      return "part 7, epilogue";
    case Stage::kFloor:
      return "floor";
  }
  return "";
}

const void* StageKernel(Stage stage, int world) {
  switch (stage) {
    case Stage::kEdge:
      return KernelOf<Stage::kEdge>(world);
    case Stage::kEpoch:
      return KernelOf<Stage::kEpoch>(world);
    case Stage::kGather:
      return KernelOf<Stage::kGather>(world);
    case Stage::kPush:
      return KernelOf<Stage::kPush>(world);
    case Stage::kPoll:
      return KernelOf<Stage::kPoll>(world);
    case Stage::kReduction:
      return KernelOf<Stage::kReduction>(world);
    case Stage::kEpilogue:
      return KernelOf<Stage::kEpilogue>(world);
    case Stage::kFloor:
      return KernelOf<Stage::kFloor>(world);
  }
  return nullptr;
}

}  // namespace stoker::bench
