"""What the rows of `stoker bench finalize` say about the targets: cells, verdicts and shares."""

import json


def load(path):
    """Rows of a file of JSON lines."""
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def cells(rows, placement="streams"):
    """(world, hidden, tokens) → kernel name → row; a kernel measured again in a later run counts from there."""
    table = {}
    for row in rows:
        if row["placement"] == placement:
            table.setdefault((row["world"], row["hidden"], row["tokens"]), {})[row["kernel"]] = row
    return {key: found for key, found in sorted(table.items()) if "us_median" in found.get("stoker", {})}


def median(cell, kernel):
    """Microseconds, or None where it was not measured or did not finish."""
    return cell.get(kernel, {}).get("us_median")


def flashinfer(cell):
    """The name of FlashInfer's fused kernel among the rows, its version included, or None."""
    return next((name for name in cell if name.startswith("flashinfer") and "all-reduce" not in name), None)


def spread(cell):
    """What Stoker's two measurements in the same turns differ by."""
    again = median(cell, "stoker again")
    return 0.0 if again is None else abs(cell["stoker"]["us_median"] - again)


def behind_finalize(cell):
    """Name and median of the fastest way that is not fused, or None."""
    names = [name for name in cell if (name == "unfused" or "all-reduce" in name) and median(cell, name)]
    return min(((name, median(cell, name)) for name in names), key=lambda way: way[1], default=None)


class Verdict:
    """One target in one cell: `ratio` is Stoker's median over the rival's, `over` over what is allowed."""

    def __init__(self, own, rival, limit):
        self.ratio = own / rival if rival else None
        self.over = own / limit if limit else None

    @property
    def holds(self):
        """A rival that did not finish where Stoker did is beaten."""
        return self.over is None or self.over <= 1.0


def against_flashinfer(cell):
    """At most 0.60 of its median or 1.15 of the bound; None where it was not measured."""
    name = flashinfer(cell)
    if name is None:
        return None
    rival = median(cell, name)
    return Verdict(cell["stoker"]["us_median"], rival, rival and max(0.60 * rival, 1.15 * bound(cell)))


def against_pr6631(cell):
    """At most 0.80 of its median or 1.15 of the bound; None where it is slower than FlashInfer's kernel as shipped."""
    rival, stock = median(cell, "pr6631"), median(cell, flashinfer(cell) or "")
    if rival is None or (stock is not None and rival > stock):
        return None
    return Verdict(cell["stoker"]["us_median"], rival, max(0.80 * rival, 1.15 * bound(cell)))


def against_the_rest(cell):
    """Faster than every way that is not fused; None where none was measured."""
    way = behind_finalize(cell)
    if way is None:
        return None
    # "Below", not "at most".
    return Verdict(cell["stoker"]["us_median"], way[1], way[1] * (1.0 - 1e-9))


TARGETS = [
    ("FlashInfer's fused kernel", "≤ max(0.60 × its median, 1.15 × bound)", against_flashinfer, 0.75),
    ("pr6631, where it is not slower than FlashInfer's", "≤ max(0.80 × its median, 1.15 × bound)", against_pr6631,
     0.90),
    ("the fastest way that is not fused", "< 1.00", against_the_rest, 1.00),
]


def bound(cell):
    """0 in rows that do not have it, or none that counts: then only the ratio counts.

    Where the accesses without waiting took longer than a whole launch they were not measured at their best, and the sum
    is no bound.
    """
    whole = cell["stoker"].get("bound_us", 0.0)
    return whole if whole - (median(cell, "floor") or 0.0) < cell["stoker"]["us_median"] else 0.0


class Share:
    """One target over all cells."""

    def __init__(self, table, judge, limit):
        verdicts = {key: judge(cell) for key, cell in table.items()}
        self.verdicts = {key: verdict for key, verdict in verdicts.items() if verdict is not None}
        self.held = sum(verdict.holds for verdict in self.verdicts.values())
        self.missed = {key: verdict for key, verdict in self.verdicts.items() if not verdict.holds}
        self.beyond = [key for key, verdict in self.missed.items() if verdict.ratio >= limit]

    @property
    def percent(self):
        return 100.0 * self.held / max(1, len(self.verdicts))


def wrong_protocols(table):
    """Cells in which the other exchange is faster by more than Stoker's two measurements differ: key → microseconds."""
    wrong = {}
    for key, cell in table.items():
        for other in ("stoker, one-shot", "stoker, two-shot"):
            time = median(cell, other)
            gain = cell["stoker"]["us_median"] - time if time else 0.0
            if gain > spread(cell):
                wrong[key] = gain
    return wrong


PARTS = ["launch edge", "epoch", "index to row", "push", "poll", "reduction", "epilogue"]


def budget(cell):
    """Microseconds of each part of a one-token launch and of the guards, or None where they were not measured."""
    times = [median(cell, f"part {i + 1}, {part}") for i, part in enumerate(PARTS)]
    if None in times:
        return None
    times.append(cell["stoker"]["us_median"])
    return [times[0]] + [after - before for before, after in zip(times, times[1:])]
