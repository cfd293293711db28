#include "comm/socket_exchange.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace stoker::comm {
namespace {

std::string GroupName() {
  static int count = 0;
  return absl::StrCat("exchange-test-", getpid(), "-", count++);
}

// Runs `rank_main` for every rank on a thread of its own.
void OnThreads(int world, const std::function<void(int rank)>& rank_main) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world; ++rank) threads.emplace_back(rank_main, rank);
  for (std::thread& thread : threads) thread.join();
}

TEST(SocketExchange, EveryRankGetsEveryMessageByRank) {
  const std::string group = GroupName();
  OnThreads(4, [&](int rank) {
    auto exchange = MakeSocketExchange(group, rank, 4, absl::Seconds(10));
    ASSERT_TRUE(exchange.ok()) << exchange.status();
    for (int round = 0; round < 50; ++round) {
      const std::string mine = absl::StrCat(rank, ":", std::string(round * 100, 'x'));
      auto all = (*exchange)->AllGather("testing", mine, absl::Seconds(10));
      ASSERT_TRUE(all.ok()) << all.status();
      for (int r = 0; r < 4; ++r) {
        EXPECT_EQ((*all)[r], absl::StrCat(r, ":", std::string(round * 100, 'x')));
      }
    }
  });
}

TEST(SocketExchange, AMissingRankIsNamedAtConnecting) {
  const std::string group = GroupName();
  OnThreads(2, [&](int rank) {
    const absl::Time start = absl::Now();
    const absl::Status status =
        MakeSocketExchange(group, rank, 3, absl::Milliseconds(300)).status();
    EXPECT_FALSE(status.ok());
    if (rank == 0) {
      EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
      EXPECT_NE(status.message().find("rank 2 did not arrive"), std::string::npos) << status;
    }
    EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  });
  const absl::Status alone = MakeSocketExchange(group, 1, 2, absl::Milliseconds(100)).status();
  EXPECT_NE(alone.message().find("rank 0 did not arrive"), std::string::npos) << alone;
}

TEST(SocketExchange, ARankMissingLaterIsNamedOnEveryOtherRank) {
  const std::string group = GroupName();
  OnThreads(3, [&](int rank) {
    auto exchange = MakeSocketExchange(group, rank, 3, absl::Seconds(10));
    ASSERT_TRUE(exchange.ok()) << exchange.status();
    ASSERT_TRUE((*exchange)->Barrier("first", absl::Seconds(10)).ok());
    if (rank == 2) {
      absl::SleepFor(absl::Milliseconds(1500));
      return;
    }
    const absl::Status status = (*exchange)->Barrier("second", absl::Milliseconds(300));
    EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_NE(status.message().find("rank 2"), std::string::npos) << status;
    EXPECT_NE(status.message().find("second"), std::string::npos) << status;
  });
}

TEST(SocketExchange, ARankThatDiesIsNamed) {
  const std::string group = GroupName();
  OnThreads(3, [&](int rank) {
    auto exchange = MakeSocketExchange(group, rank, 3, absl::Seconds(10));
    ASSERT_TRUE(exchange.ok()) << exchange.status();
    if (rank == 1) return;  // its socket closes
    const absl::Time start = absl::Now();
    const absl::Status status = (*exchange)->Barrier("meeting", absl::Seconds(20));
    EXPECT_NE(status.message().find("rank 1"), std::string::npos) << status;
    EXPECT_LT(absl::Now() - start, absl::Seconds(10));
  });
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
      if (rank == 0) {
        const char* wanted = twice ? "rank 1 is there twice" : "rank 2 has world 4";
        EXPECT_NE(status.message().find(wanted), std::string::npos) << status;
      }
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

TEST(SocketExchange, AMessageThatIsTooLongAndAWorldThatIsTooLargeAreRefused) {
  auto exchange = MakeSocketExchange(GroupName(), 0, 1, absl::Seconds(1));
  ASSERT_TRUE(exchange.ok());
  const std::string message(RankExchange::kMessageBytesMax + 1, 'x');
  EXPECT_EQ((*exchange)->AllGather("x", message, absl::Seconds(1)).status().code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(MakeSocketExchange(GroupName(), 0, 9, absl::Seconds(1)).status().code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace stoker::comm
