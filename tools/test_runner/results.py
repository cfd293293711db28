"""What a Bazel test run gave: cases counted from the tests' XML reports.

A report is what GoogleTest and pytest write (JUnit's XML). A target without a report counts as one
failed case: it did not build, crashed, or ran out of time.
"""

import dataclasses
import json
import pathlib
import urllib.parse
import xml.etree.ElementTree as ElementTree


@dataclasses.dataclass
class Counts:
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    failures: list[str] = dataclasses.field(default_factory=list)
    skip_reasons: dict[str, int] = dataclasses.field(default_factory=dict)

    def add(self, other: "Counts") -> None:
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped
        self.failures += other.failures
        for reason, count in other.skip_reasons.items():
            self.skip_reasons[reason] = self.skip_reasons.get(reason, 0) + count

    def line(self) -> str:
        text = f"{self.passed} passed, {self.failed} failed"
        return f"{text}, {self.skipped} skipped" if self.skipped else text


def _skip_reason(case: ElementTree.Element) -> str:
    skipped = case.find("skipped")
    text = skipped.get("message") or skipped.text or "" if skipped is not None else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no reason given"


def count_report(label: str, report: str, target_passed: bool) -> Counts:
    """The cases of one target's XML report."""
    counts = Counts()
    try:
        root = ElementTree.fromstring(report)
    except ElementTree.ParseError:
        return Counts(failed=1, failures=[f"{label}: its report is not XML"])
    for case in root.iter("testcase"):
        name = f"{label} {case.get('classname', '')}.{case.get('name', '')}"
        if case.find("failure") is not None or case.find("error") is not None:
            counts.failed += 1
            counts.failures.append(name)
        elif case.find("skipped") is not None or case.get("result") == "skipped":
            counts.skipped += 1
            reason = _skip_reason(case)
            counts.skip_reasons[reason] = counts.skip_reasons.get(reason, 0) + 1
        elif case.get("status") == "notrun":
            continue
        else:
            counts.passed += 1
    if not target_passed and counts.failed == 0:
        counts.failed += 1
        counts.failures.append(f"{label}: the target failed (crash, time-out or build)")
    if target_passed and counts.passed + counts.failed + counts.skipped == 0:
        counts.failed += 1
        counts.failures.append(f"{label}: it ran no test case")
    return counts


def count_events(events: str) -> Counts:
    """The cases of a run, from Bazel's build event file (one JSON object a line)."""
    reports: dict[str, tuple[bool, str]] = {}
    expected: set[str] = set()
    for line in events.splitlines():
        event = json.loads(line)
        identity = event.get("id", {})
        if "testResult" in identity and "testResult" in event:
            result = event["testResult"]
            text = ""
            for output in result.get("testActionOutput", []):
                if output.get("name") == "test.xml":
                    path = urllib.parse.unquote(urllib.parse.urlparse(output["uri"]).path)
                    if pathlib.Path(path).is_file():
                        text = pathlib.Path(path).read_text(encoding="utf-8", errors="replace")
            reports[identity["testResult"]["label"]] = (result.get("status") == "PASSED", text)
        if "targetConfigured" in identity:
            kind = event.get("configured", {}).get("targetKind", "")
            if kind.endswith("_test rule"):
                expected.add(identity["targetConfigured"]["label"])
    counts = Counts()
    for label, (passed, text) in sorted(reports.items()):
        counts.add(count_report(label, text, passed))
    for label in sorted(expected - set(reports)):
        counts.add(Counts(failed=1, failures=[f"{label}: it did not build or did not run"]))
    return counts
