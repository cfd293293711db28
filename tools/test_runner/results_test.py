"""Tests of results.py; run by results_test.sh."""

import json
import pathlib
import tempfile
import unittest

import results

PASSED = '<testsuites><testsuite><testcase name="a" classname="S" status="run"/></testsuite></testsuites>'
FAILED = '<testsuite><testcase name="a" classname="S"><failure message="x"/></testcase></testsuite>'
SKIPPED = ('<testsuite><testcase name="a" classname="S" result="skipped">'
           '<skipped message="f.cc:1&#10;no GPU"/></testcase></testsuite>')


class CountReport(unittest.TestCase):
    def test_a_passed_case(self):
        self.assertEqual(results.count_report("//x:t", PASSED, True).line(), "1 passed, 0 failed")

    def test_a_failed_case_is_named(self):
        counts = results.count_report("//x:t", FAILED, False)
        self.assertEqual(counts.line(), "0 passed, 1 failed")
        self.assertEqual(counts.failures, ["//x:t S.a"])

    def test_a_skipped_case_gives_its_reason(self):
        counts = results.count_report("//x:t", SKIPPED, True)
        self.assertEqual(counts.line(), "0 passed, 0 failed, 1 skipped")
        self.assertEqual(counts.skip_reasons, {"no GPU": 1})

    def test_a_target_that_crashed_after_its_cases_passed_is_a_failure(self):
        self.assertEqual(results.count_report("//x:t", PASSED, False).line(), "1 passed, 1 failed")

    def test_no_case_at_all_is_a_failure(self):
        self.assertEqual(results.count_report("//x:t", "<testsuite/>", True).failed, 1)

    def test_a_torn_report_is_a_failure(self):
        self.assertEqual(results.count_report("//x:t", "<testsuite><te", True).failed, 1)


class CountEvents(unittest.TestCase):
    def event(self, label, status, report):
        folder = tempfile.mkdtemp()
        path = pathlib.Path(folder) / "test.xml"
        path.write_text(report)
        return json.dumps({
            "id": {"testResult": {"label": label}},
            "testResult": {"status": status,
                           "testActionOutput": [{"name": "test.xml", "uri": path.as_uri()}]},
        })

    def configured(self, label):
        return json.dumps({"id": {"targetConfigured": {"label": label}},
                           "configured": {"targetKind": "cc_test rule"}})

    def test_a_target_that_did_not_build_is_a_failure(self):
        events = "\n".join([self.configured("//x:a"), self.configured("//x:b"),
                            self.event("//x:a", "PASSED", PASSED)])
        counts = results.count_events(events)
        self.assertEqual(counts.line(), "1 passed, 1 failed")
        self.assertIn("//x:b", counts.failures[0])

    def test_a_time_out_is_a_failure(self):
        events = self.event("//x:a", "TIMEOUT", "")
        self.assertEqual(results.count_events(events).line(), "0 passed, 1 failed")


if __name__ == "__main__":
    unittest.main()
