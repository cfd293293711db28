#include "offload/io/read_lane.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "testing/faulty_files.h"

namespace stoker::offload {
namespace {

using ::testing::HasSubstr;

constexpr size_t kBytes = 300'001;  // the last page is not whole

struct Free {
  void operator()(char* p) const { std::free(p); }
};

TEST(PosixFile, RefusesANamedPipeAtOnce) {
  const std::string path = ::testing::TempDir() + "/pipe.safetensors";
  unlink(path.c_str());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  alarm(10);  // opened to be read, a pipe waits for a writer
  const auto file = OpenPosixFile(path);
  alarm(0);
  EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument) << file.status();
  unlink(path.c_str());
}

enum class Kind { kPread, kUring };

class ReadLaneTest : public ::testing::TestWithParam<std::tuple<Kind, bool>> {
 protected:
  void SetUp() override {
    path_ = ::testing::TempDir() + "/read_lane.bin";
    for (size_t i = 0; i < kBytes; ++i) content_.push_back(static_cast<char>(i * 7 + i / 251));
    std::ofstream(path_, std::ios::binary) << content_;
    auto file = OpenPosixFile(path_);
    ASSERT_TRUE(file.ok());
    file_ = std::move(*file);
    direct_ = std::get<1>(GetParam());
    if (direct_ && file_->direct_fd() < 0) GTEST_SKIP() << "no direct I/O on this file system";
    if (std::get<0>(GetParam()) == Kind::kPread) {
      lane_ = MakePreadLane();
    } else {
      auto lane = MakeUringLane(8);
      if (!lane.ok()) GTEST_SKIP() << lane.status();
      lane_ = std::move(*lane);
    }
    memory_.reset(static_cast<char*>(std::aligned_alloc(4096, 1 << 20)));
  }

  // A buffer at an address congruent to the offset.
  absl::Span<char> Room(uint64_t offset, size_t bytes, int index = 0) {
    return {memory_.get() + index * (1 << 17) + offset % 4096, bytes};
  }
  absl::Status Read(uint64_t offset, absl::Span<char> into) {
    lane_->Start({file_.get(), offset, into, 5, direct_});
    std::vector<ReadOutcome> done;
    while (done.empty()) lane_->Wait(&done);
    EXPECT_EQ(done[0].tag, 5u);
    return done[0].status;
  }

  std::string path_;
  std::string content_;
  std::unique_ptr<File> file_;
  std::unique_ptr<ReadLane> lane_;
  std::unique_ptr<char, Free> memory_;
  bool direct_ = false;
};

TEST_P(ReadLaneTest, ReadsAnyRangeTheLastBytesIncluded) {
  for (const auto& [offset, bytes] :
       std::vector<std::pair<uint64_t, size_t>>{{0, 4096},
                                                {4095, 2},
                                                {4096, 100'000},
                                                {123, 5000},
                                                {8192, 1},
                                                {kBytes - 1, 1},
                                                {kBytes - 5000, 5000}}) {
    const absl::Span<char> into = Room(offset, bytes);
    ASSERT_TRUE(Read(offset, into).ok()) << offset;
    EXPECT_TRUE(content_.compare(offset, bytes, into.data(), bytes) == 0) << offset;
  }
}

TEST_P(ReadLaneTest, AReadBeyondTheEndIsAnErrorThatNamesThePlace) {
  const absl::Status status = Read(kBytes - 10, Room(kBytes - 10, 11));
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr(path_ + ": the file ends at offset 300001"));
}

TEST_P(ReadLaneTest, AFileThatIsCutWhileItIsOpenIsAnError) {
  std::filesystem::resize_file(path_, 5000);
  EXPECT_EQ(Read(4096, Room(4096, 4096)).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(Read(200'000, Room(200'000, 4096)).code(), absl::StatusCode::kDataLoss);
}

TEST_P(ReadLaneTest, KeepsManyReadsInFlight) {
  for (uint64_t first = 0; first < 40; first += lane_->capacity()) {
    for (int i = 0; i < lane_->capacity(); ++i) {
      const uint64_t offset = (first + i) * 7000;
      lane_->Start({file_.get(), offset, Room(offset, 7000, i), first + i, direct_});
    }
    std::vector<ReadOutcome> done;
    while (done.size() < static_cast<size_t>(lane_->capacity())) lane_->Wait(&done);
    std::set<uint64_t> tags;
    for (const ReadOutcome& outcome : done) {
      EXPECT_TRUE(outcome.status.ok()) << outcome.status;
      EXPECT_TRUE(tags.insert(outcome.tag).second) << "twice";
      const uint64_t offset = outcome.tag * 7000;
      const char* got = Room(offset, 7000, static_cast<int>(outcome.tag - first)).data();
      EXPECT_TRUE(content_.compare(offset, 7000, got, 7000) == 0) << offset;
    }
  }
}

TEST_P(ReadLaneTest, AWakeBeforeTheWaitIsNotLostAndOneDuringItEndsIt) {
  std::vector<ReadOutcome> done;
  lane_->Wake();
  lane_->Wait(&done);
  std::thread waker([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    lane_->Wake();
  });
  lane_->Wait(&done);
  waker.join();
  EXPECT_TRUE(done.empty());
  EXPECT_TRUE(Read(0, Room(0, 10)).ok());
}

INSTANTIATE_TEST_SUITE_P(Lanes, ReadLaneTest,
                         ::testing::Combine(::testing::Values(Kind::kPread, Kind::kUring),
                                            ::testing::Bool()));

TEST(PreadLane, FaultsOfAFileAreErrorsAndShortReadsAreContinued) {
  const std::string path = ::testing::TempDir() + "/faulty.bin";
  std::ofstream(path) << std::string(9000, 'x');
  testing::FaultyFiles faults;
  auto file = faults.Opener()(path);
  ASSERT_TRUE(file.ok());
  const auto lane = MakePreadLane();
  std::vector<char> into(9000);
  for (const bool broken : {false, true}) {
    faults.short_reads = !broken;
    faults.every_read_fails = broken;
    lane->Start({file->get(), 0, absl::MakeSpan(into), 0, true});
    std::vector<ReadOutcome> done;
    lane->Wait(&done);
    ASSERT_EQ(done.size(), 1u);
    EXPECT_EQ(done[0].status.ok(), !broken);
    EXPECT_TRUE(broken || into[8999] == 'x');
  }
}

TEST(UringLane, RefusesADepthThatCannotBe) {
  EXPECT_EQ(MakeUringLane(0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MakeUringLane(1025).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace stoker::offload
