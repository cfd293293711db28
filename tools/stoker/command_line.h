// What all programs of the command line do with their arguments before the flags are parsed.
#pragma once

#include <vector>

namespace stoker::command {

// absl::ParseCommandLine, for which --top-k=8 is --top_k=8: dashes in the names of flags count as
// underscores, as in other commands of the field. The arguments are changed in place. For --help or
// -h prints `usage`, for --version the version, and ends the process with status 0.
std::vector<char*> ParseCommandLine(int argc, char** argv, const char* usage);

// `stoker doctor ARGUMENTS...`: becomes the doctor of the Python package, by the `python3` of the
// path. Returns 2, with what to do, if there is no python3; the doctor of a python3 without the
// package says so itself.
int RunDoctor(int argc, char** argv);

}  // namespace stoker::command
