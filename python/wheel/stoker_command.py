"""The command `stoker`: the program that the wheel carries. Outside the package, whose import would load torch."""

import importlib.util
import os
import pathlib
import sys


def main():
    if sys.argv[1:2] == ["doctor"] and "--faults" not in sys.argv[2:]:
        from stoker import doctor

        return doctor.main(sys.argv[2:])
    spec = importlib.util.find_spec("stoker")
    program = pathlib.Path(spec.submodule_search_locations[0]) / "bin" / "stoker" if spec else None
    if program is None or not program.exists():
        sys.exit(f"stoker: the program is missing ({program}); reinstall the package")
    os.execv(program, [str(program), *sys.argv[1:]])
