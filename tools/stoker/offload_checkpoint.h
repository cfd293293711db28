// `stoker offload inspect`, `plan` and `pack`. Each prints for people, and appends one line
// of JSON to the file of --json. Exit status: 0, or 1 with the reason and the remedy on stderr.
#pragma once

#include <string>

namespace stoker::command {

// Format, shapes, bytes per expert and layer, smallest useful budget, whether direct reads are
// possible where the file lies.
int RunOffloadInspect(const std::string& path);

// What a budget of --ram (or several) gives on --trace, or on routing with the statistics of
// recorded models: hit rate, and the most tokens/s that disk and memory allow.
int RunOffloadPlan(const std::string& path);

// Writes OUT.stoker from a checkpoint.
int RunOffloadPack(const std::string& path, const std::string& out);

}  // namespace stoker::command
