// The protocol that every world speaks: what a rank's workspace looks like in memory, what a packet
// and a header are, and what a failure record says. The GPU kernels and the CPU ranks include this
// file and nothing else to agree with one another.
//
// A rank owns one workspace. Peers write into its mailbox and headers and poll only their own, so
// nobody ever waits on memory that its owner may be clearing.
//
//   workspace: [ Control | launch ring | headers | mailbox half 0 | mailbox half 1 | scales ]
//   headers:   [epoch parity][source rank][2 words of 64 bits]
//   half:      [source rank][token < capacity][packet < stride], a packet is 16 bytes
//   scales:    [epoch parity][token < capacity], a header word {epoch, FP32 scale}
//
// Stride and capacity belong to the workspace, not to a launch, so the address of a packet does not
// depend on how many tokens, which hidden size or which dtype a launch has.
//
// Plain data and constexpr arithmetic only: no allocation, no errors, usable on host and device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#if defined(__CUDACC__)
#define STOKER_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define STOKER_HOST_DEVICE inline
#endif

namespace stoker::comm {

inline constexpr int kWorldMax = 8;
inline constexpr int kHiddenMax = 16384;
inline constexpr int kTopKMax = 32;
inline constexpr int kPacketBytes = 16;
inline constexpr int kPacketWords = 4;
inline constexpr int kPacketElements = 8;  // both wire types are 2 bytes wide
inline constexpr uint32_t kProtocolVersion = 3;
inline constexpr uint64_t kWorkspaceMagic = 0x31304b4f54535b4cull;

// An empty word. No arithmetic result equals it, because a NaN is stored as 0x7FFF; a raw payload
// word that does is sent as kSentinelSubstitute, which is NaN,NaN as well. It is compared as an
// integer: a floating compare would depend on flush-to-zero and on the sign of zero.
inline constexpr uint32_t kSentinel = 0xFFFFFFFFu;
inline constexpr uint32_t kSentinelSubstitute = 0xFFFF7FFFu;
inline constexpr uint16_t kStoredNan = 0x7FFFu;
inline constexpr uint32_t kStoredNanPair = 0x7FFF7FFFu;

// One packet: eight elements of the wire type. Its words arrive in any order, each one whole.
struct alignas(16) Packet {
  uint32_t word[kPacketWords];
};
static_assert(sizeof(Packet) == kPacketBytes);

enum class WireType : uint32_t { kBf16 = 0, kFp16 = 1 };
enum class Op : uint32_t { kFinalize = 0, kPlain = 1, kReduction = 2, kAllReduce = 3 };
// kNccl: NCCL sums the rows; mailboxes carry the headers alone.
enum class Protocol : uint32_t { kOneShot = 0, kTwoShot = 1, kNccl = 2 };
// kRounded rounds the sum over ranks to the wire type before the residual is added; kFp32Residual
// adds the residual to the unrounded sum.
enum class Mode : uint32_t { kRounded = 0, kFp32Residual = 1 };

enum class FailureCode : uint32_t {
  kNone = 0,
  kTimeout = 1,          // a peer's data or header did not arrive within the deadline
  kMismatch = 2,         // a peer launched this epoch with other tokens or another signature
  kStaleOrForeign = 3,   // a header carries an epoch that this group cannot have sent
  kOverlap = 4,          // a second launch ran on the workspace before the first had completed
  kIndexOutOfRange = 5,  // an expanded index is not below the number of permuted rows
  kAborted = 6,          // the host released the group (shutdown or Reset)
};

// Everything that two ranks must agree on for one launch. `signature` hashes all of it but the
// number of tokens, which travels beside it so that the report can name both counts.
struct LaunchDescriptor {
  Op op;
  WireType wire_type;
  Protocol protocol;
  Mode mode;
  int32_t hidden;
  int32_t top_k;
  float eps;
  float weight_bias;
  float routed_scaling_factor;
  uint32_t site;        // the caller's integer for this call site, for instance the layer
  uint32_t generation;  // of the group; a Reset takes the next one
};

namespace internal {
// 32-bit FNV-1a over the bytes of each field, least significant byte first
// (http://www.isthe.com/chongo/tech/comp/fnv/).
constexpr uint32_t HashWord(uint32_t hash, uint32_t word) {
  for (int byte = 0; byte < 4; ++byte) {
    hash = (hash ^ ((word >> (8 * byte)) & 0xFFu)) * 16777619u;
  }
  return hash;
}
constexpr uint32_t FloatBits(float value) { return __builtin_bit_cast(uint32_t, value); }
}  // namespace internal

constexpr uint32_t Signature(const LaunchDescriptor& d) {
  uint32_t hash = 2166136261u;
  for (uint32_t word : {static_cast<uint32_t>(d.op), static_cast<uint32_t>(d.wire_type),
                        static_cast<uint32_t>(d.protocol), static_cast<uint32_t>(d.mode),
                        static_cast<uint32_t>(d.hidden), static_cast<uint32_t>(d.top_k),
                        internal::FloatBits(d.eps), internal::FloatBits(d.weight_bias),
                        internal::FloatBits(d.routed_scaling_factor), d.site, d.generation}) {
    hash = internal::HashWord(hash, word);
  }
  return hash;
}

// Of a launch that stands for a call of more tokens than the launch itself exchanges.
constexpr uint32_t SignatureOfCall(const LaunchDescriptor& d, int32_t tokens) {
  return internal::HashWord(Signature(d), static_cast<uint32_t>(tokens));
}

// A header word carries the epoch in its upper half, so that a word alone says whether it is of
// this launch. Each is written by one 64-bit store, the only access assumed to be single-copy
// atomic above 32 bits.
constexpr uint64_t HeaderWord(uint32_t epoch, uint32_t value) {
  return (static_cast<uint64_t>(epoch) << 32) | value;
}
constexpr uint32_t HeaderEpoch(uint64_t word) { return static_cast<uint32_t>(word >> 32); }
constexpr uint32_t HeaderValue(uint64_t word) { return static_cast<uint32_t>(word); }

struct alignas(16) Header {
  uint64_t tokens;     // {epoch, T}
  uint64_t signature;  // {epoch, Signature(descriptor)}
};

// The counters of a rank. The first line is read by every CTA, the second is where CTAs meet; both
// are touched by this rank alone, but for `abort`, which peers and the host set.
struct alignas(128) Control {
  uint64_t magic;
  int32_t capacity, stride;  // of the layout that every member takes it for
  uint32_t epoch;            // of the next launch once all CTAs of the one in flight have read it
  uint32_t abort;            // non-zero: no waiting; outputs become NaN; sticky until Reset
  uint32_t generation;
  uint32_t first_epoch;  // of this generation: fewer than kStartupEpochs later is start-up
  uint64_t timeout_ns;
  uint64_t startup_timeout_ns;
  uint64_t reserved0[10];

