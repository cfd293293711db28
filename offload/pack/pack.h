// Writes a .stoker file from a checkpoint.
//
//   STOKER_ASSIGN_OR_RETURN(const PackResult result, PackCheckpoint(directory, "m.stoker", {}));
//
// Writes OUT.partial, syncs it, and renames it to OUT: OUT is whole or absent, and what it was
// before stays until then. Called again after an interruption it keeps the records of OUT.partial
// whose checksums hold, if the source is the same. Reserves all space before the first record:
// ResourceExhausted names the bytes needed and free. Every record is turned back into the source's
// bytes before it is written, and every record of the finished file read again. One pack of an OUT
// at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "offload/io/file.h"
#include "offload/store/scheme.h"

namespace stoker::offload {

struct PackOptions {
  FileOpener opener = OpenPosixFile;
  // Called after each record with how many are done and how many there are; false stops (Cancelled,
  // OUT.partial stays).
  std::function<bool(int64_t, int64_t)> progress;
};

struct PackResult {
  Format format = Format::kPackQuantized;
  int64_t experts = 0;
  int64_t resumed = 0;  // of them, kept from an interrupted pack
  uint64_t file_bytes = 0;
  uint32_t checksum = 0;  // CRC-32C over all parts in the source's order, the same in the file
};

absl::StatusOr<PackResult> PackCheckpoint(const std::string& directory, const std::string& out,
                                          const PackOptions& options);

}  // namespace stoker::offload
