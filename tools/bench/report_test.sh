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
python3 tools/bench/guards.py --check docs/benchmarks
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

# The table of the guards: written from rows, found when spoiled, bold where they cost too much.
build='{"registers":64,"local_bytes":0,"ctas_per_sm":2,"clusters":66}'
guards() { # tokens, cost
  echo '{"world":4,"hidden":7168,"tokens":'"$1"',"top_k":8,"dtype":"bf16","placement":"streams","exchange":"one-shot",
    "launch":"L","pairs":40,"us_shipped":5.1,"us_unguarded":5.0,"us_cost":'"$2"',"us_cost_ci95":0.01,"us_control":0.0,
    "us_control_ci95":0.01,"shipped":'"$build"',"unguarded":'"$build"',"gpu":"G","driver":"D","date":"T","commit":"C",
    "ptx_hash":"P"}' | tr -d '\n'
  echo
}
{ guards 1 0.1; guards 16 0.099; guards 16 0.101; guards 64 0.099; } > "$TEST_TMPDIR/copy/h200_guards.jsonl"
python3 tools/bench/guards.py "$TEST_TMPDIR/copy"
python3 tools/bench/guards.py --check "$TEST_TMPDIR/copy"
page=$TEST_TMPDIR/copy/h200_no_hang.md
[ "$(grep -c '| \*\*+0.101 .*(+2.0%)\*\* |' "$page")" = 1 ] || wrong "a dear guard is not bold"
[ "$(grep -c '| +0\.[01][0-9]* ± 0.010 us' "$page")" = 2 ] || wrong "not a line a cell"
sed -i 's/+0\.101/+0.001/' "$page"
if python3 tools/bench/guards.py --check "$TEST_TMPDIR/copy" 2> /dev/null; then wrong "a spoiled table passes"; fi

printf '<svg/>' > "$TEST_TMPDIR/copy/h200_time.svg"
if python3 tools/bench/plot --check "$TEST_TMPDIR/copy" 2> /dev/null; then wrong "a spoiled plot was not found"; fi
