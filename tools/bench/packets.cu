#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/cuda_status.h"
#include "base/status.h"
#include "comm/cuda_environment.cuh"
#include "comm/mailbox.h"
#include "comm/protocol.h"
#include "comm/wire_type.h"
#include "tools/bench/packets.h"

namespace stoker::bench {
namespace {

using comm::Bf16;
using comm::Packet;

constexpr int kThreads = 128;
constexpr int kCtasPerSm = 4;       // of all ranks together, at 128 registers a thread
constexpr int kTaggedPerWarp = 37;  // packets of 7 elements for 32 vectors of 8
constexpr int kExtra = kTaggedPerWarp - 32;
constexpr uint32_t kAllLanes = 0xFFFFFFFFu;
constexpr int kPollsMax = 1 << 22;

struct Params {
  Packet* mailbox[comm::kWorldMax];
  uint32_t* epochs;
  const Packet* input;
  Packet* output;
  int64_t row_packets;
  int rank, tokens, packets;  // packets of a row of the input
};

// One 16-byte access, which the memory model takes as a whole: PTX ISA, "Vector and Packed Data
// Types" gives that to .b128 only, not to vectors of four words.
__device__ __forceinline__ Packet LoadWhole(const Packet* p) {
  uint64_t low, high;
  asm volatile(
      "{\n\t.reg .b128 v;\n\t"
      "ld.relaxed.sys.global.b128 v, [%2];\n\t"
      "mov.b128 {%0, %1}, v;\n\t}"
      : "=l"(low), "=l"(high)
      : "l"(p)
      : "memory");
  return Packet{{static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32),
                 static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32)}};
}
__device__ __forceinline__ void StoreWhole(Packet* p, const Packet& packet) {
  const uint64_t low = packet.word[0] | static_cast<uint64_t>(packet.word[1]) << 32;
  const uint64_t high = packet.word[2] | static_cast<uint64_t>(packet.word[3]) << 32;
  asm volatile(
      "{\n\t.reg .b128 v;\n\t"
      "mov.b128 v, {%1, %2};\n\t"
      "st.relaxed.sys.global.b128 [%0], v;\n\t}" ::"l"(p),
      "l"(low), "l"(high)
      : "memory");
}

// The packets of a warp's 32 vectors. `box` is where they begin in a mailbox of this launch's half.
struct Sentinel {
  static constexpr int kPerWarp = 32;

  __device__ explicit Sentinel(uint32_t) {}

  template <int kPeers>
  __device__ void Push(Packet* const (&boxes)[kPeers], Packet row, int lane) const {
#pragma unroll
    for (uint32_t& word : row.word) {
      if (word == comm::kSentinel) word = comm::kSentinelSubstitute;
    }
#pragma unroll
    for (Packet* box : boxes) env.StorePacket(box + lane, row);
  }

  template <int kPeers>
  __device__ void Receive(Packet* const (&boxes)[kPeers], Packet (&rows)[kPeers], int lane) const {
    uint32_t awaited = (1u << kPeers) - 1u;
    for (int polls = 0; awaited != 0u && polls < kPollsMax; ++polls) {
#pragma unroll
      for (int i = 0; i < kPeers; ++i) {
        if (awaited >> i & 1u) rows[i] = env.LoadPacket(boxes[i] + lane);
      }
#pragma unroll
      for (int i = 0; i < kPeers; ++i) {
        if (comm::Arrived(rows[i])) awaited &= ~(1u << i);
      }
    }
#pragma unroll
    for (Packet* box : boxes) env.StorePacket(box + lane, comm::EmptyPacket());
  }

  mutable comm::CudaEnvironment env;
};

// Lane i sends its first seven elements; the eighth ones of all lanes fill the extra packets, the
// one of lane i as element i % 7 of packet i / 7.
struct Tagged {
  static constexpr int kPerWarp = kTaggedPerWarp;

  __device__ explicit Tagged(uint32_t epoch) : tag(epoch << 16) {}

