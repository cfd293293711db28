// The page-aligned range that a direct read of a request covers, and how far it has come. Internal
// to the lanes.
#pragma once

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "offload/io/read_lane.h"

namespace stoker::offload {

class DirectRange {
 public:
  explicit DirectRange(const ReadRequest& request)
      : request_(&request),
        begin_(request.offset / kDirectAlignment * kDirectAlignment),
        end_((request.offset + request.into.size() + kDirectAlignment - 1) / kDirectAlignment *
             kDirectAlignment),
        next_(begin_) {}

  char* data() const { return request_->into.data() - (request_->offset - next_); }
  size_t size() const { return std::min<uint64_t>(end_ - next_, 1u << 30); }
  uint64_t file_offset() const { return next_; }
  bool covered() const { return next_ + tail_ >= request_->offset + request_->into.size(); }
  // False at the end of the file.
  bool Advance(uint64_t got) {
    // A direct read goes on at a page; it stops within one only at the end of the file.
    tail_ = got % kDirectAlignment;
    next_ += got - tail_;
    return covered() || (got > 0 && tail_ == 0);
  }
  absl::Status EndOfFile() const {
    return absl::DataLossError(
        absl::StrCat(request_->file->path(), ": the file ends at offset ", next_ + tail_, ", ",
                     request_->offset + request_->into.size() - next_ - tail_, " bytes short"));
  }

 private:
  const ReadRequest* request_;
  uint64_t begin_;
  uint64_t end_;
  uint64_t next_;
  uint64_t tail_ = 0;  // bytes read of the page at next_
};

}  // namespace stoker::offload
