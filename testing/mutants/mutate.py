#!/usr/bin/python3
"""Writes a copy of a file with one text replaced: mutate.py SOURCE OLD_FILE NEW_FILE OUT. The text must occur once."""

import pathlib
import sys

source, old, new, out = (pathlib.Path(path) for path in sys.argv[1:])
text = source.read_text()
wanted = old.read_text().rstrip("\n")
if text.count(wanted) != 1:
    sys.exit(f"{source}: occurs {text.count(wanted)} times, not once: {wanted!r}")
out.write_text(text.replace(wanted, new.read_text().rstrip("\n")))
