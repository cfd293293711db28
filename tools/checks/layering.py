"""Who may include, and depend on, whom. Each row that is missing below is a test: an include, or a label in a BUILD
file, that no row allows fails.

Run from the root of the tree (or of the runfiles, where the sources lie).
"""

import ast
import pathlib
import posixpath
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
# Tests, and what they share, lie beside what they test and may use the test libraries.
TESTS_MAY_ALSO = {"testing"}
TEST_NAME = re.compile(r"_(test|cases)$")
FOLDERS = sorted(MAY_INCLUDE) + ["testing", "tools", "python"]
# Headers that only some places may know.
ONLY_IN = [
    (re.compile(r"^(torch|c10|ATen)/"), lambda path: path.parts[0] == "ops", "torch's headers belong to ops/"),
    (re.compile(r"^nccl\w*\.h$"), lambda path: str(path).startswith("comm/nccl_"), "nccl.h belongs to comm/nccl_*"),
]
# What nvcc compiles for the product: no header of these reaches it, directly or through others.
DEVICE_CODE = re.compile(r"^(comm|moe)/.*\.cuh?$")
NOT_ON_DEVICES = re.compile(r"^(absl|torch)/")
INCLUDE = re.compile(r'^\s*#\s*include\s+["<]([^">]+)[">]', re.MULTILINE)


def breaches(path, text):
    """What the includes of one file break; `path` is relative to the root."""
    folder = path.parts[0]
    found = []
    for include in INCLUDE.findall(text):
        target = include.split("/")[0]
        if target in FOLDERS and folder in MAY_INCLUDE and target not in MAY_INCLUDE[folder]:
            if not (TEST_NAME.search(path.stem) and target in TESTS_MAY_ALSO):
                found.append(f"{path}: includes {include}; {folder}/ may include only {sorted(MAY_INCLUDE[folder])}")
        for pattern, allowed, why in ONLY_IN:
            if pattern.match(include) and not allowed(path):
                found.append(f"{path}: includes {include}; {why}")
    return found


def relative_breaches(path, text, texts):
    """An include that is not written from the root would pass by every rule here."""
    return [f"{path}: includes {include}; write it from the root of the tree" for include in INCLUDE.findall(text)
            if include not in texts and posixpath.normpath(posixpath.join(posixpath.dirname(path), include)) in texts]


def device_breaches(path, read):
    """`path` is a name; read(name) gives the text of a file of ours, or None."""
    found, seen, todo = [], {path}, [path]
    while todo:
        here = todo.pop()
        for include in INCLUDE.findall(read(here)):
            if NOT_ON_DEVICES.match(include):
                found.append(f"{path}: reaches {include} through {here}; device code knows neither Abseil nor torch")
            elif include not in seen and read(include) is not None:
                seen.add(include)
                todo.append(include)
    return found


def labels(node):
    """The labels of other packages of ours below a piece of a BUILD file."""
    return [c.value for c in ast.walk(node)
            if isinstance(c, ast.Constant) and isinstance(c.value, str) and c.value.startswith("//")]


def of_test(call):
    """Whether a rule is a test, or for tests alone."""
    given = {k.arg: k.value for k in call.keywords}
    names = [c.value for c in ast.walk(given.get("name", ast.Constant(""))) if isinstance(c, ast.Constant)]
    only = given.get("testonly")
    return (getattr(call.func, "id", "").endswith("_test") or any(TEST_NAME.search(str(name)) for name in names)
            or (isinstance(only, ast.Constant) and only.value in (True, 1)))


