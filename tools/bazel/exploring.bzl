"""EXPLORING: the tags of a test that looks elsewhere at each run, by a seed or by what threads happen to do.

`external` runs it even if nothing it depends on has changed, `no-cache` keeps its result out of the disk cache, which other
trees share: a run from a cache explores nothing.
"""

EXPLORING = [
    "external",
    "no-cache",
]
