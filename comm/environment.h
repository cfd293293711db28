// What an exchange body may ask of the machine it runs on.
//
// The bodies in this folder and in moe/ are templates over an Environment. nvcc compiles them with
// CudaEnvironment (comm/cuda_environment.cuh), where every method is an instruction or two, and the
// tests with environments that delay, spoil or replace single methods (testing/gpu/). So a body
// touches memory that another thread may touch, waits, and meets other threads only through these
// methods. An Environment is a small value; one thread calls one.
//
// clang-format off
//
// Coordinates
//   int thread(), lane(), warp(), threads()   within the CTA; threads() is a multiple of 32
//   int cta(), ctas()                         within the grid
//   int cluster_rank(), cluster_size()        within the cluster; 0 and 1 without clusters
//   int cluster(), clusters()                 which cluster, and how many the grid has
//
// Grid
//   GridDependencyWait()   returns once the grids before this one have completed and their stores
//                          are visible (griddepcontrol.wait)
//   LaunchDependents()     lets the next programmatic launch start; orders nothing
//
// Meeting: all threads of the CTA, cluster or warp take part, from wherever in the code they are
//   SyncBlock()                        barrier of the CTA; orders its memory accesses
//   SyncRows(threads)                  as SyncBlock, of the CTA's first `threads` threads only
//   ArriveRows(), AwaitRows()          the row threads arrive once a launch and go on; the service
//                                      warp waits for all of them. What was loaded before counts as
//                                      read only if something before the arrival used it.
//   ClusterArrive(), ClusterWait()     split barrier of the cluster: all its CTAs have started, and
//                                      what InitPartials did is visible to them
//   uint32_t Shuffle(value, lane), float ShuffleXor(value, mask), bool Any(predicate)
//
// Memory
//   Packet LoadInput(p)                weak: memory that only earlier grids of this rank wrote
//   Packet LoadStreamed(p)             as LoadInput, for rows that are read once and in bulk
//   uint32_t LoadInput32(p), uint16_t LoadInput16(p)
//   StoreOutput(p, packet)             weak: read by later grids only
//   Packet LoadPacket(p), StorePacket(p, packet)
//                                      mailbox; relaxed at system scope; each word whole, no more
//   uint64_t LoadHeader(p), StoreHeader(p, word)
//                                      one scalar 64-bit access, relaxed at system scope
//   LoadWord, StoreWord, LoadWord64, StoreWord64
//                                      control words and health page; relaxed at system scope
//   uint32_t AtomicAdd(p, v)           relaxed at device scope
//   CountUp(p)                         adds 1, relaxed at device scope; answers nothing
//   uint32_t AtomicAddRelease(p, v)     release at device scope
//   CompareAndSwap(p, expected, desired), CompareAndSwap64(...)
//                                      relaxed at device scope; return the value found
//   FenceDevice(), FenceSystem()       acquire-release fences
//   ClearTrouble(), RaiseTrouble(), bool Trouble()
//                                      a flag of the CTA; a barrier lies between the three
//
// Exchange of partial sums within a cluster (comm/row_reduction.h); `slot` is 0 or 1
//   float LoadPartial(slot, i), StorePartial(slot, i, v)
//                                      this CTA's buffer
//   InitPartials()                     one thread of the CTA, before the cluster's barrier
//   ExpectPartials(slot, count)        one thread of the CTA: `count` partials complete this phase
//   SendPartial(slot, i, cta, v)       stores into that CTA's buffer, and counts there once it lies
//                                      there
//   AwaitPartials(slot, phase)         until the phase (0, 1, 0, ...) of this CTA's slot is
//                                      complete; what was counted is visible
//
// Arithmetic, each correctly rounded to nearest even, none contracted
//   Fma, SquareRoot, Reciprocal
//   Add         in a rank's own row and with the residual
//   AddRanks    over ranks; apart from Add, so that a test can spoil one or the other
//   Fresh(v)    v, opaque to the compiler: what is computed from it in a loop is computed again in
//               every turn instead of being kept in registers
//
// Waiting
//   kPollsPerLook      a poll that found nothing new this often looks at clock and abort word
//   uint64_t Clock()   nanoseconds; the same clock for all CTAs of a rank
//   Await()            between two polls that both may find nothing new; nothing on a GPU
//
// clang-format on
#pragma once

namespace stoker::comm {

// Partials of a row, one a canonical warp: kHiddenMax / 8 / 32.
inline constexpr int kPartialsMax = 64;

}  // namespace stoker::comm
