#include "comm/socket_exchange.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "testing/unique_name.h"

namespace stoker::comm {
namespace {

std::string GroupName() { return stoker::testing::UniqueName("exchange-test"); }

// Runs `rank_main` for every rank on a thread of its own.
void OnThreads(int world, const std::function<void(int rank)>& rank_main) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) threads.emplace_back(rank_main, rank);
  for (std::thread& thread : threads) thread.join();
}

TEST(SocketExchange, RanksThatDoNotConnectAreNamedOnEveryRankThatDid) {
  const std::string group = GroupName();
  OnThreads(2, [&](int rank) {
    const absl::Time start = absl::Now();
    const absl::Status status =
        MakeSocketExchange(group, rank, 4, absl::Milliseconds(300)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
    EXPECT_NE(status.message().find("ranks 2, 3 of 4 did not arrive within 300ms"),
              std::string::npos)
        << status;
    EXPECT_LT(absl::Now() - start, absl::Seconds(3));
  });
}

TEST(SocketExchange, ARankZeroThatDoesNotComeIsNamed) {
  const absl::Status alone =
      MakeSocketExchange(GroupName(), 1, 2, absl::Milliseconds(100)).status();
  EXPECT_EQ(alone.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_NE(alone.message().find("rank 0 of 2 did not arrive within 100ms"), std::string::npos)
      << alone;
  EXPECT_EQ(alone.message().find("exists"), std::string::npos) << alone;
}

TEST(SocketExchange, ARankThatDiesIsNamedOnEveryOtherRank) {
  for (const int dead : {0, 1}) {
    const std::string group = GroupName();
    OnThreads(3, [&](int rank) {
      auto exchange = MakeSocketExchange(group, rank, 3, absl::Seconds(10));
      ASSERT_TRUE(exchange.ok()) << exchange.status();
      ASSERT_TRUE((*exchange)->Barrier("first", absl::Seconds(10)).ok());
      if (rank == dead) return;  // its sockets close
      const absl::Time start = absl::Now();
      const absl::Status status = (*exchange)->Barrier("meeting", absl::Seconds(20));
      EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
      EXPECT_NE(status.message().find(absl::StrCat("rank ", dead, " of 3")), std::string::npos)
          << status;
      EXPECT_LT(absl::Now() - start, absl::Seconds(10));
    });
  }
}

TEST(SocketExchange, ACompleteGroupRefusesFurtherRanksInTimeHoweverMany) {
  const std::string group = GroupName();
  OnThreads(2, [&](int rank) {
    auto exchange = MakeSocketExchange(group, rank, 2, absl::Seconds(10));
    ASSERT_TRUE(exchange.ok()) << exchange.status();
    if (rank == 0) {
      // More than the backlog of a listening socket holds.
      OnThreads(20, [&](int) {
        const absl::Time start = absl::Now();
        const absl::Status further =
            MakeSocketExchange(group, 1, 2, absl::Milliseconds(300)).status();
        EXPECT_FALSE(further.ok());
        EXPECT_NE(further.message().find("a group of this name exists"), std::string::npos)
            << further;
        EXPECT_LT(absl::Now() - start, absl::Seconds(5));
      });
    }
    EXPECT_TRUE((*exchange)->Barrier("end", absl::Seconds(20)).ok());
  });
}

TEST(SocketExchange, TheNameIsFreeAgainAndNoDescriptorIsLeft) {
  const auto descriptors = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
  };
  const auto before = descriptors();
  const std::string group = GroupName();
  for (int round = 0; round < 3; ++round) {
    OnThreads(3, [&](int rank) {
      auto exchange = MakeSocketExchange(group, rank, 3, absl::Seconds(10));
      ASSERT_TRUE(exchange.ok()) << exchange.status();
      // Rank 0 is the last to go: it gets everybody's message of the barrier first.
      EXPECT_TRUE((*exchange)->Barrier("end", absl::Seconds(10)).ok());
    });
    // A creation that fails leaves nothing either.
    EXPECT_FALSE(MakeSocketExchange(group, 0, 2, absl::Milliseconds(20)).ok());
  }
  EXPECT_EQ(descriptors(), before);
}

TEST(SocketExchange, ASecondGroupOfTheSameNameIsRefused) {
  const std::string group = GroupName();
  OnThreads(2, [&](int rank) {
    auto exchange = MakeSocketExchange(group, rank, 2, absl::Seconds(10));
    ASSERT_TRUE(exchange.ok()) << exchange.status();
    if (rank == 0) {
      const absl::Status second = MakeSocketExchange(group, 0, 2, absl::Milliseconds(200)).status();
      EXPECT_EQ(second.code(), absl::StatusCode::kAlreadyExists);
      EXPECT_NE(second.message().find(group), std::string::npos) << second;
    }
    EXPECT_TRUE((*exchange)->Barrier("end", absl::Seconds(10)).ok());
  });
}

TEST(SocketExchange, AnotherWorldAndARankThereTwiceAreRefusedWithBothValues) {
  for (const bool twice : {false, true}) {
    const std::string group = GroupName();
    OnThreads(3, [&](int rank) {
      const int world = rank == 2 && !twice ? 4 : 3;
      const int as = rank == 2 && twice ? 1 : rank;
      const absl::Status status =
          MakeSocketExchange(group, as, world, absl::Milliseconds(1000)).status();
      EXPECT_FALSE(status.ok());
      // A rank that has nothing to do with it may come after rank 0 gave up.
      if (rank == 1 && !twice) return;
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
      const char* wanted = twice ? "rank 1 is there twice" : "rank 2 has world 4";
      EXPECT_NE(status.message().find(wanted), std::string::npos) << status;
    });
  }
}

TEST(SocketExchange, AStrangerThatTalksRubbishDoesNotDisturbTheGroup) {
  const std::string group = GroupName();
  OnThreads(3, [&](int rank) {
    if (rank == 2) {
      // The address is a function of user and group: any process of the user can find it.
      uint64_t hash = 14695981039346656037ull;
      for (unsigned char c : group) hash = (hash ^ c) * 1099511628211ull;
      const std::string name = absl::StrCat("stoker-", geteuid(), "-", absl::Hex(hash));
      sockaddr_un address{};
      address.sun_family = AF_UNIX;
      name.copy(address.sun_path + 1, name.size());
      const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
      for (int i = 0; i < 200; ++i) {
        if (connect(fd, reinterpret_cast<sockaddr*>(&address),
                    static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())) ==
            0) {
          break;
        }
        absl::SleepFor(absl::Milliseconds(5));
      }
      EXPECT_GT(send(fd, "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL), 0);
      close(fd);
      return;
    }
    if (rank == 1) absl::SleepFor(absl::Milliseconds(300));
    auto exchange = MakeSocketExchange(group, rank, 2, absl::Seconds(10));
    ASSERT_TRUE(exchange.ok()) << exchange.status();
    EXPECT_TRUE((*exchange)->Barrier("after the stranger", absl::Seconds(10)).ok());
  });
}

TEST(SocketExchange, AWorldARankOrANameOutOfRangeIsRefused) {
  for (const auto& [rank, world] : {std::pair{0, 9}, {0, 0}, {2, 2}, {-1, 2}}) {
    const absl::Status status =
        MakeSocketExchange(GroupName(), rank, world, absl::Seconds(1)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(absl::StrCat("rank ", rank, " of world ", world)),
              std::string::npos)
        << status;
  }
  for (const size_t bytes : {size_t{0}, size_t{201}}) {
    const absl::Status status =
        MakeSocketExchange(std::string(bytes, 'x'), 0, 1, absl::Seconds(1)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find(absl::StrCat(bytes, " bytes")), std::string::npos) << status;
  }
  EXPECT_TRUE(MakeSocketExchange(std::string(200, 'x'), 0, 1, absl::Seconds(1)).ok());
}

}  // namespace
}  // namespace stoker::comm