  uint32_t started;      // CTAs that hold the epoch of the launch in flight; 0 once it is advanced
  uint32_t finished[2];  // by epoch parity: CTAs of that launch that have arrived at their end
  uint32_t last_ctas;    // of the launch that advanced the epoch last
  uint64_t wait_since_ns;  // when this launch first had to wait; 0 if it did not yet
  uint32_t record_claimed;
  uint32_t reserved1;
  uint64_t waited_ns[kWorldMax];  // total per peer, copied to the health page
  uint64_t reserved2[4];
};
static_assert(sizeof(Control) == 256 && offsetof(Control, started) == 128);

// While fewer epochs than this have completed, ranks are skewed by compilation and loading and the
// start-up timeout applies.
inline constexpr uint32_t kStartupEpochs = 100;
inline constexpr int64_t kDefaultTimeoutMs = 20'000;
inline constexpr int64_t kDefaultStartupTimeoutMs = 600'000;
inline constexpr int64_t kTimeoutMsMax = 24ll * 3600 * 1000;

// One launch as its rank started it. An entry counts only if its epoch is one that maps to its
// place.
struct alignas(64) LaunchEntry {
  LaunchDescriptor descriptor;
  uint32_t signature;
  int32_t tokens;
  uint32_t epoch;
  uint32_t reserved[2];
};
static_assert(sizeof(LaunchEntry) == 64);
inline constexpr int kLaunchRing = 16;  // entry epoch % kLaunchRing

// Where things lie in a workspace, and how large it is. The same on all ranks of a group.
struct WorkspaceLayout {
  int32_t world = 0;
  int32_t capacity = 0;  // tokens
  int32_t stride = 0;    // packets per token: largest hidden size / 8

  static constexpr int64_t kRingOffset = sizeof(Control);
  static constexpr int64_t kHeadersOffset = kRingOffset + kLaunchRing * sizeof(LaunchEntry);
  static constexpr int64_t kMailboxOffset =
      kHeadersOffset + int64_t{2} * kWorldMax * static_cast<int64_t>(sizeof(Header));

  constexpr int64_t half_packets() const { return static_cast<int64_t>(world) * capacity * stride; }
  constexpr int64_t scales_offset() const {
    return kMailboxOffset + 2 * half_packets() * kPacketBytes;
  }
  constexpr int64_t bytes() const {
    return scales_offset() + int64_t{2} * capacity * static_cast<int64_t>(sizeof(uint64_t));
  }
  // The packet's index in the mailbox of whoever receives it.
  constexpr int64_t packet_index(uint32_t epoch, int source, int64_t token, int packet) const {
    return (epoch & 1u) * half_packets() +
           (source * static_cast<int64_t>(capacity) + token) * stride + packet;
  }
  constexpr int64_t scale_index(uint32_t epoch, int64_t token) const {
    return (epoch & 1u) * static_cast<int64_t>(capacity) + token;
  }
  static constexpr int header_index(uint32_t epoch, int source) {
    return static_cast<int>(epoch & 1u) * kWorldMax + source;
  }
};
static_assert(WorkspaceLayout::kMailboxOffset % 128 == 0);

STOKER_HOST_DEVICE Control* ControlOf(void* workspace) { return static_cast<Control*>(workspace); }
STOKER_HOST_DEVICE LaunchEntry* RingOf(void* workspace) {
  return reinterpret_cast<LaunchEntry*>(static_cast<char*>(workspace) +
                                        WorkspaceLayout::kRingOffset);
}
STOKER_HOST_DEVICE Header* HeadersOf(void* workspace) {
  return reinterpret_cast<Header*>(static_cast<char*>(workspace) + WorkspaceLayout::kHeadersOffset);
}
STOKER_HOST_DEVICE Packet* MailboxOf(void* workspace) {
  return reinterpret_cast<Packet*>(static_cast<char*>(workspace) + WorkspaceLayout::kMailboxOffset);
}
STOKER_HOST_DEVICE uint64_t* ScalesOf(void* workspace, const WorkspaceLayout& layout) {
  return reinterpret_cast<uint64_t*>(static_cast<char*>(workspace) + layout.scales_offset());
}

}  // namespace stoker::comm
