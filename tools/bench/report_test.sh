#!/usr/bin/env bash
# The page of measurements is what its rows give, stale rows are marked, and a page that is wrong is found.
set -euo pipefail
kernels=$(cat moe/kernels_hash_text.txt)
report() { python3 tools/bench/report.py "$@" "$TEST_TMPDIR/copy" 2> /dev/null; }
wrong() { echo "FAILED: $1"; exit 1; }
export PYTHONDONTWRITEBYTECODE=1
python3 tools/bench/targets_test.py
python3 tools/bench/report.py --check --kernels "$kernels" docs/benchmarks
python3 tools/bench/plot --check docs/benchmarks
cp -rL docs/benchmarks "$TEST_TMPDIR/copy"
chmod -R u+w "$TEST_TMPDIR/copy"
page=$TEST_TMPDIR/copy/h200.md

# Rows of these kernels are not marked, rows of others are, cell by cell.
sed -i 's/"ptx_hash":"[0-9a-f]*"/"ptx_hash":"'"$kernels"'"/' "$TEST_TMPDIR/copy/h200.jsonl"
report --kernels "$kernels"
if grep -q '"ptx_hash"' "$TEST_TMPDIR/copy/h200.jsonl" && grep -q "older kernel" "$page"; then
  wrong "fresh rows are marked"
fi
report --kernels 0123456789abcdef
cells=$(grep '"kernel":"stoker",' "$TEST_TMPDIR/copy/h200.jsonl" | grep -c '"placement":"streams"')
[ "$(grep -c ' † |' "$page")" = "$cells" ] || wrong "not every stale cell is marked"
if report --fresh --kernels 0123456789abcdef; then wrong "stale rows pass as fresh"; fi

sed -i 's/0\.7/0.6/' "$page"
if report --check --kernels 0123456789abcdef; then wrong "a spoiled page was not found"; fi

printf '<svg/>' > "$TEST_TMPDIR/copy/h200_time.svg"
if python3 tools/bench/plot --check "$TEST_TMPDIR/copy" 2> /dev/null; then wrong "a spoiled plot was not found"; fi
