// The one command; kUsage says what it does.
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "tools/stoker/bench_compare.h"
#include "tools/stoker/bench_finalize_flags.h"
#include "tools/stoker/command_line.h"
#include "tools/stoker/doctor.h"
#include "tools/stoker/health.h"
#include "tools/stoker/offload_bench.h"
#include "tools/stoker/offload_checkpoint.h"

namespace {

constexpr char kUsage[] =
    "stoker COMMAND\n"
    "  bench finalize [--world=4] [--hidden=7168] [--tokens=1,4,16] [--top-k=8] [--dtype=bf16] "
    "[--out=FILE [--resume]]\n"
    "                 [--against=pr6631,unfused,hand-written,unguarded] "
    "[--placement=streams|loopback]\n"
    "      time per launch beside its bound and its rivals, bytes, launch shape, errors against "
    "FP64\n"
    "  bench guards [--world=4] [--hidden=7168] [--tokens=1,16,64,128] [--out=FILE]\n"
    "      what headers, tickets and deadlines cost a launch, in pairs with a build without them\n"
    "  bench compare OLD.jsonl NEW.jsonl\n"
    "      cell by cell: faster, slower, same or unclear\n"
    "  offload bench [--checkpoint=FOLDER] [--trace=FILE] [--cache-bytes=N] "
    "[--schedulers=dynamic,index] "
    "[--json=FILE] [--perfetto=FILE]\n"
    "      tokens/s of the experts alone, hit rate, GB/s, stall and parity on a routing trace\n"
    "  offload overhead [--threads=N] [--pairs=20]\n"
    "      all-hit calls against the same tiles without readiness, and calls that do next to "
    "nothing\n"
    "  offload inspect CHECKPOINT [--top-k=8] [--json=FILE]\n"
    "      format, shapes, bytes, smallest budgets, whether it can be read where it lies\n"
    "  offload plan CHECKPOINT --ram=2G,4G [--trace=FILE] [--disk-gbps=1] [--memory-gbps=20] "
    "[--json=FILE]\n"
    "      hit rate of each budget, and the most tokens/s that disk and memory allow\n"
    "  offload pack CHECKPOINT OUT.stoker [--json=FILE]\n"
    "      one aligned record an expert, with checksums; AWQ and GPTQ need it\n"
    "  offload replay TRACE\n"
    "      hit rates of cache policies on a routing trace, and which to take\n"
    "  health [--pid=N]\n"
    "      the groups of process N (or of all processes of this user): who waits for whom and "
    "since\n"
    "      when, who is slow, last launches\n"
    "  doctor [--model=FOLDER] [--ranks=2] [--gpu=sm_90]\n"
    "      what is installed, and which layers of a model would be fused; the Python package has "
    "it\n"
    "  doctor --faults\n"
    "      every fault that can happen here and what comes of it, on the GPU if it has no other\n"
    "      process, else on CPU ranks\n"
    "  --help, --version; --top-k and --top_k are the same flag\n";

}  // namespace

int main(int argc, char** argv) {
  if (argc == 3 && std::string(argv[1]) == "doctor" && std::string(argv[2]) == "--faults") {
    return stoker::command::RunDoctorFaults();
  }
  // The doctor reads its own flags.
  if (argc > 1 && std::string(argv[1]) == "doctor") return stoker::command::RunDoctor(argc, argv);
  const std::vector<char*> words = stoker::command::ParseCommandLine(argc, argv, kUsage);
  const auto is = [&words](size_t i, const char* word) {
    return i < words.size() && std::string(words[i]) == word;
  };
  if (is(1, "bench") && is(2, "finalize") && words.size() == 3) {
    return stoker::command::RunBenchFinalize({});
  }
  if (is(1, "bench") && is(2, "guards") && words.size() == 3) {
    return stoker::command::RunBenchGuards();
  }
  if (is(1, "bench") && is(2, "compare") && words.size() == 5) {
    return stoker::command::RunBenchCompare(words[3], words[4]);
  }
  if (is(1, "offload") && is(2, "bench") && words.size() == 3) {
    return stoker::command::RunOffloadBench();
  }
  if (is(1, "offload") && is(2, "overhead") && words.size() == 3) {
    return stoker::command::RunOffloadOverhead();
  }
  if (is(1, "offload") && is(2, "inspect") && words.size() == 4) {
    return stoker::command::RunOffloadInspect(words[3]);
  }
  if (is(1, "offload") && is(2, "plan") && words.size() == 4) {
    return stoker::command::RunOffloadPlan(words[3]);
  }
  if (is(1, "offload") && is(2, "pack") && words.size() == 5) {
    return stoker::command::RunOffloadPack(words[3], words[4]);
  }
  if (is(1, "offload") && is(2, "replay") && words.size() == 4) {
    return stoker::command::RunOffloadReplay(words[3]);
  }
  if (is(1, "health") && words.size() == 2) return stoker::command::RunHealth();
  absl::FPrintF(stderr, "%s", kUsage);
  return 2;
}
