"""The numbers of the style: length of files and lines, marks of unfinished work, a README in every folder of code.

    tools/checks/tidy.py ROOT
"""

import pathlib
import re
import shutil
import subprocess
import sys

LINES_MAX = 450
# 0: any number. "": BUILD files and scripts.
COLUMNS_MAX = {".h": 100, ".cc": 100, ".cu": 100, ".cuh": 100, ".inc": 120, ".py": 120, ".sh": 120, ".md": 0, ".bzl": 0,
               "": 0}
# Files above LINES_MAX, each with its reason.
LONG_FILES = {"docs/benchmarks/h200.md": "generated, a line a cell"}
MARKS = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"]) + r")\b")
FOLDERS = ["base", "comm", "moe", "offload", "ops", "python", "testing", "tools"]
NEED_README = FOLDERS
FORMATTED = {".h", ".cc", ".cu", ".cuh"}


def breaches(path, text):
    found = []
    lines = text.splitlines()
    if len(lines) > LINES_MAX and str(path) not in LONG_FILES:
        found.append(f"{path}: {len(lines)} lines; at most {LINES_MAX}: is it about one thing?")
    limit = COLUMNS_MAX.get(path.suffix, 0)
    for number, line in enumerate(lines, 1):
        if limit and len(line) > limit:
            found.append(f"{path}:{number}: {len(line)} columns; at most {limit}")
        if MARKS.search(line):
            found.append(f"{path}:{number}: a mark of unfinished work")
        if line != line.rstrip():
            found.append(f"{path}:{number}: white space at the end")
    return found


def unformatted(root, paths):
    """Sources that clang-format 14 would change; nothing where it is not installed, and said so."""
    tool = shutil.which("clang-format")
    if tool is None:
        print("clang-format is not installed: the format was not checked")
        return []
    version = subprocess.run([tool, "--version"], capture_output=True, text=True).stdout
    if " 14." not in version:
        print(f"clang-format 14 is pinned, this is {version.strip()}: the format was not checked")
        return []
    names = [str(root / path) for path in paths if path.suffix in FORMATTED]
    done = subprocess.run([tool, "--dry-run", "-Werror", "--style=file", *names], capture_output=True, text=True)
    return sorted({line.split(":")[0] + ": clang-format would change it" for line in done.stderr.splitlines()
                   if "code should be clang-formatted" in line})


def self_test():
    wrong = ["x" * 101, "// " + "TO" + "DO: later", "trailing ", "\n" * (LINES_MAX + 1)]
    return [f"not found: {text[:20]!r}" for text in wrong if not breaches(pathlib.PurePath("base/a.h"), text)]


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    found = self_test()
    everything = [p for folder in [*FOLDERS, "docs", ".ci"] for p in sorted((root / folder).rglob("*"))]
    paths = [p.relative_to(root) for p in everything + sorted(root.glob("[A-Z]*"))
             if p.is_file() and p.suffix in COLUMNS_MAX and "corpus" not in p.parts]
    for path in paths:
        found += breaches(path, (root / path).read_text(encoding="utf-8"))
    found += unformatted(root, paths)
    found += [f"{folder}/: has no README.md" for folder in NEED_README if not (root / folder / "README.md").is_file()]
    for line in found:
        print(line)
    print(f"{len(paths)} files, {len(found)} breaches")
    return 1 if found or not paths else 0


if __name__ == "__main__":
    sys.exit(main())
