#include "offload/pack/pack.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "offload/store/checkpoint.h"
#include "offload/store/crc32c.h"
#include "offload/store/sidecar.h"
#include "testing/expert_checkpoint.h"

namespace stoker::offload {
namespace {

using ::testing::HasSubstr;

TEST(Crc32c, KnowsThePublishedValue) {
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32cByTable("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);  // RFC 3720, B.4
  std::mt19937_64 random(1);
  std::string bytes;
  for (int size = 0; size < 100; ++size, bytes.push_back(static_cast<char>(random()))) {
    EXPECT_EQ(Crc32c(bytes), Crc32cByTable(bytes)) << size;
    EXPECT_EQ(Crc32c(bytes.substr(size / 3), Crc32c(bytes.substr(0, size / 3))), Crc32c(bytes));
  }
}

class PackTest : public ::testing::Test {
 protected:
  void SetUp() override {
    directory_ = ::testing::TempDir() + "/pack_" +
                 ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
    // Tiles that are not full (96 and 320 rows), an odd number of blocks.
    ASSERT_TRUE(
        testing::WriteExpertCheckpoint(
            directory_, {.layers = 2, .experts = 3, .hidden = 320, .intermediate = 96, .group = 32})
            .ok());
    out_ = directory_ + "/out.stoker";
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::string PackMessage(const PackOptions& options = {}) {
    const auto result = PackCheckpoint(directory_, out_, options);
    return result.ok() ? "OK" : result.status().ToString();
  }
  std::string OpenMessage() {
    const auto checkpoint = Checkpoint::Open(out_);
    return checkpoint.ok() ? "OK" : std::string(checkpoint.status().message());
  }
  void Flip(const std::string& path, uint64_t offset) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(static_cast<std::streamoff>(offset));
    const char byte = static_cast<char>(file.get() ^ 1);
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(byte);
  }

  std::string directory_;
  std::string out_;
};

TEST_F(PackTest, HoldsTheSourcesBytes) {
  const auto result = PackCheckpoint(directory_, out_, {});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->experts, 6);
  EXPECT_EQ(result->resumed, 0);
  EXPECT_EQ(result->file_bytes, std::filesystem::file_size(out_));
  EXPECT_FALSE(std::filesystem::exists(out_ + ".partial"));
  const auto source = Checkpoint::Open(directory_);
  const auto packed = Checkpoint::Open(out_);
  ASSERT_TRUE(packed.ok()) << packed.status();
  EXPECT_EQ((*packed)->shape(), (*source)->shape());
  EXPECT_EQ((*packed)->layers(), (*source)->layers());
  const RecordLayout& layout = *(*packed)->record_layout();
  uint32_t all = 0;
  for (int layer = 0; layer < 2; ++layer) {
    for (int expert = 0; expert < 3; ++expert) {
      const Extent& where = (*packed)->extents(layer, expert).record;
      EXPECT_EQ(where.offset % 4096, 0u);
      std::string record(where.bytes, '\0');
      ASSERT_TRUE(ReadFully((*packed)->file(0), where.offset, absl::MakeSpan(record)).ok());
      for (size_t c = 0; c < layout.chunks.size(); ++c) {
        const auto& chunk = layout.chunks[c];
        EXPECT_TRUE((*packed)
                        ->CheckChunk(layer, expert, static_cast<int>(c),
                                     absl::string_view(record).substr(chunk.offset, chunk.bytes))
                        .ok());
      }
      ExpertBytes parts;
      layout.Gather(record, &parts);
      EXPECT_EQ(PartsChecksum(parts), (*packed)->parts_checksum(layer, expert));
      for (int part = 0; part < kParts; ++part) {
        const Extent& extent = (*source)->extents(layer, expert).parts[part];
        std::string wanted(extent.bytes, '\0');
        ASSERT_TRUE(
            ReadFully((*source)->file(extent.file), extent.offset, absl::MakeSpan(wanted)).ok());
        EXPECT_TRUE(parts[part] == wanted) << layer << " " << expert << " " << PartName(part);
        all = Crc32c(wanted, all);
      }
    }
  }
  EXPECT_EQ(result->checksum, all);
}

TEST_F(PackTest, GoesOnWhereItWasInterrupted) {
  PackOptions stop;
  stop.progress = [](int64_t done, int64_t) { return done < 4; };
  EXPECT_THAT(PackMessage(stop), HasSubstr("4 of 6 experts"));
  EXPECT_FALSE(std::filesystem::exists(out_));
  std::filesystem::rename(out_ + ".partial", out_);
  EXPECT_THAT(OpenMessage(), HasSubstr("was not packed to its end"));
  std::filesystem::rename(out_, out_ + ".partial");
  // One of the four is damaged: three are kept.
  const RecordLayout layout((*Checkpoint::Open(directory_))->shape());
  Flip(out_ + ".partial", 4096 + 4096 + 2 * layout.bytes + 10);
  const auto result = PackCheckpoint(directory_, out_, {});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->resumed, 3);
  EXPECT_EQ(OpenMessage(), "OK");
}

TEST_F(PackTest, AChangedSourceStartsAnew) {
  PackOptions stop;
  stop.progress = [](int64_t done, int64_t) { return done < 4; };
  EXPECT_THAT(PackMessage(stop), HasSubstr("4 of 6 experts"));
  ASSERT_TRUE(
      testing::WriteExpertCheckpoint(
          directory_, {.layers = 2, .experts = 3, .hidden = 320, .intermediate = 96, .seed = 2})
          .ok());
  const auto result = PackCheckpoint(directory_, out_, {});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->resumed, 0);
}

