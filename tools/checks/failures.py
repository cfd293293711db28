"""Every error message of comm/, moe/ and base/ stands in docs/failures.md.

    tools/checks/failures.py ROOT        exit status 1 and a line for every message that is missing
    tools/checks/failures.py --list ROOT  prints what is looked for

Of each call of an absl error function the longest literal piece is looked for, whitespace normalised: a message that is
reworded must be reworded on the page, and a new one explained there. Codes of failure records as well.
"""

import pathlib
import re
import sys

FOLDERS = ("base", "comm", "moe")
CALL = re.compile(r"absl::(?:InvalidArgument|FailedPrecondition|DeadlineExceeded|Unavailable|ResourceExhausted|"
                  r"Internal|DataLoss|Unimplemented|PermissionDenied|NotFound|AlreadyExists|Aborted)Error\(")
FORMAT = re.compile(r"absl::StrFormat\(")
LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')
CODE = re.compile(r"^  (k[A-Z]\w+) = \d+,", re.MULTILINE)
QUOTE = "\0"  # stands for an escaped quote while literals are joined
LEAST = 8  # characters that identify a message


def squeezed(text):
    return re.sub(r"\s+", " ", text).strip()


def arguments(text, start):
    """The text of a call's arguments: up to its closing bracket."""
    depth, i = 1, start
    while depth and i < len(text):
        if text[i] == '"':
            i = LITERAL.match(text, i).end()
            continue
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        i += 1
    return text[start:i - 1]


def longest_piece(call):
    """Adjacent literals are one; format directives cut them."""
    joined = re.sub(r'"\s*\n?\s*"', "", call.replace('\\"', QUOTE))
    pieces = []
    for literal in LITERAL.findall(joined):
        literal = literal.replace(QUOTE, '"').replace("\\n", " ")
        pieces += re.split(r"%[-+0-9.*]*[a-z]", literal)
    return squeezed(max(pieces, key=len, default=""))


def messages(root):
    for folder in FOLDERS:
        for path in sorted((root / folder).glob("*.cc")):
            if path.stem.endswith("_test"):
                continue
            text = path.read_text(encoding="utf-8")
            starts = [m.end() for m in CALL.finditer(text)]
            if path.name == "health.cc":
                starts += [m.end() for m in FORMAT.finditer(text)]
            for start in starts:
                piece = longest_piece(arguments(text, start))
                if len(piece) >= LEAST:
                    yield path.relative_to(root), text.count("\n", 0, start) + 1, piece


def codes(root):
    text = (root / "comm/protocol.h").read_text(encoding="utf-8")
    body = text[text.index("enum class FailureCode"):]
    return CODE.findall(body[:body.index("};")])


def self_test():
    """What is wrong with the extraction itself."""
    call = 'absl::StrCat("group \\"", name, "\\" has ", n,\n   " ranks; at "\n   "most ", 8)'
    return [] if longest_piece(call) == "ranks; at most" else [f"not the longest piece: {longest_piece(call)}"]


def main(words):
    listing = words[:1] == ["--list"]
    root = pathlib.Path(words[-1])
    page = squeezed((root / "docs/failures.md").read_text(encoding="utf-8")) if not listing else ""
    found, missing = 0, 0
    for path, line, piece in messages(root):
        found += 1
        if listing:
            print(f"{path}:{line}: {piece}")
        elif piece not in page:
            missing += 1
            print(f"{path}:{line}: not in docs/failures.md: {piece}")
    for code in codes(root):
        found += 1
        if not listing and f"`{code}`" not in page:
            missing += 1
            print(f"comm/protocol.h: not in docs/failures.md: `{code}`")
    broken = self_test()
    for line in broken:
        print(line)
    print(f"{found} messages, {missing} missing")
    return 1 if missing or broken or found < 50 else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
