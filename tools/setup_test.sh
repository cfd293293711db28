#!/usr/bin/env bash
# tools/setup does nothing where all is there, says what it installs before it does, and names what it cannot install.
set -euo pipefail
setup=$PWD/$1
lock() { sha256sum "$(dirname "$setup")/python/$1.lock" | cut -c1-16; }
fail() { echo "FAILED: $1: $(cat output errors)"; exit 1; }
cd "$TEST_TMPDIR"

# A machine: the commands that the script finds.
mkdir bin cuda cuda/bin
for tool in bash cut dirname du flock grep mkdir mv rm sha256sum; do ln -s "$(command -v "$tool")" bin/; done
command_of() { printf '#!/bin/bash\n%s\n' "$2" > "$1"; chmod +x "$1"; }
command_of bin/dpkg-query 'echo "install ok installed"'
command_of bin/id 'echo 1000'
command_of cuda/bin/nvcc ''
run() { # words in errors, exit status, VARIABLE=value ...
  local words=$1 wanted=$2 status=0
  shift 2
  env -i PATH="$PWD/bin" HOME="$PWD" STOKER_CACHE="$PWD/cache" CUDA_HOME="$PWD/cuda" "$@" \
    "$setup" > output 2> errors || status=$?
  [ "$status" = "$wanted" ] || fail "exit status $status instead of $wanted"
  [ -z "$words" ] || grep -qF -- "$words" errors || fail "\"$words\" was not said"
}

environment=$PWD/cache/python-$(lock requirements)
mkdir -p "$environment/bin" "cache/formats-$(lock formats)"
command_of "$environment/bin/python" ''
run '' 0
[ ! -s errors ] || fail "something was said where all is there"
[ "$(tail -n 1 output)" = "$environment/bin/python" ] || fail "the last line is not the interpreter"
touch marker
sleep 0.01
run '' 0
[ -z "$(find cache -newer marker ! -name '*.lock' ! -path cache)" ] || fail "a second run touches what is there"

run "no nvcc in $PWD/none/bin" 1 CUDA_HOME="$PWD/none"

# One package is missing.
command_of bin/dpkg-query '[ "${*: -1}" = liburing-dev ] || echo "install ok installed"'
run 'apt-get is missing. What must be there, by Debian'"'"'s names: liburing-dev' 1
command_of bin/apt-get 'echo "apt-get $*" >&2'
run 'This needs root. Run: apt-get install liburing-dev' 1
command_of bin/id 'echo 0'
run 'apt-get install -y -q --no-install-recommends liburing-dev' 0
[ "$(head -n 1 errors)" = 'Installing Debian packages: liburing-dev' ] || fail "it did not say so first"
command_of bin/dpkg-query 'echo "install ok installed"'

# An installation that breaks off is announced, and not taken for a whole one.
rm -r "$environment"
run "Installing the Python environment (torch 2.11.0, about 5 GB on disk) into $environment" 1 PIP_NO_INDEX=1
[ ! -e "$environment" ] || fail "half an environment is left in the place of a whole one"
