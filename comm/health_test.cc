#include "comm/health.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>

namespace stoker::comm {
namespace {

std::unique_ptr<HealthPage> MakePage() {
  auto page = std::make_unique<HealthPage>();
  std::memset(static_cast<void*>(page.get()), 0, sizeof(HealthPage));
  page->magic = kHealthMagic;
  page->version = kProtocolVersion;
  page->world = 3;
  page->capacity = 16;
  page->generation = 4;
  std::strcpy(page->group, "serving");
  return page;
}

LaunchDescriptor Descriptor(uint32_t site) {
  LaunchDescriptor d{};
  d.hidden = 7168;
  d.top_k = 8;
  d.eps = 1e-5f;
  d.routed_scaling_factor = 2.5f;
  d.site = site;
  return d;
}

void Log(HealthPage& page, int rank, uint32_t epoch, int tokens, uint32_t site) {
  LaunchEntry& entry = page.ranks[rank].ring[epoch % kLaunchRing];
  entry.descriptor = Descriptor(site);
  entry.signature = Signature(entry.descriptor);
  entry.tokens = tokens;
  entry.epoch = epoch;
}

std::string DescribeNow(const HealthPage& page) {
  const auto reading = std::make_unique<HealthReading>();
  ReadPage(page, reading.get());
  return Describe(*reading, *reading);
}

TEST(Health, AMismatchNamesBothRanksAndBothLaunchesInFull) {
  auto page = MakePage();
  Log(*page, 1, 37, 6, 11);
  Log(*page, 2, 37, 7, 12);
  FailureRecord& record = page->ranks[1].record;
  record.code = FailureCode::kMismatch;
  record.rank = 1;
  record.peer = 2;
  record.epoch = 37;
  record.expected = {HeaderWord(37, 6), HeaderWord(37, 1)};
  record.seen = {HeaderWord(37, 7), HeaderWord(37, 2)};
  record.valid = 5;
  const absl::Status status = StatusOf(*page);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  for (const char* part : {"ranks 1 and 2", "epoch 37", "finalize of 6 tokens",
                           "finalize of 7 tokens", "site 11", "site 12", "hidden 7168"}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << part << ": " << status;
  }
}

TEST(Health, ATimeoutNamesThePeerThatHasNotLaunched) {
  auto page = MakePage();
  Log(*page, 0, 37, 6, 11);
  FailureRecord& record = page->ranks[0].record;
  record.code = FailureCode::kTimeout;
  record.rank = 0;
  record.peer = 2;
  record.token = 5;
  record.packet = 9;
  record.epoch = 37;
  record.detail = 20'000'000'000;
  record.expected = {HeaderWord(37, 6), HeaderWord(37, 1)};
  record.seen = {HeaderWord(35, 6), HeaderWord(35, 1)};
  record.valid = 5;
  const absl::Status status = StatusOf(*page);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  for (const char* part : {"rank 0 waited 20000 ms for rank 2", "token 5, packet 9",
                           "rank 2 has not launched epoch 37", "STOKER_TIMEOUT_MS"}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << part << ": " << status;
  }
}

TEST(Health, ARankThatWaitedForItselfCouldNotStartItsLaunch) {
  auto page = MakePage();
  FailureRecord& record = page->ranks[1].record;
  record.code = FailureCode::kTimeout;
  record.rank = record.peer = 1;
  record.token = record.packet = -1;
  record.epoch = 37;
  record.detail = 20'000'000'000;
  record.valid = 5;
  const absl::Status status = StatusOf(*page);
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  for (const char* part : {"rank 1 waited 20000 ms for its own launch of epoch 37", "SM budget"}) {
    EXPECT_NE(status.message().find(part), std::string::npos) << part << ": " << status;
  }
}

TEST(Health, ARecordOfAnotherGenerationIsOldNews) {
  auto page = MakePage();
  page->ranks[0].record.code = FailureCode::kTimeout;
  page->ranks[0].record.valid = 4;
  EXPECT_TRUE(StatusOf(*page).ok());
  page->ranks[0].record.valid = 5;
  EXPECT_FALSE(StatusOf(*page).ok());
}

TEST(Health, TheEarliestFailureIsTheOneThatIsTold) {
  auto page = MakePage();
  for (int rank = 0; rank < 3; ++rank) {
    FailureRecord& record = page->ranks[rank].record;
    record.code = FailureCode::kTimeout;
    record.rank = rank;
    record.peer = (rank + 1) % 3;
    record.epoch = rank == 1 ? 0xFFFFFFFFu : 3u + rank;  // before the wrap
    record.valid = 5;
  }
  EXPECT_NE(StatusOf(*page).message().find("rank 1 waited"), std::string::npos) << StatusOf(*page);
}

TEST(Health, RubbishInAPageIsPrintedAndNeverFollowed) {
  for (uint8_t fill : {0xFF, 0x7F, 0x80, 0x01}) {
    auto page = std::make_unique<HealthPage>();
    std::memset(static_cast<void*>(page.get()), fill, sizeof(HealthPage));
    EXPECT_EQ(DescribeNow(*page), "not a health page of this version\n");
    page->magic = kHealthMagic;
    page->version = kProtocolVersion;
    page->generation = page->ranks[0].record.valid - 1;
    EXPECT_FALSE(StatusOf(*page).ok() && page->world > 0);
    EXPECT_NE(DescribeNow(*page).find("group"), std::string::npos);
  }
}

TEST(Health, TheDumpShowsWhoWaitsForWhomSinceWhenAndTheLastLaunches) {
  auto page = MakePage();
  const auto earlier = std::make_unique<HealthReading>(), now = std::make_unique<HealthReading>();
  page->ranks[1].waited_ns[2] = 2'000'000;
  page->ranks[0].waited_ns[1] = 9'000'000;
  ReadPage(*page, earlier.get());
  EXPECT_FALSE(WantsALaterReading(*earlier, *earlier));
  page->ranks[1].device = -1;
  page->ranks[1].waiting_since_ns = earlier->monotonic_ns - 3'210'000'000u;
  ReadPage(*page, now.get());
  EXPECT_TRUE(WantsALaterReading(*earlier, *now));
  page->ranks[1].waited_ns[2] = 3'500'000;
  page->ranks[0].waiting_since_ns = 1;  // of a clock that the host does not know
  for (uint32_t epoch : {0xFFFFFFFFu, 0u, 1u}) Log(*page, 1, epoch, 6, 3);
  ReadPage(*page, now.get());
  const std::string text = Describe(*earlier, *now);
  for (const char* part :
       {"group serving", "generation 4", "rank 1: pid 0, device -1, waiting for rank 2 since 3.2",
        "rank 0: pid 0, device 0, waiting\n", "rank 2: pid 0, device 0, not waiting",
        "waited for rank 2: 3.500 ms", "by all others together: rank 1 9.000 ms, rank 2 3.500 ms",
        "epoch 4294967295: finalize of 6 tokens"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
  EXPECT_LT(text.find("epoch 4294967295"), text.find("epoch 0"));
  EXPECT_LT(text.find("epoch 0"), text.find("epoch 1:"));
}

}  // namespace
}  // namespace stoker::comm
