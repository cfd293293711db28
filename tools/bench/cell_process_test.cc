#include "tools/bench/cell_process.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <new>

namespace stoker::bench {
namespace {

// Counts runs of a cell, which happen in processes of their own.
class CellProcess : public ::testing::Test {
 protected:
  void SetUp() override {
    void* page =
        mmap(nullptr, sizeof(*runs_), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(page, MAP_FAILED);
    runs_ = new (page) std::atomic<int>(0);
  }
  void TearDown() override { munmap(runs_, sizeof(*runs_)); }
  std::atomic<int>* runs_ = nullptr;
};

TEST_F(CellProcess, RunsAgainWithoutTheContendersThatHung) {
  const absl::Status status = RunInChild({"the cell"}, [this](size_t, CellRun& run) {
    ++*runs_;
    for (const char* peer : {"first", "second"}) {
      if (run.Failed(peer)) continue;
      run.ReportFailure(peer, absl::DeadlineExceededError("hangs"));
      run.StartAgain();
    }
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(runs_->load(), 3);
}

TEST_F(CellProcess, AFailedPeerThatDoesNotHangCostsNoRun) {
  const absl::Status status = RunInChild({"the cell"}, [this](size_t, CellRun& run) {
    ++*runs_;
    run.ReportFailure("peer", absl::DataLossError("other bits"));
    return absl::OkStatus();
  });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(runs_->load(), 1);
}

TEST_F(CellProcess, AnErrorAndADeadChildAreErrorsThatNameTheCell) {
  const absl::Status error =
      RunInChild({"cell 7"}, [](size_t, CellRun&) { return absl::InternalError("wrong bits"); });
  EXPECT_EQ(error.code(), absl::StatusCode::kInternal);
  EXPECT_NE(error.message().find("cell 7"), std::string::npos) << error;
  const absl::Status dead = RunInChild({"cell 8"}, [](size_t, CellRun&) -> absl::Status {
    raise(SIGKILL);
    return absl::OkStatus();
  });
  EXPECT_EQ(dead.code(), absl::StatusCode::kInternal);
  EXPECT_NE(dead.message().find("cell 8 died"), std::string::npos) << dead;
}

TEST_F(CellProcess, CellsShareAProcessUntilOneHangsOrFails) {
  std::vector<std::string> cells = {"a", "b", "c", "d"};
  void* page = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  auto* processes = static_cast<pid_t*>(page);  // that ran a cell to its end
  const absl::Status status = RunInChild(cells, [&](size_t i, CellRun& run) -> absl::Status {
    ++*runs_;
    if (i == 1 && !run.Failed("peer")) {
      run.ReportFailure("peer", absl::DeadlineExceededError("hangs"));
      run.StartAgain();
    }
    // What failed in one cell may do in another.
    EXPECT_EQ(run.Failed("peer"), i == 1);
    processes[i] = getpid();
    return i == 2 ? absl::InternalError("wrong bits") : absl::OkStatus();
  });
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_EQ(runs_->load(), 5);
  EXPECT_NE(processes[0], processes[1]);
  EXPECT_EQ(processes[1], processes[2]);
  EXPECT_NE(processes[2], processes[3]);
  EXPECT_NE(processes[3], 0);
  munmap(page, 4096);
}

TEST_F(CellProcess, AQuestionIsAnsweredInAProcessOfItsOwn) {
  const pid_t here = getpid();
  EXPECT_TRUE(AskInChild([here] { return getpid() != here; }));
  EXPECT_FALSE(AskInChild([] { return false; }));
  EXPECT_FALSE(AskInChild([] { return raise(SIGKILL) == 0; }));
}

TEST_F(CellProcess, StartingAgainWithoutANewFailureEnds) {
  const absl::Status status =
      RunInChild({"the cell"}, [this](size_t, CellRun& run) -> absl::Status {
        ++*runs_;
        run.StartAgain();
      });
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_EQ(runs_->load(), 1);
}

}  // namespace
}  // namespace stoker::bench
