"""Unit tests of what the runner makes of times, of what was asked for by name, and of results."""

import contextlib
import io
import json
import pathlib
import tempfile
import unittest
from unittest import mock

import results
import runner


class Budgets(unittest.TestCase):
    def test_a_step_within_its_budget_is_no_failure(self):
        report = runner.Report()
        report.step("build", 15 * 60.0, 15, "done")
        self.assertEqual(report.bad, [])
        self.assertIn("900.0 s of   900 s", report.lines[0])

    def test_a_step_over_its_budget_is_one_that_names_both(self):
        report = runner.Report()
        report.step("build", 901.0, 15, "done")
        self.assertEqual(report.bad, ["build took 901 s; its budget is 15 min"])
        self.assertIn("OVER ITS BUDGET", report.lines[0])

    def test_a_run_by_name_has_none(self):
        report = runner.Report(budgets=False)
        report.step("build", 1e6, 15, "done")
        self.assertEqual(report.bad, [])

    def test_a_cold_run_has_66_minutes(self):
        suites = sum(suite.budget_minutes for suite in runner.SUITES)
        self.assertEqual(runner.SETUP_MINUTES + runner.BUILD_MINUTES + suites, 66)


class Main(unittest.TestCase):
    """main() with set-up, build and suites that only take time."""

    def run_main(self, *words, passed=3, suite_seconds=1.0, setup_bad=()):
        def setup(report):
            report.step("set-up", 1.0, runner.SETUP_MINUTES, "done")
            report.bad += setup_bad

        def suite(one, report, total, _named):
            self.suites.append(one.name)
            report.step(one.name, suite_seconds, one.budget_minutes, "")
            total.add(results.Counts(passed=passed))

        self.suites, self.output = [], io.StringIO()
        with tempfile.TemporaryDirectory() as folder, mock.patch.object(runner, "run_setup", setup), \
                mock.patch.object(runner, "run_build", lambda report, named: None), \
                mock.patch.object(runner, "run_suite", suite), mock.patch("sys.argv", ["runner.py", *words]), \
                mock.patch.object(runner, "ROOT", pathlib.Path(folder)), \
                mock.patch.object(runner, "RECORD", pathlib.Path(folder) / "rows.jsonl"), \
                mock.patch.object(runner, "commit", lambda: "0123456789abcdef"), \
                contextlib.redirect_stdout(self.output):
            status = runner.main()
            rows = runner.RECORD.read_text(encoding="utf-8") if runner.RECORD.exists() else ""
        self.rows = [json.loads(row) for row in rows.splitlines()]
        self.last = self.output.getvalue().splitlines()[-1]
        return status

    def test_all_suites_run_and_the_last_line_counts(self):
        self.assertEqual(self.run_main(), 0)
        self.assertEqual(self.suites, [suite.name for suite in runner.SUITES])
        self.assertEqual(self.last, "15 passed, 0 failed")
        self.assertIn("Seed of exploring tests: 19088743", self.output.getvalue())
        self.assertEqual(self.rows, [])

    def test_a_budget_that_is_exceeded_fails_the_run(self):
        self.assertEqual(self.run_main("--suite", "fast", suite_seconds=301.0), 1)
        self.assertEqual(self.last, "3 passed, 1 failed")
        self.assertIn("FAILED fast took 301 s; its budget is 5 min", self.output.getvalue())

    def test_no_suite_runs_after_a_failed_set_up(self):
        self.assertEqual(self.run_main(setup_bad=["set-up failed"]), 1)
        self.assertEqual((self.suites, self.last), ([], "0 passed, 1 failed"))

    def test_no_case_at_all_is_a_failure(self):
        self.assertEqual(self.run_main(passed=0), 1)
        self.assertEqual(self.last, "0 passed, 1 failed")

    def test_a_run_by_name_is_recorded_with_date_and_commit(self):
        self.assertEqual(self.run_main("--long", "--config", "asan", suite_seconds=1e5), 0)
        self.assertEqual([(row["what"], row["result"], row["commit"]) for row in self.rows],
                         [("--long --config=asan", "15 passed, 0 failed", "0123456789abcdef")])
        self.assertRegex(self.rows[0]["date"], r"^\d{4}-\d\d-\d\d$")

    def test_runs_of_their_own_are_refused_beside_others(self):
        for words in (["--vllm", "--long"], ["--torch", "2.10.0", "--suite", "fast"]):
            said = io.StringIO()
            with contextlib.redirect_stderr(said), self.assertRaises(SystemExit) as ended:
                self.run_main(*words)
            self.assertEqual(ended.exception.code, 2)
            self.assertIn("is a run of its own", said.getvalue())


if __name__ == "__main__":
    unittest.main()