  template <int kPeers>
  __device__ void Push(Packet* const (&boxes)[kPeers], const Packet& row, int lane) const {
    const uint32_t eighth = row.word[3] >> 16;
    uint32_t of[7];
#pragma unroll
    for (int i = 0; i < 7; ++i) {
      of[i] = __shfl_sync(kAllLanes, eighth, min(7 * lane + i, 31));
    }
    Packet own = row, extra;
    own.word[3] = (row.word[3] & 0xFFFFu) | tag;
#pragma unroll
    for (int w = 0; w < 3; ++w) extra.word[w] = of[2 * w] | of[2 * w + 1] << 16;
    extra.word[3] = of[6] | tag;
#pragma unroll
    for (Packet* box : boxes) {
      StoreWhole(box + lane, own);
      if (lane < kExtra) StoreWhole(box + 32 + lane, extra);
    }
  }

  template <int kPeers>
  __device__ void Receive(Packet* const (&boxes)[kPeers], Packet (&rows)[kPeers], int lane) const {
    Packet extra[kPeers] = {};
    uint32_t awaited = (1u << kPeers) - 1u;
    for (int polls = 0; awaited != 0u && polls < kPollsMax; ++polls) {
#pragma unroll
      for (int i = 0; i < kPeers; ++i) {
        if (!(awaited >> i & 1u)) continue;
        rows[i] = LoadWhole(boxes[i] + lane);
        if (lane < kExtra) extra[i] = LoadWhole(boxes[i] + 32 + lane);
      }
#pragma unroll
      for (int i = 0; i < kPeers; ++i) {
        const bool here = (rows[i].word[3] & 0xFFFF0000u) == tag &&
                          (lane >= kExtra || (extra[i].word[3] & 0xFFFF0000u) == tag);
        if (here) awaited &= ~(1u << i);
      }
    }
    __syncwarp();
    const int place = lane % 7;
#pragma unroll
    for (int i = 0; i < kPeers; ++i) {
      uint32_t pair = 0;
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        const uint32_t word = __shfl_sync(kAllLanes, extra[i].word[w], lane / 7);
        if (w == place / 2) pair = word;
      }
      const uint32_t eighth = place % 2 == 0 ? pair & 0xFFFFu : pair >> 16;
      rows[i].word[3] = (rows[i].word[3] & 0xFFFFu) | eighth << 16;
    }
  }

  uint32_t tag;  // in the upper half of the last word
};

// Whole warps only: a row is a multiple of 32 vectors. The halves take turns: a rank that stores
// for epoch e + 2 has finished e + 1, so has read rows that its peers pushed in e + 1, after their
// launch e with all its reads had completed.
template <class Kind, int kWorld>
__global__ void __launch_bounds__(kThreads, kCtasPerSm) Exchange(const __grid_constant__ Params p) {
  cudaGridDependencySynchronize();
  const uint32_t epoch = p.epochs[blockIdx.x];
  const Kind kind(epoch);
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warps_per_row = p.packets / 32;
  const int tasks = p.tokens * warps_per_row;  // a warp's 32 vectors of a token
  const int64_t source_stride = p.tokens * p.row_packets;
  const int64_t half = (epoch & 1u) * kWorld * source_stride;
  const int first = static_cast<int>((blockIdx.x * kThreads + threadIdx.x) / 32);
  const int step = static_cast<int>(gridDim.x * kThreads / 32);
  for (int task = first; task < tasks; task += step) {
    const int64_t at = int64_t{32} * task + lane;
    const int64_t box = half + int64_t{Kind::kPerWarp} * task;
    Packet* to[kWorld - 1];
    Packet* from[kWorld - 1];
#pragma unroll
    for (int i = 0; i < kWorld - 1; ++i) {
      const int peer = (p.rank + 1 + i) % kWorld;
      to[i] = p.mailbox[peer] + box + p.rank * source_stride;
      from[i] = p.mailbox[p.rank] + box + peer * source_stride;
    }
    const Packet own = p.input[at];
    Packet rows[kWorld - 1] = {};
    kind.Push(to, own, lane);
    kind.Receive(from, rows, lane);
    float low[4] = {}, high[4] = {};
#pragma unroll
    for (int r = 0; r < kWorld; ++r) {
      Packet row = own;
#pragma unroll
      for (int i = 0; i < kWorld - 1; ++i) {
        if ((p.rank + 1 + i) % kWorld == r) row = rows[i];
      }
#pragma unroll
      for (int w = 0; w < 4; ++w) {
        low[w] += Bf16::ToFloat(static_cast<uint16_t>(row.word[w]));
        high[w] += Bf16::ToFloat(static_cast<uint16_t>(row.word[w] >> 16));
      }
    }
    Packet sum;
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      sum.word[w] = Bf16::FromFloat(low[w]) | static_cast<uint32_t>(Bf16::FromFloat(high[w])) << 16;
    }
    p.output[at] = sum;
  }
  cudaTriggerProgrammaticLaunchCompletion();
  __syncthreads();  // the epoch has been read
  if (threadIdx.x == 0) p.epochs[blockIdx.x] = epoch + 1u;
}

