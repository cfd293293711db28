#include "comm/termination.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace stoker::comm {
namespace {

// What the signal handler may touch: a pipe's end.
std::atomic<int> wake_fd = -1;

void OnTermination(int) {
  const int saved = errno;
  const char byte = 0;
  [[maybe_unused]] const ssize_t written = write(wake_fd.load(), &byte, 1);
  errno = saved;
}

class Terminator {
 public:
  static Terminator& Get() {
    static auto* terminator = new Terminator();  // its thread may outlive the end of main
    return *terminator;
  }

  int Add(std::function<void()> stop) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (stops_.empty()) Install();
    stops_[++last_id_] = std::move(stop);
    return last_id_;
  }

  void Remove(int id) {
    std::lock_guard<std::mutex> lock(mutex_);
    stops_.erase(id);
    if (stops_.empty()) Uninstall();
  }

 private:
  Terminator() {
    pthread_atfork([] { Get().mutex_.lock(); }, [] { Get().mutex_.unlock(); },
                   [] {
                     Terminator& self = Get();
                     self.stops_.clear();
                     self.Uninstall();
                     self.fds_[0] = self.fds_[1] = -1;  // the parent's thread reads that pipe
                     self.mutex_.unlock();
                   });
  }

  void Install() {
    if (sigaction(SIGTERM, nullptr, &before_) != 0 || before_.sa_handler == SIG_IGN) return;
    if (fds_[0] < 0) {
      if (pipe2(fds_, O_CLOEXEC) != 0) return;
      wake_fd = fds_[1];
      std::thread([this, fd = fds_[0]] { Serve(fd); }).detach();
    }
    struct sigaction ours {};
    ours.sa_handler = OnTermination;
    ours.sa_flags = SA_RESTART;
    sigfillset(&ours.sa_mask);
    installed_ = sigaction(SIGTERM, &ours, nullptr) == 0;
  }

  void Uninstall() {
    struct sigaction now {};
    if (!installed_) return;
    installed_ = false;
    sigaction(SIGTERM, nullptr, &now);
    if (now.sa_handler == OnTermination) sigaction(SIGTERM, &before_, nullptr);
  }

  void Serve(int fd) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, nullptr);
    for (char byte = 0;;) {
      const ssize_t got = read(fd, &byte, 1);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return;
      // In a thread of its own: an action that hangs must not keep the process alive.
      auto done = std::make_shared<std::atomic<bool>>(false);
      std::thread([this, done] {
        std::lock_guard<std::mutex> lock(mutex_);
        for (auto& [id, stop] : stops_) stop();
        Uninstall();
        done->store(true);
      }).detach();
      for (int ms = 0; ms < 1000 && !done->load(); ++ms) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      if (!done->load()) sigaction(SIGTERM, &before_, nullptr);
      kill(getpid(), SIGTERM);
    }
  }

  std::mutex mutex_;
  std::map<int, std::function<void()>> stops_;
  int last_id_ = 0;
  int fds_[2] = {-1, -1};
  struct sigaction before_ {};
  bool installed_ = false;
};

}  // namespace

StopAtTermination::StopAtTermination(std::function<void()> stop)
    : id_(Terminator::Get().Add(std::move(stop))) {}

StopAtTermination::~StopAtTermination() { Terminator::Get().Remove(id_); }

}  // namespace stoker::comm
