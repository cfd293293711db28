#!/usr/bin/env bash
# Runs the unit tests of the runner and reports them as one case.
set -euo pipefail
cd "$(dirname "$0")"
python3 -m unittest -v bounded_test results_test kernel_table_test runner_test 2>&1
