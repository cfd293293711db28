"""Tests of kernel_table.py; run by results_test.sh."""

import pathlib
import unittest

import kernel_table

TWO_KERNELS = ".visible .entry a(\n)\n.func helper(\n)\n.visible .entry b(\n)\n"


def span(name, start, seconds, thread=1):
    return {"name": name, "ts": int(start * 1e6), "dur": int(seconds * 1e6), "tid": thread}


def profile(*spans):
    return {"traceEvents": [{"name": "thread_name", "ph": "M"}, *spans]}


class Summarize(unittest.TestCase):
    def test_the_time_is_that_of_the_process_inside_the_objects_action(self):
        built = profile(span(kernel_table.OBJECT_ACTIONS[0], 10, 14), span("subprocess.run", 10.1, 13.5),
                        span("subprocess.run", 30, 99), span("subprocess.run", 10.1, 13.8, thread=2))
        summary = kernel_table.summarize(built, TWO_KERNELS)
        self.assertIn("2 of at most 300 kernels; nvcc 13.5 s of 480 s", summary.line)
        self.assertEqual(summary.breaches, [])

    def test_the_times_of_the_parts_add_up(self):
        first, second = kernel_table.OBJECT_ACTIONS[:2]
        built = profile(span(first, 10, 14), span("subprocess.run", 10.1, 13.5), span(second, 10, 9, thread=2),
                        span("subprocess.run", 10.1, 8.5, thread=2))
        self.assertIn("nvcc 22.0 s of 480 s", kernel_table.summarize(built, TWO_KERNELS).line)

    def test_the_rule_announces_the_object_by_its_path(self):
        rule = pathlib.Path(__file__).parents[1] / "bazel/cuda.bzl"
        self.assertIn('progress_message = "Compiling %s with nvcc" % output.short_path', rule.read_text())

    def test_an_object_from_the_cache_gives_no_time(self):
        cached = profile(span(kernel_table.OBJECT_ACTIONS[0], 10, 0.1), span("check cache hit", 10, 0.05))
        self.assertIn("nvcc did not run", kernel_table.summarize(cached, TWO_KERNELS).line)

    def test_the_ptx_of_the_table_is_not_its_object(self):
        other = profile(span("Compiling moe/kernels.sm_90.ptx with nvcc", 10, 9), span("subprocess.run", 10, 8))
        self.assertIsNone(kernel_table.nvcc_seconds(other))

    def test_each_limit_is_a_breach(self):
        slow = profile(span(kernel_table.OBJECT_ACTIONS[0], 0, 500), span("subprocess.run", 1, 481))
        many = "".join(f".visible .entry k{i}(\n)\n" for i in range(301))
        breaches = kernel_table.summarize(slow, many).breaches
        self.assertEqual(len(breaches), 2)
        self.assertIn("301 kernels", breaches[0])
        self.assertIn("481 s", breaches[1])

    def test_a_table_at_its_limits_is_none(self):
        at_limit = profile(span(kernel_table.OBJECT_ACTIONS[0], 0, 500), span("subprocess.run", 1, 480))
        many = "".join(f".visible .entry k{i}(\n)\n" for i in range(300))
        self.assertEqual(kernel_table.summarize(at_limit, many).breaches, [])

    def test_no_kernel_at_all_is_a_breach(self):
        self.assertIn("no kernel found", kernel_table.summarize(profile(), "").breaches[0])


if __name__ == "__main__":
    unittest.main()
