#!/usr/bin/env bash
# The command's edges: usage, comparison verdicts, a page of a live group read from outside.
set -euo pipefail
PWD_AT_START=$PWD
stoker=$PWD/$1
fail() { echo "FAILED: $1"; exit 1; }
expect() { # expected status, text, command...
  local want=$1 text=$2; shift 2
  local got=0 out
  out=$("$@" 2>&1) || got=$?
  [ "$got" = "$want" ] || fail "status $got instead of $want: $* : $out"
  grep -q -- "$text" <<< "$out" || fail "no \"$text\" in: $out"
}
row() { echo "{\"op\":\"finalize\",\"kernel\":\"$1\",\"world\":4,\"hidden\":7168,\"tokens\":1,\"us_median\":$2}"; }

expect 2 "bench finalize" "$stoker"
expect 2 "bench finalize" "$stoker" bench nothing
expect 0 "offload overhead" "$stoker" --help
expect 0 "STOKER_CPU_KERNEL" "$stoker" bench finalize --help
expect 0 "^stoker [0-9]" "$stoker" --version
expect 1 "whole numbers from 1 to 8" "$stoker" bench finalize --world=9
expect 1 "--world=: whole numbers from 1 to 8" "$stoker" bench finalize --world=
expect 1 "--top_k=99: 1 to 32" "$stoker" bench finalize --top-k=99
expect 1 "--top_k=98: 1 to 32" "$stoker" bench finalize --top_k 98
expect 1 "--hidden=12: multiples of 8" "$stoker" bench finalize --hidden=12
expect 1 "CLUSTERSxCLUSTERxTHREADSxVECTORS" "$stoker" bench finalize --shapes=1x2
CUDA_VISIBLE_DEVICES='' expect 1 "--shapes needs a GPU" "$stoker" bench finalize --shapes=8x7x128x1
expect 1 "bf16 or fp16" "$stoker" bench finalize --dtype=fp8
CUDA_VISIBLE_DEVICES='' expect 1 "no GPU: only on one" "$stoker" bench guards --tokens=1
expect 1 "whole numbers from 1 to 8" "$stoker" bench guards --world=9
rows=$TEST_TMPDIR/rows
expect 0 "stoker again .* err [0-9.e-]* (floor" \
  "$stoker" bench finalize --world=2 --hidden=64 --tokens=1,3 --out="$rows"
