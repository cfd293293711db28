// What ran when and where, for a trace viewer (Perfetto, chrome://tracing).
//
//   Timeline timeline;
//   timeline.Add("lane 0", "layer 3 expert 17 gate weights", begin, end);
//   STOKER_RETURN_IF_ERROR(timeline.Write("out.json"));
//
// Thread-safe. Keeps the first 2^20 events and counts the rest.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace stoker::offload {

class Timeline {
 public:
  // Times are those of one clock, of any start.
  void Add(const std::string& track, std::string name, absl::Duration begin, absl::Duration end);
  // Chrome's JSON trace format, which Perfetto opens.
  absl::Status Write(const std::string& path) const;
  std::string ToJson() const;

 private:
  struct Event {
    int track;
    std::string name;
    absl::Duration begin, end;
  };
  mutable std::mutex mutex_;
  std::map<std::string, int> tracks_;
  std::vector<Event> events_;
  int64_t dropped_ = 0;
};

}  // namespace stoker::offload
