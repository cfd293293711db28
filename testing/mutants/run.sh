#!/usr/bin/env bash
# Runs binaries of gtest cases: arguments are EXPECTED,NAME,BINARY,FILTER with EXPECTED pass or fail. A mutant that runs
# into the limit is killed, too: it hangs.
set -uo pipefail
# Else a mutant's failures would be written as this test's own.
unset XML_OUTPUT_FILE
limit=12
killed=0
mutants=0
wrong=0
for argument in "$@"; do
  IFS=, read -r expected name binary filter <<< "$argument"
  timeout "$limit" "$binary" --gtest_brief=1 --gtest_filter="$filter" > "$TEST_TMPDIR/log" 2>&1
  status=$?
  if [ "$expected" = pass ]; then
    [ $status = 0 ] || { echo "without a defect, $name fails ($status):"; tail -20 "$TEST_TMPDIR/log"; wrong=1; }
    grep -q "PASSED" "$TEST_TMPDIR/log" || { echo "$name ran nothing"; wrong=1; }
    continue
  fi
  mutants=$((mutants + 1))
  if [ $status = 0 ]; then
    echo "  survived: $name"
  else
    killed=$((killed + 1))
    how=$(grep -m1 -o '^\[  FAILED  \] [A-Za-z/]*\.[A-Za-z0-9]*' "$TEST_TMPDIR/log" || echo "it crashes")
    [ $status = 124 ] && how="it hangs"
    echo "  killed: $name, $how"
  fi
done
echo "killed $killed/$mutants"
[ $wrong = 0 ] && [ $mutants -gt 0 ] && [ $killed = $mutants ]
