#include "tools/stoker/command_line.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/environment_variables.h"

namespace stoker::command {
namespace {

constexpr char kVersion[] = "0.1.0";

constexpr char kDoctor[] =
    "import sys\n"
    "try:\n"
    "    from stoker import doctor\n"
    "except ImportError as error:\n"
    "    sys.exit(f'stoker doctor belongs to the Python package, which {sys.executable} does not "
    "have ({error}); install the wheel (bazel build --config=all_archs //python:wheel), or put the "
    "python3 that has it first in PATH')\n"
    "sys.exit(doctor.main(sys.argv[1:]))\n";

}  // namespace

std::vector<char*> ParseCommandLine(int argc, char** argv, const char* usage) {
  for (int i = 1; i < argc; ++i) {
    const absl::string_view word = argv[i];
    if (word == "--") break;
    if (word == "--help" || word == "-h") {
      absl::PrintF("%s\nFlags with their defaults: --helpfull\n\nEnvironment variables:\n%s", usage,
                   EnvironmentVariables::Table());
      std::exit(0);
    }
    if (word == "--version") {
      absl::PrintF("stoker %s\n", kVersion);
      std::exit(0);
    }
    if (word.substr(0, 2) != "--") continue;
    std::replace(argv[i] + 2, argv[i] + std::min(word.find('='), word.size()), '-', '_');
  }
  absl::SetProgramUsageMessage(usage);
  return absl::ParseCommandLine(argc, argv);
}

int RunDoctor(int argc, char** argv) {
  std::vector<const char*> words = {"python3", "-c", kDoctor};
  words.insert(words.end(), argv + 2, argv + argc);
  words.push_back(nullptr);
  execvp("python3", const_cast<char**>(words.data()));
  absl::FPrintF(stderr, "stoker doctor is a Python program, and python3 cannot be run: %s\n",
                std::strerror(errno));
  return 2;
}

}  // namespace stoker::command
