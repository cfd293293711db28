// What an exchange body may ask of the machine it runs on.
//
// The bodies in this folder and in moe/ are templates over an Environment, and are compiled twice:
// by nvcc with CudaEnvironment (comm/cuda_environment.cuh), where every method is an instruction or
// two, and by the host compiler with the simulator's, which runs the threads as fibers and explores
// the orders that the memory model allows. So a body touches memory that another thread may touch,
// waits, and meets other threads only through these methods. One thread calls one environment.
//
// Coordinates
//   int thread(), lane(), warp(), threads()       within the CTA; threads() is a multiple of 32
//   int cta(), ctas()                             within the grid
//   int cluster_rank(), cluster_size()            within the cluster; 0 and 1 without clusters
//   int cluster(), clusters()                     which cluster, and how many the grid has
//
// Grid
//   GridDependencyWait()   returns once the grids before this one have completed and their stores
//   are
//                          visible (griddepcontrol.wait)
//   LaunchDependents()     lets the next programmatic launch start
//   (griddepcontrol.launch_dependents);
//                          it orders nothing
//
// Meeting. All threads of the CTA or cluster must take part, exited ones excepted.
//   SyncBlock()                          barrier; orders the CTA's memory accesses
//   ClusterArrive(), ClusterWait()       split cluster barrier, release and acquire
//   uint32_t Shuffle(value, lane), float ShuffleXor(value, mask), bool Any(predicate)
//                                        all 32 lanes of a warp take part
//
// Memory
//   Packet LoadInput(p), uint32_t LoadInput32(p), uint16_t LoadInput16(p)
//   Packet LoadStreamed(p)              as LoadInput, for rows that are read once and in bulk
//   StoreOutput(p, packet)               weak: written or read by this rank's grids alone
//   Packet LoadPacket(p), StorePacket(p, packet)
//                                        mailbox; relaxed at system scope; each word whole, nothing
//                                        more
//   uint64_t LoadHeader(p), StoreHeader(p, word)
//                                        one scalar 64-bit access, relaxed at system scope
//   LoadWord, StoreWord (32 bits), LoadWord64, StoreWord64
//                                        control words and health page; relaxed at system scope
//   uint32_t AtomicAdd(p, v)             relaxed at device scope
//   uint32_t AtomicAddAcqRel(p, v)       acquire and release at device scope
//   uint32_t CompareAndSwap(p, expected, desired), uint64_t CompareAndSwap64(...)
//                                        relaxed at device scope; return the value found
//   FenceDevice(), FenceSystem()         acquire-release fences
//   float* SharedPartials()              CTA memory for comm/row_reduction.h
//   StoreClusterShared(p, cta, v)        store to the same place in a CTA of this cluster
//   float LoadShared(p)
//
// Arithmetic, each one correctly rounded to nearest even, none of them contracted: Fma, SquareRoot,
// Reciprocal; Add (in a rank's own row and with the residual) and AddRanks (over ranks), so that a
// test can spoil one or the other.
//   int64_t Fresh(value)   the value, opaque to the compiler: what is computed from it inside a
//   loop is
//                          computed again in every turn instead of being kept in registers
//
// Waiting
//   kPollsPerLook      a poll that found nothing new this often looks at the clock and the abort
//   word uint64_t Clock()   nanoseconds; the same clock for all CTAs of a rank void Await() called
//   between two polls that both may find nothing new. The GPU does nothing;
//                      the simulator blocks the thread until a word it polled has changed or the
//                      clock has moved, so a hang there is seen, not timed.
#pragma once

namespace stoker::comm {

// Floats of CTA memory that the row reduction needs: two buffers of one partial a canonical warp
// (kHiddenMax / 8 / 32 = 64).
inline constexpr int kPartialsMax = 64;
inline constexpr int kSharedFloats = 2 * kPartialsMax;

}  // namespace stoker::comm
