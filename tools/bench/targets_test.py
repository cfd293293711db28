"""Verdicts, shares and the time budget, on rows made up for the purpose."""

import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import report  # noqa: E402
import targets  # noqa: E402


def rows(tokens=1, bound=None, world=4, placement="streams", **times):
    """Rows of one cell by kernel; underscores stand for what a keyword may not hold."""
    made = []
    for name, time in times.items():
        kernel = {"again": "stoker again", "two_shot": "stoker, two-shot",
                  "two_kernels": "flashinfer 9 two-shot all-reduce",
                  "flashinfer": "flashinfer 9"}.get(name, name)
        row = {"kernel": kernel, "world": world, "hidden": 8, "tokens": tokens, "placement": placement,
               "ptx_hash": "now", "gpu": "none", "driver": "1", "date": "2026", "commit": "c", "run": "r",
               "top_k": 8, "dtype": "bf16",
               "programmatic": True, "launch": "1 x (1 x 32) x 1", "err_floor": 0.0, "err_residual_mean": 6e-3,
               "err_residual_max": 0.0, "err_norm_mean": 1e-3, "err_norm_max": 0.0}
        row |= {"error": "did not finish"} if time is None else {"us_median": time, "us_min": time, "us_p90": time}
        if bound is not None:
            row["bound_us"] = bound
        made.append(row)
    return made


def cell(**arguments):
    return next(iter(targets.cells(rows(**arguments)).values()))


class Verdicts(unittest.TestCase):
    def test_a_ratio_below_the_target_holds_and_one_above_misses_by_its_excess(self):
        self.assertTrue(targets.against_flashinfer(cell(stoker=5.9, flashinfer=10.0)).holds)
        missed = targets.against_flashinfer(cell(stoker=6.6, flashinfer=10.0))
        self.assertFalse(missed.holds)
        self.assertAlmostEqual(missed.over, 1.1)

    def test_a_cell_near_its_bound_holds_whatever_the_ratio(self):
        self.assertTrue(targets.against_flashinfer(cell(stoker=9.0, flashinfer=10.0, bound=8.0)).holds)
        self.assertFalse(targets.against_flashinfer(cell(stoker=9.3, flashinfer=10.0, bound=8.0)).holds)

    def test_a_sum_whose_accesses_take_longer_than_the_launch_is_no_bound(self):
        self.assertTrue(targets.against_flashinfer(cell(stoker=9.0, flashinfer=10.0, bound=11.0, floor=3.0)).holds)
        self.assertFalse(targets.against_flashinfer(cell(stoker=9.0, flashinfer=10.0, bound=12.0, floor=3.0)).holds)

    def test_a_rival_that_does_not_finish_is_beaten(self):
        self.assertTrue(targets.against_flashinfer(cell(stoker=9.0, flashinfer=None)).holds)

    def test_pr6631_counts_only_where_it_is_not_slower_than_stock(self):
        self.assertIsNone(targets.against_pr6631(cell(stoker=5.0, flashinfer=6.0, pr6631=6.1)))
        self.assertIsNotNone(targets.against_pr6631(cell(stoker=5.0, flashinfer=6.0, pr6631=6.0)))
        self.assertIsNotNone(targets.against_pr6631(cell(stoker=5.0, flashinfer=None, pr6631=6.0)))

    def test_the_fastest_way_behind_a_finalize_must_be_beaten(self):
        self.assertTrue(targets.against_the_rest(cell(stoker=4.99, unfused=5.0, two_kernels=6.0)).holds)
        self.assertFalse(targets.against_the_rest(cell(stoker=5.0, unfused=5.0, two_kernels=6.0)).holds)
        self.assertFalse(targets.against_the_rest(cell(stoker=5.5, unfused=6.0, two_kernels=5.0)).holds)

    def test_shares(self):
        table = targets.cells(rows(tokens=1, stoker=5.0, flashinfer=10.0) + rows(tokens=4, stoker=8.0, flashinfer=10.0)
                              + rows(tokens=8, stoker=7.0, flashinfer=10.0) + rows(tokens=16, stoker=7.0))
        share = targets.Share(table, targets.against_flashinfer, 0.75)
        self.assertEqual((len(share.verdicts), share.held, len(share.missed)), (3, 1, 2))
        self.assertEqual([key[2] for key in share.beyond], [4])

    def test_the_other_exchange_must_be_faster_by_more_than_the_spread(self):
        self.assertFalse(targets.wrong_protocols(targets.cells(rows(stoker=5.0, again=5.1, two_shot=4.95))))
        self.assertTrue(targets.wrong_protocols(targets.cells(rows(stoker=5.0, again=5.1, two_shot=4.85))))

    def test_the_budget_is_differences_that_sum_to_the_whole(self):
        times = {f"part {i + 1}, {part}": 1.0 + i for i, part in enumerate(targets.PARTS)}
        parts = targets.budget(cell(stoker=8.5, **times))
        self.assertEqual(parts, [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.5])
        self.assertIsNone(targets.budget(cell(stoker=8.5)))


class Page(unittest.TestCase):
    def test_every_part_of_the_page_appears_with_its_rows(self):
        parts = {f"part {i + 1}, {part}": 1.0 + i for i, part in enumerate(targets.PARTS)}
        made = rows(bound=4.0, stoker=8.5, again=8.6, flashinfer=10.0, pr6631=None, unfused=9.0, floor=3.0,
                    two_shot=9.0, **parts) + rows(placement="loopback", stoker=2.0, again=2.1)
        for row in made:
            if row["kernel"] == "stoker":
                row |= {"bytes": 1000, "bytes_per_us": 125.0}
        page = report.page(made, "now")
        for expected in ("| 4 | 8 | 1 | 4.00 (2.12) | 8.50 (8.50, 8.50) | 8.60 | **10.00 (0.85) +42%** |",
                         "| 4 | 8 | 1.00 | 1.00 | 1.00 | 1.00 | 1.00 | 1.00 | 1.00 | 1.50 | 8.50 | 3.00 |",
                         "| 4 | 8 | 1 | 2.00 (2.00, 2.00) | 2.10 | 1 x (1 x 32) x 1 |",
                         "in 1 of 1 cells that have both",
                         "- stoker, residual_out: 6.00 at most, allowed 6.05"):
            self.assertIn(expected, page)


if __name__ == "__main__":
    unittest.main()