TEST_F(PackTest, SaysAtOnceThatTheSpaceDoesNotSuffice) {
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{100000, before.rlim_max};
  signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  bool started = false;
  PackOptions options;
  options.progress = [&](int64_t, int64_t) { return started = true; };
  const std::string message = PackMessage(options);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_THAT(message, HasSubstr("RESOURCE_EXHAUSTED"));
  EXPECT_THAT(message, HasSubstr("free some or choose another file system"));
  EXPECT_FALSE(started);
  EXPECT_EQ(PackMessage(), "OK");
}

TEST_F(PackTest, RefusesDamagedAndForeignFiles) {
  ASSERT_EQ(PackMessage(), "OK");
  const auto at = [&](uint64_t offset) {
    Flip(out_, offset);
    const std::string message = OpenMessage();
    Flip(out_, offset);
    return message;
  };
  EXPECT_THAT(at(0), HasSubstr("is no .stoker file"));
  EXPECT_THAT(at(8), HasSubstr("has version 0"));
  EXPECT_THAT(at(40), HasSubstr("the header does not have its checksum"));
  EXPECT_THAT(at(4096 + 12), HasSubstr("the tables do not have their checksum"));
  EXPECT_EQ(OpenMessage(), "OK");
  std::filesystem::resize_file(out_, std::filesystem::file_size(out_) - 1);
  EXPECT_THAT(OpenMessage(), HasSubstr("its header needs"));
  std::filesystem::resize_file(out_, 100);
  EXPECT_THAT(OpenMessage(), HasSubstr("shorter than a header"));
  out_ = directory_ + "/out.bin";
  EXPECT_THAT(PackMessage(), HasSubstr("does not end in .stoker"));
}

// Headers whose checksum holds and whose sizes do not.
TEST_F(PackTest, MutatedHeadersClaimNothingBeyondTheFile) {
  ASSERT_EQ(PackMessage(), "OK");
  const uint64_t size = std::filesystem::file_size(out_);
  std::ifstream in(out_, std::ios::binary);
  std::string header(kSidecarHeaderBytes, '\0');
  in.read(header.data(), static_cast<std::streamsize>(header.size()));
  ASSERT_TRUE(ParseSidecarHeader(header, size).ok());
  std::mt19937_64 random(7);
  constexpr size_t kChecksumAt = 228;
  for (int round = 0; round < 20000; ++round) {
    std::string mutated = header;
    for (uint64_t m = random() % 3 + 1; m > 0; --m) {
      const size_t field = 12 + random() % ((kChecksumAt - 12) / 4) * 4;
      const uint32_t values[] = {
          0,     1,        32,         64,         4096,
          65536, 1u << 20, 0x7fffffff, 0xffffffff, static_cast<uint32_t>(random())};
      std::memcpy(mutated.data() + field, &values[random() % std::size(values)], 4);
    }
    const uint32_t checksum = Crc32c(absl::string_view(mutated).substr(0, kChecksumAt));
    std::memcpy(mutated.data() + kChecksumAt, &checksum, sizeof(checksum));
    const auto index = ParseSidecarHeader(mutated, size);
    if (!index.ok()) continue;
    const RecordLayout layout(index->shape);
    ASSERT_EQ(index->FileBytes(layout), size) << "round " << round;
  }
}

}  // namespace
}  // namespace stoker::offload
