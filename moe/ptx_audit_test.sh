#!/usr/bin/env bash
# Audits the PTX of the kernel table, and the audit itself.
set -euo pipefail
python3 moe/ptx_audit.py --self-test "$@"
