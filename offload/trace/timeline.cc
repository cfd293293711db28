#include "offload/trace/timeline.h"

#include <cerrno>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"

namespace stoker::offload {
namespace {
constexpr size_t kMaxEvents = 1 << 20;
}  // namespace

void Timeline::Add(const std::string& track, std::string name, absl::Duration begin,
                   absl::Duration end) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (events_.size() == kMaxEvents) {
    ++dropped_;
    return;
  }
  const int number = tracks_.emplace(track, static_cast<int>(tracks_.size())).first->second;
  events_.push_back({number, std::move(name), begin, end});
}

std::string Timeline::ToJson() const {
  std::lock_guard<std::mutex> lock(mutex_);
  // Names are ours: no character of them needs an escape.
  std::string json = absl::StrCat("{\"otherData\":{\"dropped_events\":", dropped_,
                                  "},\"traceEvents\":[\n{\"ph\":\"M\",\"pid\":1,\"tid\":0,"
                                  "\"name\":\"process_name\",\"args\":{\"name\":\"stoker\"}}");
  for (const auto& [track, number] : tracks_) {
    absl::StrAppend(&json, ",\n{\"ph\":\"M\",\"pid\":1,\"tid\":", number,
                    ",\"name\":\"thread_name\",\"args\":{\"name\":\"", track, "\"}}");
  }
  for (const Event& event : events_) {
    absl::StrAppendFormat(
        &json, ",\n{\"ph\":\"X\",\"pid\":1,\"tid\":%d,\"name\":\"%s\",\"ts\":%.3f,\"dur\":%.3f}",
        event.track, event.name, absl::ToDoubleMicroseconds(event.begin),
        absl::ToDoubleMicroseconds(event.end - event.begin));
  }
  return json + "\n]}\n";
}

absl::Status Timeline::Write(const std::string& path) const {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << ToJson();
  out.close();
  return out ? absl::OkStatus() : ErrnoStatus(errno, path);
}

}  // namespace stoker::offload
