#include <gtest/gtest.h>

#include <thread>

#include "offload/cache/expert_cache.h"

namespace stoker::offload {
namespace {

TEST(SlotWord, LoadsBecomesReadyAndIsEvictedOnlyWithoutLeases) {
  SlotWord word;
  ASSERT_EQ(word.BeginLoad(2), 1u);
  EXPECT_FALSE(word.BeginLoad(2));
  EXPECT_EQ(word.ReadDone(true).state, SlotState::kLoading);
  EXPECT_FALSE(word.Evict());
  EXPECT_EQ(word.ReadDone(true).state, SlotState::kReady);
  EXPECT_TRUE(word.Join(1));
  EXPECT_FALSE(word.Join(2)) << "another generation";
  EXPECT_FALSE(word.Evict());
  word.Drop();
  EXPECT_FALSE(word.Evict());
  word.Drop();
  EXPECT_TRUE(word.Evict());
  EXPECT_FALSE(word.Join(1));
  EXPECT_EQ(word.BeginLoad(1), 2u);
}

TEST(SlotWord, AFailedLoadIsEmptyOnlyWithoutLeasesAndReads) {
  SlotWord word;
  ASSERT_TRUE(word.BeginLoad(3));
  EXPECT_EQ(word.ReadDone(false).state, SlotState::kDraining);
  EXPECT_FALSE(word.Join(1));
  EXPECT_EQ(word.Drop().state, SlotState::kDraining) << "reads are in flight";
  EXPECT_FALSE(word.BeginLoad(1));
  EXPECT_EQ(word.ReadDone(true).state, SlotState::kDraining);
  EXPECT_EQ(word.ReadDone(true).state, SlotState::kEmpty);
  EXPECT_TRUE(word.BeginLoad(1));
}

TEST(SlotWord, CancelOnlyWithoutLeasesAndNeverTogetherWithAJoin) {
  for (int round = 0; round < 500; ++round) {
    SlotWord word;
    ASSERT_TRUE(word.BeginLoad(1));
    EXPECT_FALSE(word.Cancel());
    word.Drop();
    bool joined = false;
    std::thread joiner([&] { joined = word.Join(1); });
    const bool cancelled = word.Cancel();
    joiner.join();
    EXPECT_NE(joined, cancelled);
    if (joined) word.Drop();
    word.ReadDone(true);
    EXPECT_EQ(word.Load().leases, 0u);
    EXPECT_EQ(word.Load().in_flight, 0u);
    EXPECT_EQ(word.Load().state, joined ? SlotState::kReady : SlotState::kEmpty);
  }
}

// Loads an expert whole and gives the lease back.
void LoadOnce(ExpertCache* cache, int expert) {
  cache->BeginStep(0);
  if (const auto held = cache->Join(0, expert)) return cache->Drop(*held);
  const auto lease = cache->BeginLoad(0, expert, 1);
  ASSERT_TRUE(lease);
  cache->ReadDone(lease->slot, true);
  cache->Drop(*lease);
}

bool Resident(ExpertCache* cache, int expert) {
  const auto lease = cache->Join(0, expert);
  if (lease) cache->Drop(*lease);
  return lease.has_value();
}

TEST(ExpertCache, DecayedLfuKeepsTheOftenUsed) {
  ExpertCache cache(1, 8, 2 + ExpertCache::kScratchSlots, PolicyKind::kDecayedLfu);
  for (const int expert : {0, 0, 0, 1, 2}) LoadOnce(&cache, expert);
  EXPECT_TRUE(Resident(&cache, 0));
  EXPECT_FALSE(Resident(&cache, 1));
  EXPECT_EQ(cache.evictions(), 1);
}

TEST(ExpertCache, LruKeepsTheRecent) {
  ExpertCache cache(1, 8, 2 + ExpertCache::kScratchSlots, PolicyKind::kLru);
  for (const int expert : {0, 0, 0, 1, 2}) LoadOnce(&cache, expert);
  EXPECT_FALSE(Resident(&cache, 0));
  EXPECT_TRUE(Resident(&cache, 1));
}

TEST(ExpertCache, LeasedSlotsAreNoVictimsAndScratchKeepsNothing) {
  ExpertCache cache(1, 8, 1 + ExpertCache::kScratchSlots, PolicyKind::kLru);
  std::vector<Lease> leases;
  for (int expert = 0; expert < 3; ++expert) {
    const auto lease = cache.BeginLoad(0, expert, 1);
    ASSERT_TRUE(lease);
    leases.push_back(*lease);
    cache.ReadDone(lease->slot, true);
  }
  EXPECT_FALSE(cache.BeginLoad(0, 3, 1)) << "no victim";
  EXPECT_EQ(cache.evictions(), 0);
  for (const Lease& lease : leases) {
    EXPECT_TRUE(cache.Valid(lease));
    cache.Drop(lease);
  }
  EXPECT_TRUE(Resident(&cache, 0));
  EXPECT_FALSE(Resident(&cache, 1));
  EXPECT_EQ(cache.outstanding(), 0u);
}

TEST(ExpertCache, APrefetchHasNoLeaseIsJoinedOrCancelledAndLeavesAVictim) {
  ExpertCache cache(1, 8, 2 + ExpertCache::kScratchSlots, PolicyKind::kLru);
  const auto first = cache.BeginPrefetch(0, 3, 1);
  ASSERT_TRUE(first);
  EXPECT_FALSE(cache.BeginPrefetch(0, 3, 1)) << "on its way already";
  const auto lease = cache.Join(0, 3);
  ASSERT_TRUE(lease);
  EXPECT_FALSE(cache.Cancel(*first)) << "joined";
  cache.ReadDone(*first, true);
  const auto second = cache.BeginPrefetch(0, 4, 2);
  ASSERT_TRUE(second);
  EXPECT_TRUE(cache.Cancel(*second));
  EXPECT_FALSE(cache.Join(0, 4));
  cache.ReadDone(*second, false);
  cache.ReadDone(*second, true);
  EXPECT_EQ(cache.fields(*second).state, SlotState::kEmpty);
  LoadOnce(&cache, 5);
  EXPECT_FALSE(cache.BeginPrefetch(0, 6, 1)) << "5 is the last victim";
  cache.Drop(*lease);
  EXPECT_TRUE(cache.BeginPrefetch(0, 6, 1));
  EXPECT_FALSE(cache.BeginPrefetch(0, 7, 1));
}

TEST(ExpertCache, AFailedLoadForgetsTheExpertAndANewOneDoesNot) {
  ExpertCache cache(1, 8, 2 + ExpertCache::kScratchSlots, PolicyKind::kLru);
  const auto failed = cache.BeginLoad(0, 5, 2);
  cache.ReadDone(failed->slot, false);
  EXPECT_FALSE(cache.Join(0, 5));
  const auto again = cache.BeginLoad(0, 5, 1);
  ASSERT_TRUE(again);
  EXPECT_NE(again->slot, failed->slot);
  cache.Drop(*failed);
  cache.ReadDone(failed->slot, false);
  cache.ReadDone(again->slot, true);
  cache.Drop(*again);
  EXPECT_TRUE(Resident(&cache, 5));
  EXPECT_EQ(cache.outstanding(), 0u);
}

}  // namespace
}  // namespace stoker::offload
