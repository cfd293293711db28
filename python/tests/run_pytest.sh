#!/usr/bin/env bash
# Runs one pytest file with the environment of tools/setup and writes the report that Bazel expects.
set -euo pipefail
python=$1
file=$2
export HOME="${HOME:-$TEST_TMPDIR}" PYTHONDONTWRITEBYTECODE=1 GLOO_SOCKET_IFNAME=lo OMP_NUM_THREADS=1
# Graphs that another run has compiled would skip the passes under test.
export TORCHINDUCTOR_CACHE_DIR="$TEST_TMPDIR/inductor"
exec "$python" -m pytest -q -p no:cacheprovider --junitxml="${XML_OUTPUT_FILE:-/dev/null}" "$file"
