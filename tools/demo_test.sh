#!/usr/bin/env bash
# A program of the demonstration that is killed leaves nothing in the temporary folder or in /dev/shm.
set -euo pipefail
layer_tail=$PWD/$1 offload=$PWD/$2
export TMPDIR=$TEST_TMPDIR
cd "$TEST_TMPDIR"
fail() { echo "FAILED: $1"; exit 1; }
# Sandboxes share /dev/shm: only what has the demonstration's name counts.
leftovers() {
  find "$TMPDIR" /dev/shm -maxdepth 1 \( -name 'stoker_offload_*' -o -name 'stoker_demo-*' \) -newer start
}
none_left() {
  for _ in $(seq 200); do
    [ -z "$(leftovers)" ] && return
    sleep 0.1
  done
  return 1
}
killed_by() { # signal, command...
  local signal=$1; shift
  touch start
  "$@" > output 2>&1 &
  local process=$!
  for _ in $(seq 200); do
    [ -n "$(leftovers)" ] && break
    kill -0 "$process" 2> /dev/null || fail "$* ended by itself: $(cat output)"
    sleep 0.05
  done
  [ -n "$(leftovers)" ] || fail "$* made nothing that could be left"
  kill "-$signal" "$process"
  wait "$process" && fail "$* went on after SIG$signal"
  none_left || fail "$* leaves after SIG$signal: $(leftovers)"
}
for signal in TERM KILL; do
  killed_by "$signal" "$offload"
  # With a GPU it makes nothing outside its memory.
  CUDA_VISIBLE_DEVICES='' killed_by "$signal" "$layer_tail"
done