def build_breaches(path, text):
    """What the labels of one BUILD file break. Starlark's BUILD files are expressions that Python parses as well."""
    folder = path.parts[0]
    found = []
    for statement in ast.parse(text).body if folder in MAY_INCLUDE else []:
        rules = [c for c in ast.walk(statement) if isinstance(c, ast.Call) and c.keywords]
        if isinstance(statement, ast.Assign):  # a list of labels that rules share
            shared = any("TEST" in getattr(target, "id", "") for target in statement.targets)
            used = [(shared, label) for label in labels(statement.value)]
        else:
            used = [(of_test(rule), label) for rule in rules for k in rule.keywords
                    if k.arg not in ("visibility", "default_visibility") for label in labels(k.value)]
        for test, label in used:
            target = re.split("[:/]", label[2:])[0]
            allowed = MAY_INCLUDE[folder] | (TESTS_MAY_ALSO if test else set())
            if target in FOLDERS and target not in allowed and not label.startswith("//tools/bazel"):
                found.append(f"{path}: depends on {label}; {folder}/ may depend only on {sorted(MAY_INCLUDE[folder])}")
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
        ("testing/a.cc", "#include <torch/library.h>"), ("comm/a_test.cc", '#include "moe/arguments.h"'),
        ("offload/engine.cc", '#include "comm/protocol.h"'), ("moe/a.cc", "#include <c10/util/Half.h>"),
    ]
    right = [
        ("moe/a.cc", '#include "comm/protocol.h"'), ("comm/a_test.cc", '#include "testing/inputs.h"'),
        ("ops/a.cc", "#include <torch/csrc/stable/library.h>"), ("comm/nccl_status.cc", "#include <nccl.h>"),
        ("tools/bench/a.cc", '#include "moe/oracle.h"'),
    ]
    wrong_builds = [
        ("comm/BUILD", 'cc_library(name = "a", deps = ["//moe:arguments"])'),
        ("comm/BUILD", 'cc_test(name = "a_test", deps = ["//moe:arguments"])'),
        ("comm/BUILD", 'cc_library(name = "a", deps = ["//testing:inputs"])'),
        ("offload/io/BUILD", '[cc_library(name = "a_" + n, deps = ["//comm:health"]) for n in ["x"]]'),
        ("moe/BUILD", 'SHARED = ["//ops:cpu"]'), ("base/BUILD", 'cc_library(name = "a", srcs = ["//comm:group.cc"])'),
    ]
    right_builds = [
        ("comm/BUILD", 'cc_library(name = "a", visibility = ["//moe:__pkg__"], deps = ["//base:status"])'),
        ("comm/BUILD", 'cc_test(name = "a_test", deps = ["//testing:inputs"])'),
        ("offload/BUILD", 'cc_library(name = "engine_cases", deps = ["//testing:inputs"])'),
        ("moe/BUILD", 'load("//tools/bazel:cuda.bzl", "cuda_library")'), ("tools/BUILD", 'x(deps = ["//ops:cpu"])'),
    ]
    device = {"moe/a.cu": '#include "comm/b.h"', "comm/b.h": '#include "absl/time/time.h"',
              "comm/c.cuh": '#include <cstdint>'}
    missed = [] if device_breaches("moe/a.cu", device.get) else ["not found: Abseil in moe/a.cu"]
    missed += [f"not found: {include} in comm/a.cc" for include in ("b.h", "../comm/b.h")
               if not relative_breaches("comm/a.cc", f'#include "{include}"', device)]
    missed += device_breaches("comm/c.cuh", device.get) + relative_breaches("comm/a.cc", '#include "comm/b.h"', device)
    missed += [f"not found: {p}: {t}" for p, t in wrong_builds if not build_breaches(pathlib.PurePath(p), t)]
    missed += [f"wrongly found: {p}: {t}" for p, t in right_builds if build_breaches(pathlib.PurePath(p), t)]
    missed += [f"not found: {p}: {t}" for p, t in wrong if not breaches(pathlib.PurePath(p), t)]
    return missed + [f"wrongly found: {p}: {t}" for p, t in right if breaches(pathlib.PurePath(p), t)]


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    found = self_test()
    texts = {str(path): text for path, text in sources(root)}
    for path, text in texts.items():
        found += breaches(pathlib.PurePath(path), text)
        found += relative_breaches(path, text, texts)
        if DEVICE_CODE.match(path):
            found += device_breaches(path, texts.get)
    count = len(texts)
    for path in sorted(root.glob("*/**/BUILD")):
        if path.relative_to(root).parts[0] in FOLDERS:
            count += 1
            found += build_breaches(path.relative_to(root), path.read_text(encoding="utf-8"))
    for line in found:
        print(line)
    print(f"{count} files, {len(found)} breaches")
    return 1 if found or count == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
