#include "testing/stray_processes.h"

#include <dirent.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/bounded_wait.h"

namespace stoker::testing {
namespace {

// The parent of a process; -1 if it is gone.
pid_t ParentOf(pid_t pid) {
  std::FILE* stat = std::fopen(("/proc/" + std::to_string(pid) + "/stat").c_str(), "r");
  if (stat == nullptr) return -1;
  char line[512];
  const size_t bytes = std::fread(line, 1, sizeof(line) - 1, stat);
  std::fclose(stat);
  line[bytes] = '\0';
  // "pid (name) state parent": the name may hold anything, a ')' too, so it ends at the last one.
  const std::string text(line, bytes);
  const size_t name_end = text.rfind(')');
  int parent = -1;
  if (name_end == std::string::npos ||
      std::sscanf(text.c_str() + name_end, ") %*c %d", &parent) != 1) {
    return -1;
  }
  return parent;
}

std::set<pid_t> Children() {
  std::set<pid_t> children;
  DIR* processes = opendir("/proc");
  if (processes == nullptr) return children;
  while (const dirent* entry = readdir(processes)) {
    const pid_t pid = std::atoi(entry->d_name);
    if (pid > 0 && ParentOf(pid) == getpid()) children.insert(pid);
  }
  closedir(processes);
  return children;
}

}  // namespace

StrayProcesses::StrayProcesses() : known_(Children()) {
  prctl(PR_GET_CHILD_SUBREAPER, &was_subreaper_);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
}

StrayProcesses::~StrayProcesses() { prctl(PR_SET_CHILD_SUBREAPER, was_subreaper_); }

bool StrayProcesses::KillAndReap(const Deadline& deadline) const {
  // A killed child's own children become ours, so this looks until there is none.
  const auto none_left = [this] {
    bool none = true;
    for (pid_t child : Children()) {
      if (known_.count(child) != 0) continue;
      none = false;
      kill(child, SIGKILL);
      waitpid(child, nullptr, WNOHANG);
    }
    return none;
  };
  return WaitUntil(none_left, deadline, "the end of all children").ok();
}

}  // namespace stoker::testing
