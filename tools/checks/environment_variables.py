"""Every environment variable that is read stands in a table, and every table is true.

    tools/checks/environment_variables.py ROOT

The product's: EnvironmentVariables::Rows (base/environment_variables.cc) and VARIABLES
(python/stoker/environment_variables.py), which together are the table of README.md, word for word, with STOKER_CACHE,
which the scripts read. Those that only tests read: the table of testing/README.md. Product C++ reads the environment in
base/environment_variables.cc alone.
"""

import pathlib
import re
import runpy
import sys

FOLDERS = ("base", "comm", "moe", "offload", "ops", "python", "testing", "tools")
OURS = r"STOKER_[A-Z0-9_]+"
READ = re.compile(rf'(?:getenv|FromEnvironment|\bget|getter)\(\s*"({OURS})"|environ\[\s*"({OURS})"|\$\{{({OURS})')
FOREIGN_READ = re.compile(r'os\.environ(?:\.get\(|\[)\s*"([A-Z0-9_]+)"')
TABLE_ROW = re.compile(r"^\| `(\w+)`(?:, `(\w+)`)? \| (.*?) \| (.*?) \|$", re.MULTILINE)
OF_SCRIPTS = {"STOKER_CACHE"}
WHERE_READ = "base/environment_variables.cc"


def is_test(path):
    of_folder = path.parts[0] == "testing" or "tests" in path.parts
    return of_folder or re.search(r"(_test|_fake|^test_.*)$", path.stem) is not None


def rows_of_cpp(text):
    """{name: (values, meaning)}"""
    block = text[text.index("new std::vector<Row>{"):]
    joined = re.sub(r'"\s*\n\s*"', "", block[:block.index("};")])
    return {m[0]: (m[1], m[2]) for m in re.findall(r'\{"([^"]*)",\s*"([^"]*)",\s*"([^"]*)",\s*"([^"]*)"\}', joined)}


def rows_of_page(text):
    return {name: (values, meaning) for *names, values, meaning in TABLE_ROW.findall(text)
            for name in names if name.startswith("STOKER_")}


def breaches(path, text, product, of_tests, foreign):
    """What the reads of one file break; `path` is relative to the root."""
    found = []
    known = product | OF_SCRIPTS | (of_tests if is_test(path) or path.parts[0] == "tools" else set())
    for groups in READ.findall(text):
        name = next(filter(None, groups))
        if name not in known:
            found.append(f"{path}: reads {name}, which stands in no table ({', '.join(sorted(known))})")
    if path.suffix in (".cc", ".h") and not is_test(path) and "getenv(" in text and str(path) != WHERE_READ:
        found.append(f"{path}: calls getenv; {WHERE_READ} alone does, and passes values on")
    if path.parts[:2] == ("python", "stoker"):
        found += [f"{path}: reads {name}, which python/stoker/environment_variables.py does not have"
                  for name in FOREIGN_READ.findall(text) if name not in foreign | product]
    return found


def self_test():
    """A breach of every rule is found."""
    sets = ({"STOKER_A"}, {"STOKER_T"}, {"OTHER"})
    wrong = [("moe/a.cc", 'getenv("STOKER_A")'), ("testing/a.h", 'std::getenv("STOKER_B")'),
             ("python/stoker/a.py", 'os.environ.get("STOKER_T")'), ("python/stoker/a.py", 'os.environ["HOME"]'),
             ("tools/setup", "${STOKER_B:-1}"), ("ops/a.cc", 'get("STOKER_T")')]
    right = [("testing/a.h", 'std::getenv("STOKER_T")'), ("python/stoker/a.py", 'os.environ.get("OTHER")'),
             (WHERE_READ, 'std::getenv("STOKER_A")'), ("tools/setup", "${STOKER_CACHE:-x}")]
    missed = [f"not found: {p}: {t}" for p, t in wrong if not breaches(pathlib.PurePath(p), t, *sets)]
    return missed + [f"wrongly found: {p}: {t}" for p, t in right if breaches(pathlib.PurePath(p), t, *sets)]


def sources(root):
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*")):
            if path.is_file() and (path.suffix in (".h", ".cc", ".py", ".sh", ".bzl") or "." not in path.name):
                yield path.relative_to(root), path.read_text(encoding="utf-8", errors="replace")


def compare(page, written, meant):
    """What a page's table says otherwise than the code's."""
    found = [f"{page}: {name} is missing" for name in sorted(set(meant) - set(written))]
    found += [f"{page}: {name} is read by nothing in that table's reach" for name in sorted(set(written) - set(meant))]
    return found + [f"{page}: {name} is {written[name]}; the code's table says {meant[name]}"
                    for name in sorted(set(meant) & set(written)) if meant[name] and written[name] != meant[name]]


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ".").resolve()
    python = runpy.run_path(str(root / "python/stoker/environment_variables.py"))
    product = rows_of_cpp((root / WHERE_READ).read_text(encoding="utf-8"))
    product |= {v.name: (v.values, v.meaning) for v in python["VARIABLES"]}
    of_tests = rows_of_page((root / "testing/README.md").read_text(encoding="utf-8"))
    found, read, count = self_test(), set(), 0
    for path, text in sources(root):
        if path.name == pathlib.Path(__file__).name and path.parts[0] == "tools":
            continue  # its own examples
        count += 1
        found += breaches(path, text, set(product), set(of_tests), {v.name for v in python["FOREIGN"]})
        read |= {next(filter(None, groups)) for groups in READ.findall(text)}
    meant = {**product, **{name: None for name in OF_SCRIPTS}}
    found += compare("README.md", rows_of_page((root / "README.md").read_text(encoding="utf-8")), meant)
    found += [f"testing/README.md: nothing reads {name}" for name in sorted(set(of_tests) - read)]
    found += [f"the code's tables: nothing reads {name}" for name in sorted(set(product) - read)]
    for line in found:
        print(line)
    print(f"{count} files, {len(product)} variables of the product, {len(of_tests)} of tests, {len(found)} breaches")
    return 1 if found or len(product) < 5 else 0


if __name__ == "__main__":
    sys.exit(main())
