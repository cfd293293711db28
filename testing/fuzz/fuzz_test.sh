#!/usr/bin/env bash
# fuzz_test.sh PROGRAM PARSER: libFuzzer from the corpus in the tree; 3 seconds, or 10 minutes where
# STOKER_LONG is set. What it finds is left in the test's outputs, with the command to repeat it.
set -euo pipefail
program=$1 parser=$2
seconds=3
[ -z "${STOKER_LONG:-}" ] || seconds=600
corpus=$TEST_TMPDIR/corpus
cp -rL "testing/fuzz/corpus/$parser" "$corpus"
chmod -R u+w "$corpus"
found=${TEST_UNDECLARED_OUTPUTS_DIR:-$TEST_TMPDIR}/
seed=$((${STOKER_SEED:-1} % 4294967295 + 1))
STOKER_FUZZ=$parser "$program" -max_total_time="$seconds" -seed="$seed" -timeout=10 -rss_limit_mb=2048 \
  -max_len=4096 -artifact_prefix="$found" -print_final_stats=1 "$corpus" > "$TEST_TMPDIR/log" 2>&1 || {
  tail -60 "$TEST_TMPDIR/log"
  echo "Repeat: STOKER_FUZZ=$parser $program $found<file>"
  exit 1
}
tail -8 "$TEST_TMPDIR/log"
# A parser that refuses everything at its first byte has next to no coverage.
cov=$(grep -o 'cov: [0-9]*' "$TEST_TMPDIR/log" | tail -1 | cut -d' ' -f2)
[ "$cov" -gt 60 ] || { echo "only $cov edges were reached: is the corpus still good input?"; exit 1; }
