#!/usr/bin/env bash
# What ptxas makes of every shipped kernel.
set -euo pipefail
exec python3 moe/resource_audit.py "$@"