[ "$(grep -c '"err_residual_mean":[0-9.e-]*,' "$rows")" = 4 ] || fail "not four rows: $(cat "$rows")"
expect 2 "cannot read" "$stoker" bench compare /nonexistent /nonexistent
expect 2 "cannot read /tmp as a file" "$stoker" bench compare /tmp /tmp
[ "$(grep -c '"bytes":[0-9]*,"bytes_per_us":[0-9.e+]*,' "$rows")" = 4 ] || fail "no bytes: $(cat "$rows")"
expect 0 "no GPU" "$stoker" bench finalize --world=2 --hidden=64 --tokens=1,3,5 --out="$rows" --resume
[ "$(grep -c '"tokens":3' "$rows")" = 2 ] || fail "a finished cell was measured again"
[ "$(grep -c '"tokens":5' "$rows")" = 2 ] || fail "a cell was left out"
expect 1 "flashinfer only in" "$stoker" bench finalize --against=pr6631,flashinfer
expect 1 "streams or loopback" "$stoker" bench finalize --placement=gpus
expect 1 "loopback needs a GPU" "$stoker" bench finalize --placement=loopback
cd "$TEST_TMPDIR"
{ row stoker 5.0; row "stoker again" 5.02; } > old
{ row stoker 4.0; row "stoker again" 4.01; } > fast
{ row stoker 5.03; row "stoker again" 5.01; } > same
{ row stoker 6.0; row "stoker again" 6.01; } > slow
row stoker 6.0 > alone
echo "not json" > rubbish
expect 0 "faster" "$stoker" bench compare old fast
expect 0 "same" "$stoker" bench compare old same
expect 1 "slower" "$stoker" bench compare old slow
expect 0 "unclear" "$stoker" bench compare old alone
expect 2 "not a row" "$stoker" bench compare old rubbish
row unfused 5.0 > of_others
expect 2 "of_others has no row of stoker" "$stoker" bench compare old of_others
expect 2 "No health page of this user with process 1" "$stoker" health --pid=1
expect 2 "offload bench" "$stoker" offload
expect 1 "nosuch: dynamic, index" "$stoker" offload bench --layers=1 --schedulers=nosuch
expect 1 "config.json" "$stoker" offload bench --checkpoint=/nonexistent
expect 1 "--layers=49: 1 to 48" "$stoker" offload bench --layers=49
expect 1 "--pairs=1: 2 to" "$stoker" offload bench --pairs=1
expect 1 "--pairs=0: 2 to" "$stoker" offload overhead --pairs=0
expect 1 "--cache_slots=-1: 1 to" "$stoker" offload bench --cache-slots=-1
# Where a result cannot be written nothing is measured.
expect 1 "--json=/nonexistent/rows" "$stoker" offload bench --layers=1 --json=/nonexistent/rows
expect 1 "--perfetto=/nonexistent/line" "$stoker" offload bench --layers=1 --perfetto=/nonexistent/line
expect 1 'called "nosuch"; there are .*scalar' env STOKER_CPU_KERNEL=nosuch "$stoker" offload bench --layers=1
expect 1 'called "nosuch"; there are .*scalar' env STOKER_CPU_KERNEL=nosuch "$stoker" offload overhead
mkdir -p package/stoker
expect 1 "belongs to the Python package" env PYTHONPATH="$PWD/package" "$stoker" doctor
printf 'import sys\ndef main(words):\n    print("doctor of", words)\n    return 3\n' > package/stoker/doctor.py
expect 3 "doctor of \['--ranks', '2'\]" env PYTHONPATH="$PWD/package" "$stoker" doctor --ranks 2
expect 2 "python3 cannot be run" env PATH=/nonexistent "$stoker" doctor
expect 0 "SHA-256 of all outputs, the same in all 6 runs" \
  env STOKER_CPU_KERNEL=avx2 "$stoker" offload bench --layers=1 --steps=3 --pairs=2 --schedulers=dynamic,index \
  --json=offload --perfetto=timeline
[ "$(grep -c '"time_against_first_percent":\[' offload)" = 2 ] || fail "not two compared rows: $(cat offload)"
grep -q '"name":"layer 0 expert [0-9]* FC1 tile 0"' timeline || fail "no tile in the timeline"
expect 1 "not enough-to-read" "$stoker" offload replay /nonexistent/not\ enough-to-read
{ echo "# n_layer=1 n_expert=8"; for step in 1 2 3 4; do echo "0,1,$step,0,0,$((step % 2)),1"; done; } > trace
expect 0 "Recommended" "$stoker" offload replay trace
expect 0 "^2 .* 50.0 " "$stoker" offload replay trace

# A group of live processes, read from outside while it waits for rank 1.
"$PWD_AT_START/$2" 4000 > "$TEST_TMPDIR/pids" &
group=$!
for _ in $(seq 100); do [ "$(wc -l < "$TEST_TMPDIR/pids")" -ge 3 ] && break; sleep 0.1; done
pid=$(sed -n 's/^rank 0: //p' "$TEST_TMPDIR/pids")
for text in "rank 0: pid $pid, device -1, waiting for rank 1 since [0-9.]* s" "rank 1: .*not waiting" \
  "by all others together: rank 1 [0-9.]* ms" "epoch 17: plain of 2 tokens" "epoch 2: plain of 2 tokens"; do
  expect 0 "$text" "$stoker" health --pid="$pid"
done
wait "$group" || fail "the group that was looked at"
