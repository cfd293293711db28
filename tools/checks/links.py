"""What the pages link to and name is there: targets of links, paths of files in `backticks`, and in a folder's README
`names` of files below it.

    tools/checks/links.py ROOT
"""

import pathlib
import re
import sys

LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")
QUOTED = re.compile(r"`([^`\n]+)`")
FOLDERS = ("base", "comm", "docs", "moe", "offload", "ops", "python", "testing", "tools")
# Within our folders, with an ending: what a build makes is named by its target or under bazel-bin.
ENDING = r"\.(?:h|cc|cu|cuh|inc|py|sh|md|bzl|jsonl|lock)(?![\w*])"
NAMED = re.compile(rf"(?<![\w./-])(?:{'|'.join(FOLDERS)})/[\w./-]*\w{ENDING}")
BARE = re.compile(rf"(?<![\w./*-])\w+{ENDING}")


def targets(text):
    """(what is named, whether relative to the page's own folder)"""
    for target, _ in LINK.findall(text):
        if "://" not in target:
            yield target, True
    for quoted in QUOTED.findall(text):
        for name in NAMED.findall(quoted):
            yield name, False


def breaches(page, text, exists):
    """`page` is relative to the root; exists(path) says whether something is there."""
    found = []
    for target, relative in targets(text):
        path = page.parent / target if relative else pathlib.PurePath(target)
        if not exists(path):
            found.append(f"{page}: {target} is not there")
    return found


def strangers(folder, text, names):
    """Names without a folder in the README of `folder` that none of the files below it has."""
    bare = [name for quoted in QUOTED.findall(text) for name in BARE.findall(quoted)]
    return [f"{folder}/README.md: no file below is named {name}" for name in bare if name not in names]


def self_test():
    there = {"docs/a.md", "comm/group.h"}

    def missed(text):
        return breaches(pathlib.PurePath("docs/b.md"), text, lambda path: str(path) in there)

    wrong = ["[x](c.md)", "see `comm/grup.h`", "`cp rows docs/rows.jsonl`", "[y](a.md) and [z](no.md#part)"]
    right = ["[x](a.md)", "[x](a.md#part)", "`comm/group.h`", "[w](https://a.b/c.md)", "`bazel-bin/comm/none.h`"]
    if strangers("comm", "`b.h` `x/c.h` `*_d.h` c.cc", {"b.h"}) or not strangers("comm", "`a.h`", {"b.h"}):
        return ["a README's bare names are not told apart"]
    return [f"not found: {t}" for t in wrong if not missed(t)] + [f"wrongly found: {t}" for t in right if missed(t)]


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    found, pages = self_test(), 0
    for page in sorted([*root.glob("*.md"), *(p for f in FOLDERS for p in (root / f).rglob("*.md"))]):
        pages += 1
        found += breaches(page.relative_to(root), page.read_text(encoding="utf-8"),
                          lambda path: (root / path).exists())
    for folder in FOLDERS:
        readme = root / folder / "README.md"
        if readme.is_file():
            names = {path.name for path in (root / folder).rglob("*")}
            found += strangers(folder, readme.read_text(encoding="utf-8"), names)
    for line in found:
        print(line)
    print(f"{pages} pages, {len(found)} breaches")
    return 1 if found or pages < 10 else 0


if __name__ == "__main__":
    sys.exit(main())
