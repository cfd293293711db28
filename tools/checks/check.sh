#!/usr/bin/env bash
# Runs one check over the source tree. Bazel's sandbox shows only declared files, and a check of all files
# cannot declare them: it follows the link of the root's WORKSPACE to the tree itself.
set -euo pipefail
check=$1
root=$(dirname "$(readlink -f WORKSPACE)")
exec python3 "$check" "$root"
