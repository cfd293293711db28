"""Who may include whom. Each row that is missing below is a test: an include that no row allows fails.

Run from the root of the tree (or of the runfiles, where the sources lie).
"""

import pathlib
import re
import sys

# Folder → folders of ours that it may include. `testing` and `tools` may include everything.
MAY_INCLUDE = {
    "base": {"base"},
    "comm": {"comm", "base"},
    "moe": {"moe", "comm", "base"},
    "ops": {"ops", "moe", "comm", "offload", "base"},
    "offload": {"offload", "base"},
}
# Tests lie beside what they test and may use the test libraries.
TESTS_MAY_ALSO = {"testing", "moe"}
FOLDERS = sorted(MAY_INCLUDE) + ["testing", "tools", "python"]
# Headers that only some places may know.
ONLY_IN = [
    (re.compile(r"^torch/"), lambda path: path.parts[0] == "ops", "torch's headers belong to ops/"),
    (re.compile(r"^nccl\.h$"), lambda path: str(path).startswith("comm/nccl_"), "nccl.h belongs to comm/nccl_*"),
]
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.MULTILINE)


def breaches(path, text):
    """What the includes of one file break; `path` is relative to the root."""
    folder = path.parts[0]
    found = []
    for include in INCLUDE.findall(text):
        target = include.split("/")[0]
        if target in FOLDERS and folder in MAY_INCLUDE and target not in MAY_INCLUDE[folder]:
            if not (path.stem.endswith("_test") and target in TESTS_MAY_ALSO):
                found.append(f"{path}: includes {include}; {folder}/ may include only {sorted(MAY_INCLUDE[folder])}")
        for pattern, allowed, why in ONLY_IN:
            if pattern.match(include) and not allowed(path):
                found.append(f"{path}: includes {include}; {why}")
    return found


def sources(root):
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")) if (root / folder).is_dir() else []:
            if path.suffix in (".h", ".cc", ".cu", ".cuh", ".inc"):
                yield path.relative_to(root), path.read_text(encoding="utf-8")


def self_test():
    """A breach of every rule is found."""
    wrong = [
        ("base/a.h", '#include "comm/protocol.h"'), ("comm/a.cc", '#include "moe/arguments.h"'),
        ("comm/a.cc", '#include "offload/engine.h"'), ("moe/a.cu", '#include "ops/schemas.h"'),
        ("moe/a.cc", '#include "testing/inputs.h"'), ("comm/a.h", '#include "tools/bench/measure.h"'),
        ("moe/a.cc", "#include <torch/library.h>"), ("moe/a.cc", "#include <nccl.h>"),
        ("testing/a.cc", "#include <torch/library.h>"), ("offload/engine.cc", '#include "comm/protocol.h"'),
    ]
    right = [
        ("moe/a.cc", '#include "comm/protocol.h"'), ("comm/a_test.cc", '#include "testing/inputs.h"'),
        ("ops/a.cc", "#include <torch/csrc/stable/library.h>"), ("comm/nccl_status.cc", "#include <nccl.h>"),
        ("tools/bench/a.cc", '#include "moe/oracle.h"'),
    ]
    missed = [f"not found: {p}: {t}" for p, t in wrong if not breaches(pathlib.PurePath(p), t)]
    return missed + [f"wrongly found: {p}: {t}" for p, t in right if breaches(pathlib.PurePath(p), t)]


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    found = self_test()
    count = 0
    for path, text in sources(root):
        count += 1
        found += breaches(path, text)
    for line in found:
        print(line)
    print(f"{count} files, {len(found)} breaches")
    return 1 if found or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
