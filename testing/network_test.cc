// A test has a network of its own with nothing but loopback (.bazelrc), so that none can reach, or
// be reached from, anything else.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <string>

#include "base/unique_fd.h"

namespace stoker::testing {
namespace {

// Interfaces by the routes that leave through them.
int Routes() {
  std::ifstream file("/proc/net/route");
  int lines = 0;
  for (std::string line; std::getline(file, line);) ++lines;
  return lines - 1;  // the heading
}

bool MachineCanGiveOne() {
  const pid_t child = fork();
  if (child == 0) _exit(unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0 ? 0 : 1);
  int status = 1;
  waitpid(child, &status, 0);
  return status == 0;
}

TEST(Network, NothingIsReachableButLoopback) {
  if (Routes() != 0 && !MachineCanGiveOne()) {
    GTEST_SKIP()
        << "needs user namespaces, without which Bazel's sandbox has no network of its own";
  }
  EXPECT_EQ(Routes(), 0) << "this test sees the machine's network";
  UniqueFd server(socket(AF_INET, SOCK_STREAM, 0)), client(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  ASSERT_EQ(bind(server.get(), generic, length), 0);
  ASSERT_EQ(listen(server.get(), 1), 0);
  ASSERT_EQ(getsockname(server.get(), generic, &length), 0);
  EXPECT_EQ(connect(client.get(), generic, length), 0);
}

}  // namespace
}  // namespace stoker::testing
