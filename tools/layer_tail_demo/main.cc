#include <cstdio>

#include "absl/strings/str_format.h"
#include "tools/layer_tail_demo/demo.h"

int main() {
  absl::PrintF(
      "Stoker: finalize + all-reduce + residual + RMSNorm, %d ranks, hidden %d, top-k %d, bf16\n",
      stoker::demo::kWorld, stoker::demo::kHidden, stoker::demo::kTopK);
  std::fflush(stdout);
  const absl::Status status =
      stoker::demo::HasGpu() ? stoker::demo::RunOnGpu() : stoker::demo::RunOnCpuRanks();
  if (status.ok()) {
    absl::PrintF("Every check held.\n");
    return 0;
  }
  absl::FPrintF(stderr, "FAILED: %s\n", status.ToString());
  return 1;
}
