#include "testing/scratch.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/bounded_wait.h"
#include "base/status.h"
#include "testing/unique_name.h"

namespace stoker::testing {
namespace {

namespace fs = std::filesystem;

// Of a large folder on a slow disk.
constexpr absl::Duration kRemovalTimeout = absl::Seconds(60);

void RemoveAll(const std::string& folder, const std::string& prefix) {
  std::error_code ignored;
  std::vector<fs::path> found;
  fs::directory_iterator entry(folder, ignored);
  for (; entry != fs::directory_iterator(); entry.increment(ignored)) {
    const fs::path& path = entry->path();
    if (absl::StartsWith(path.filename().string(), prefix)) found.push_back(path);
  }
  for (const fs::path& path : found) fs::remove_all(path, ignored);
}

// `told` says that the object went, or ends with the last process that holds the other end.
[[noreturn]] void RunRemover(int told, const std::string& folder, const std::string& prefix) {
  setsid();
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) std::signal(signal, SIG_IGN);
  // Whoever reads the program's output must not wait for this process.
  const int null = open("/dev/null", O_RDWR);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(null, fd);
  char byte;
  while (read(told, &byte, 1) < 0 && errno == EINTR) {
  }
  RemoveAll(folder, prefix);
  _exit(0);
}

}  // namespace

absl::StatusOr<Scratch> Scratch::Watch(const std::string& folder, const std::string& prefix) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe2");
  const UniqueFd told(ends[0]);
  Scratch scratch;
  scratch.path_ = absl::StrCat(folder, "/", prefix);
  scratch.alive_ = UniqueFd(ends[1]);
  std::fflush(nullptr);
  scratch.remover_ = fork();
  if (scratch.remover_ < 0) return ErrnoStatus(errno, "fork");
  if (scratch.remover_ == 0) {
    close(ends[1]);
    RunRemover(told.get(), folder, prefix);
  }
  return scratch;
}

absl::StatusOr<Scratch> Scratch::Folder(absl::string_view prefix) {
  std::error_code error;
  const fs::path temporary = fs::temp_directory_path(error);
  if (error) return absl::NotFoundError(absl::StrCat("no temporary folder: ", error.message()));
  std::string name = UniqueName("");
  name[0] = '_';
  name.insert(0, prefix.data(), prefix.size());
  // The remover knows the name before the folder is there, so nothing can come between.
  STOKER_ASSIGN_OR_RETURN(Scratch scratch, Watch(temporary.string(), name));
  if (mkdir(scratch.path().c_str(), 0700) != 0) return ErrnoStatus(errno, scratch.path());
  return scratch;
}

absl::StatusOr<Scratch> Scratch::Segments(absl::string_view prefix) {
  return Watch("/dev/shm", std::string(prefix));
}

Scratch::Scratch(Scratch&& other) noexcept
    : path_(std::move(other.path_)),
      remover_(std::exchange(other.remover_, -1)),
      alive_(std::move(other.alive_)) {}

Scratch::~Scratch() {
  if (remover_ <= 0) return;
  // A byte, not only the end: a child that still runs holds the pipe, too.
  const char done = 1;
  const ssize_t written = write(alive_.get(), &done, 1);
  static_cast<void>(written);  // a remover that is gone has nothing left to do
  const auto removed = [this] { return waitpid(remover_, nullptr, WNOHANG) != 0; };
  if (!WaitUntil(removed, Deadline(Clock::Monotonic(), kRemovalTimeout), "removal").ok()) {
    std::fprintf(stderr, "%s is still being removed\n", path_.c_str());
  }
}

}  // namespace stoker::testing
