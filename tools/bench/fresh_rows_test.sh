#!/usr/bin/env bash
# Every published row was measured on the kernels of this tree.
set -euo pipefail
python3 tools/bench/report.py --fresh --kernels "$(cat moe/kernels_hash_text.txt)" docs/benchmarks
