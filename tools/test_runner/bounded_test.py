"""Unit tests of bounded.py."""

import contextlib
import io
import time
import unittest

import bounded


class StreamTest(unittest.TestCase):
    def test_status_and_last_line(self):
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            self.assertEqual(bounded.stream(["sh", "-c", "echo one; echo; echo '== two =='; echo; exit 3"], 1),
                             (3, "two"))
        self.assertEqual(shown.getvalue().split(), ["one", "==", "two", "=="])

    def test_one_that_hangs_is_ended_with_its_children_and_named(self):
        start = time.monotonic()
        with contextlib.redirect_stdout(io.StringIO()):
            with self.assertRaisesRegex(TimeoutError, "ended after 0.01 min; its last line: started"):
                bounded.stream(["sh", "-c", "trap '' TERM; echo started; sleep 300"], 0.01)
        self.assertLess(time.monotonic() - start, 30)  # the sleep held the pipe, too


if __name__ == "__main__":
    unittest.main()
