#include "comm/framed_socket.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <string>
#include <thread>

namespace stoker::comm {
namespace {

Deadline In(absl::Duration timeout) { return Deadline(Clock::Monotonic(), timeout); }

class FramedSocketTest : public testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    ours_ = FramedSocket(UniqueFd(ends[0]));
    theirs_ = FramedSocket(UniqueFd(ends[1]));
  }
  void TheySendRaw(const std::string& bytes) {
    ASSERT_EQ(send(theirs_.fd(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  // What SendData puts on the wire.
  std::string Encoded(const std::string& what, const std::string& message) {
    EXPECT_TRUE(ours_.SendData(what, message, In(absl::Seconds(5))).ok());
    std::string bytes(4096, '\0');
    bytes.resize(recv(theirs_.fd(), bytes.data(), bytes.size(), 0));
    return bytes;
  }

  FramedSocket ours_;
  FramedSocket theirs_;
};

TEST_F(FramedSocketTest, DataAndVerdictsArriveAsTheyWereSent) {
  const absl::Status verdict = absl::NotFoundError("rank 3 is gone");
  ASSERT_TRUE(theirs_.SendData("closing", std::string("a\0b", 3), In(absl::Seconds(5))).ok());
  ASSERT_TRUE(theirs_.SendVerdict("closing", verdict, In(absl::Seconds(5))).ok());
  auto data = ours_.Receive(100, In(absl::Seconds(5)));
  ASSERT_TRUE(data.ok()) << data.status();
  EXPECT_TRUE(data->verdict.ok());
  EXPECT_EQ(data->what, "closing");
  EXPECT_EQ(data->message, std::string("a\0b", 3));
  auto error = ours_.Receive(100, In(absl::Seconds(5)));
  ASSERT_TRUE(error.ok()) << error.status();
  EXPECT_EQ(error->verdict, verdict);
}

TEST_F(FramedSocketTest, AFrameThatComesByteByByteIsOneFrame) {
  const std::string bytes = Encoded("what", "message");
  for (size_t i = 0; i < bytes.size(); ++i) {
    auto early = ours_.TryReceive(100);
    ASSERT_TRUE(early.ok());
    EXPECT_FALSE(early->has_value()) << "after " << i << " of " << bytes.size() << " bytes";
    TheySendRaw(bytes.substr(i, 1));
  }
  auto frame = ours_.TryReceive(100);
  ASSERT_TRUE(frame.ok() && frame->has_value());
  EXPECT_EQ((*frame)->message, "message");
}

TEST_F(FramedSocketTest, ADeadlineInTheMiddleOfAFrame) {
  TheySendRaw(Encoded("what", "message").substr(0, 10));
  EXPECT_EQ(ours_.Receive(100, In(absl::Milliseconds(50))).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_F(FramedSocketTest, APeerThatClosesInTheMiddleOfAFrame) {
  TheySendRaw(Encoded("what", "message").substr(0, 10));
  theirs_.Close();
  EXPECT_EQ(ours_.Receive(100, In(absl::Seconds(5))).status().code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(FramedSocketTest, AMessageAboveTheBoundIsRefusedBeforeItIsRead) {
  TheySendRaw(Encoded("what", std::string(101, 'x')).substr(0, 16));
  const absl::Status status = ours_.Receive(100, In(absl::Seconds(5))).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("101 bytes where at most 100"), std::string::npos) << status;
}

TEST_F(FramedSocketTest, RubbishInAnyFieldOfTheHeadIsRefused) {
  const std::string good = Encoded("what", "message");
  const std::array<std::pair<int, uint32_t>, 4> fields = {
      {{0, 0x20544547}, {1, 17}, {2, 101}, {3, 0xFFFFFFFF}}};
  for (const auto& [field, value] : fields) {
    SetUp();
    std::string bad = good;
    std::memcpy(&bad[4 * field], &value, sizeof(value));
    TheySendRaw(bad);
    EXPECT_EQ(ours_.Receive(100, In(absl::Seconds(5))).status().code(),
              absl::StatusCode::kInvalidArgument)
        << "field " << field;
  }
}

TEST_F(FramedSocketTest, SendingToAPeerThatDoesNotReadEndsAtTheDeadline) {
  const std::string large(16 << 20, 'x');  // more than the socket's buffer
  EXPECT_EQ(ours_.SendData("what", large, In(absl::Milliseconds(100))).code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_F(FramedSocketTest, SendingToAPeerThatIsGoneIsAnErrorAndNoSignal) {
  theirs_.Close();
  EXPECT_EQ(ours_.SendData("what", "message", In(absl::Seconds(5))).code(),
            absl::StatusCode::kUnavailable);
}

TEST_F(FramedSocketTest, LongNamesAndReasonsAreCut) {
  const std::string name(500, 'n');
  const absl::Status verdict = absl::InternalError(std::string(10000, 'm'));
  ASSERT_TRUE(theirs_.SendVerdict(name, verdict, In(absl::Seconds(5))).ok());
  auto frame = ours_.Receive(FramedSocket::kVerdictBytesMax, In(absl::Seconds(5)));
  ASSERT_TRUE(frame.ok()) << frame.status();
  EXPECT_EQ(frame->what.size(), FramedSocket::kWhatBytesMax);
  EXPECT_EQ(frame->message.size(), FramedSocket::kVerdictBytesMax);
}

TEST_F(FramedSocketTest, ThisProcessIsOfThisUser) { EXPECT_TRUE(ours_.CheckUser().ok()); }

}  // namespace
}  // namespace stoker::comm
