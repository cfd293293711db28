#include "moe/kernel_entry.cuh"
#include "moe/kernels.h"

namespace stoker::moe {
namespace {

template <template <class> class Kind>
constexpr comm::Op OpOf();
template <>
constexpr comm::Op OpOf<Finalize>() {
  return comm::Op::kFinalize;
}
template <>
constexpr comm::Op OpOf<Plain>() {
  return comm::Op::kPlain;
}

template <template <class, int> class Exchange>
constexpr comm::Protocol ProtocolOf();
template <>
constexpr comm::Protocol ProtocolOf<comm::OneShot>() {
  return comm::Protocol::kOneShot;
}
template <>
constexpr comm::Protocol ProtocolOf<comm::TwoShot>() {
  return comm::Protocol::kTwoShot;
}

struct Row {
  comm::Op op;
  comm::Protocol protocol;
  comm::WireType wire_type;
  int ranks;
  int vectors;
  const void* kernel;
};

const Row kTable[] = {
#define STOKER_KERNEL(kind, exchange, type, ranks, vectors) \
  Row{OpOf<kind>(),                                         \
      ProtocolOf<comm::exchange>(),                         \
      comm::type::kType,                                    \
      ranks,                                                \
      vectors,                                              \
      reinterpret_cast<const void*>(                        \
          FusedKernel<kind, comm::exchange, comm::type, ranks, vectors>)},
#include "moe/kernels.inc"
#undef STOKER_KERNEL
};

}  // namespace

const void* FindKernel(const KernelKey& key) {
  const Row* best = nullptr;
  for (const Row& row : kTable) {
    if (row.op == key.op && row.protocol == key.protocol && row.wire_type == key.wire_type &&
        row.vectors == key.vectors && row.ranks >= key.ranks &&
        (best == nullptr || row.ranks < best->ranks)) {
      best = &row;
    }
  }
  return best == nullptr ? nullptr : best->kernel;
}

int KernelCount() { return static_cast<int>(sizeof(kTable) / sizeof(kTable[0])); }

}  // namespace stoker::moe
