#!/usr/bin/env bash
# Runs one pytest file with the environment of tools/setup and writes the report that Bazel expects.
set -euo pipefail
python=$1
file=$2
export HOME="${HOME:-$TEST_TMPDIR}" PYTHONDONTWRITEBYTECODE=1 GLOO_SOCKET_IFNAME=lo OMP_NUM_THREADS=1
exec "$python" -m pytest -q -p no:cacheprovider --junitxml="${XML_OUTPUT_FILE:-/dev/null}" "$file"
