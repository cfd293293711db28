#!/usr/bin/env bash
# The demonstration of faults: on CPU ranks every plan passes, and all of them are listed. Where there
# is a GPU, it runs there or is refused because of others.
set -euo pipefail
stoker=$PWD/$1
status=0
out=$("$stoker" doctor --faults 2>&1) || status=$?
fail() { echo "$out"; echo "FAILED: $1"; exit 1; }
[ "$status" != 2 ] || { grep -q "stoker doctor --faults: .*GPU" <<< "$out" || fail "refused for no reason"; exit 0; }
[ "$status" = 0 ] || fail "status $status"
grep -q ", 0 failed, " <<< "$out" || fail "no summary"
[ -e /dev/nvidiactl ] || grep -q "3 ranks as CPU ranks" <<< "$out" || fail "not on CPU ranks"
for plan in NeverLaunches DiesInMidKernel OtherTokens EpochWraps GraphReplayedWithoutPeers; do
  grep -q "^$plan " <<< "$out" || fail "no $plan"
done
grep -A1 "^NeverLaunches " <<< "$out" |
  grep -q "passed after [0-9.]* s: .kTimeout. at the deadline" || fail "what comes of it"
