#include "moe/local_finalize_cpu.h"

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "moe/cpu_producers.h"
#include "moe/validate.h"

namespace stoker::moe {

absl::Status MoeFinalizeOnCpu(const Shape& shape, const FinalizeArguments& finalize, void* output) {
  STOKER_RETURN_IF_ERROR(ValidateLocalFinalize(shape, finalize, output));
  absl::Status status;
  for (int64_t token = 0; token < shape.tokens; ++token) {
    uint64_t bad = 0;
    uint16_t* row = static_cast<uint16_t*>(output) + token * shape.hidden;
    if (FinalizeRow(shape, finalize, token, row, &bad)) continue;
    status.Update(absl::OutOfRangeError(absl::StrCat("expanded index ", static_cast<uint32_t>(bad),
                                                     " of token ", token, " is not below the ",
                                                     bad >> 32, " permuted rows")));
  }
  return status;
}

}  // namespace stoker::moe
