#!/usr/bin/env bash
# The page of measurements is what its rows give, and a page that is not is found.
set -euo pipefail
python3 tools/bench/report.py --check docs/benchmarks
cp -rL docs/benchmarks "$TEST_TMPDIR/spoiled"
chmod -R u+w "$TEST_TMPDIR/spoiled"
sed -i 's/0\.7/0.6/' "$TEST_TMPDIR/spoiled/h200.md"
if python3 tools/bench/report.py --check "$TEST_TMPDIR/spoiled" 2> /dev/null; then
  echo "a spoiled page was not found"
  exit 1
fi