template <class Kind>
const void* KernelOf(int world) {
  return world == 2   ? reinterpret_cast<const void*>(Exchange<Kind, 2>)
         : world == 4 ? reinterpret_cast<const void*>(Exchange<Kind, 4>)
         : world == 8 ? reinterpret_cast<const void*>(Exchange<Kind, 8>)
                      : nullptr;
}

// A device buffer that is freed with its owner.
class Buffer {
 public:
  explicit Buffer(size_t bytes) {
    if (cudaMalloc(&data_, bytes) != cudaSuccess) data_ = nullptr;
  }
  ~Buffer() { cudaFree(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void* get() const { return data_; }

 private:
  void* data_ = nullptr;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PacketExchange>> PacketExchange::Create(PacketKind kind, int world,
                                                                       const moe::Shape& shape) {
  if (KernelOf<Sentinel>(world) == nullptr || shape.wire_type != comm::WireType::kBf16 ||
      shape.hidden % 256 != 0 || shape.tokens < 1) {
    return absl::UnimplementedError(
        absl::StrCat("packets: world ", world, ", hidden ", shape.hidden, ", tokens ", shape.tokens,
                     "; they take world 2, 4 or 8, bf16, hidden a multiple of 256, a token"));
  }
  auto result = std::unique_ptr<PacketExchange>(new PacketExchange());
  result->kind_ = kind;
  result->world_ = world;
  result->shape_ = shape;
  const int warps = shape.hidden / 256;
  result->row_packets_ = warps * (kind == PacketKind::kSentinel ? 32 : kTaggedPerWarp);
  int device = 0, sms = 0;
  STOKER_CUDA(cudaGetDevice(&device));
  STOKER_CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
  const int wanted = (shape.tokens * warps * 32 + kThreads - 1) / kThreads;
  result->ctas_ = std::max(1, std::min(wanted, sms * kCtasPerSm / world));
  STOKER_RETURN_IF_ERROR(result->Allocate());
  STOKER_RETURN_IF_ERROR(result->Check());
  return result;
}

absl::Status PacketExchange::Allocate() {
  const size_t bytes = 2 * world_ * shape_.tokens * row_packets_ * sizeof(Packet);
  // No epoch so far has the tag of all ones either.
  for (int rank = 0; rank < world_; ++rank) {
    void* memory = nullptr;
    STOKER_CUDA(cudaMalloc(&memory, bytes));
    mailboxes_.push_back(memory);
    STOKER_CUDA(cudaMemset(memory, 0xFF, bytes));
    STOKER_CUDA(cudaMalloc(&memory, ctas_ * sizeof(uint32_t)));
    epochs_.push_back(memory);
    STOKER_CUDA(cudaMemset(memory, 0, ctas_ * sizeof(uint32_t)));
  }
  return CudaStatus(cudaDeviceSynchronize(), "packets");
}

absl::Status PacketExchange::Check() {
  constexpr int kLaunches = 4;  // each half again after it was used
  const size_t elements = static_cast<size_t>(shape_.tokens) * shape_.hidden;
  const size_t bytes = 2 * elements;
  std::vector<std::unique_ptr<Buffer>> inputs, outputs;
  std::vector<cudaStream_t> streams(world_);
  for (int rank = 0; rank < world_; ++rank) {
    inputs.push_back(std::make_unique<Buffer>(bytes));
    outputs.push_back(std::make_unique<Buffer>(bytes));
    STOKER_CUDA(cudaStreamCreateWithFlags(&streams[rank], cudaStreamNonBlocking));
  }
  absl::Status status;
  for (int launch = 0; launch < kLaunches && status.ok(); ++launch) {
    std::vector<float> sums(elements, 0.0f);
    for (int rank = 0; rank < world_; ++rank) {
      std::vector<uint16_t> row(elements);
      for (size_t i = 0; i < elements; ++i) {
        const uint32_t mixed =
            static_cast<uint32_t>(i * world_ + rank + 7919 * launch) * 2654435761u;
        row[i] = Bf16::FromFloat(static_cast<float>(mixed >> 16) / 65536.0f - 0.5f);
        sums[i] += Bf16::ToFloat(row[i]);
      }
      STOKER_CUDA(cudaMemcpy(inputs[rank]->get(), row.data(), bytes, cudaMemcpyHostToDevice));
      STOKER_CUDA(cudaMemset(outputs[rank]->get(), 0xFF, bytes));
    }
    STOKER_CUDA(cudaDeviceSynchronize());
    for (int rank = 0; rank < world_; ++rank) {
      status.Update(Launch(rank, inputs[rank]->get(), outputs[rank]->get(), false, streams[rank]));
    }
    STOKER_CUDA(cudaDeviceSynchronize());
    for (int rank = 0; rank < world_ && status.ok(); ++rank) {
      std::vector<uint16_t> got(elements);
      STOKER_CUDA(cudaMemcpy(got.data(), outputs[rank]->get(), bytes, cudaMemcpyDeviceToHost));
      for (size_t i = 0; i < elements && status.ok(); ++i) {
        if (got[i] == Bf16::FromFloat(sums[i])) continue;
        status.Update(absl::DataLossError(
            absl::StrCat("packets: launch ", launch, ", rank ", rank, ", element ", i, " is ",
                         Bf16::ToFloat(got[i]), " instead of ", sums[i])));
      }
    }
  }
  for (cudaStream_t stream : streams) cudaStreamDestroy(stream);
  return status;
}

PacketExchange::~PacketExchange() {
  for (void* memory : mailboxes_) cudaFree(memory);
  for (void* memory : epochs_) cudaFree(memory);
}

absl::Status PacketExchange::Launch(int rank, const void* input, void* output, bool programmatic,
                                    cudaStream_t stream) {
  Params params{};
  for (int r = 0; r < world_; ++r) params.mailbox[r] = static_cast<Packet*>(mailboxes_[r]);
  params.epochs = static_cast<uint32_t*>(epochs_[rank]);
  params.input = static_cast<const Packet*>(input);
  params.output = static_cast<Packet*>(output);
  params.row_packets = row_packets_;
  params.rank = rank;
  params.tokens = shape_.tokens;
  params.packets = shape_.hidden / comm::kPacketElements;
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = programmatic ? 1 : 0;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(ctas_);
  config.blockDim = dim3(kThreads);
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  void* arguments[] = {&params};
  const void* kernel =
      kind_ == PacketKind::kSentinel ? KernelOf<Sentinel>(world_) : KernelOf<Tagged>(world_);
  return CudaStatus(cudaLaunchKernelExC(&config, kernel, arguments), "packets");
}

int64_t PacketExchange::bytes() const {
  const int64_t row = int64_t{2} * shape_.hidden;
  const int64_t pushed = row_packets_ * static_cast<int64_t>(sizeof(Packet));
  // Pushed and polled, and emptied where there is a sentinel; the input and the output.
  const int64_t times = kind_ == PacketKind::kSentinel ? 3 : 2;
  return shape_.tokens * world_ * ((world_ - 1) * times * pushed + 2 * row);
}

}  // namespace stoker::bench
