#!/usr/bin/env bash
# Runs the GPU tests of the bundle that this script lies in, and writes logs into FOLDER, and a line of JSON for each
# part into FOLDER/gpu_tests.jsonl: what docs/benchmarks has of such runs.
#   ./run.sh FOLDER [gpu] [processes] [nccl] [mps] [python] [layers] [flashinfer] [sanitizer] [demo]   (default: all)
# Needs a driver for CUDA 13; `python` needs a python3 with torch 2.10 or newer for CUDA 13 and pytest;
# `layers` and `flashinfer` need those too, `layers` Triton; `mps`, these two and `sanitizer` need
# nvidia-cuda-mps-control and compute-sanitizer, and say so where they lack.
set -u
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:?"usage: run.sh FOLDER [what ...]"}
shift
mkdir -p "$folder"
failed=0
# What docs/benchmarks/fault_plans.jsonl is made of.
export STOKER_FAULT_ROWS=$folder/fault_plans.jsonl
gpu=$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2> /dev/null | head -1)
if [ -z "$gpu" ]; then
  echo "no GPU: nvidia-smi is missing or lists none" >&2
  exit 1
fi
export STOKER_FAULT_RUN="\"gpu\":\"$gpu\",\"date\":\"$(date -u +%F)\""
kernels=$(cat "$here/kernels_hash")

step() { # name, seconds, command...
  local name=$1 seconds=$2
  shift 2
  local start=$SECONDS
  timeout "$seconds" "$@" > "$folder/$name.log" 2>&1
  local status=$?
  local took=$((SECONDS - start))
  local verdict
  verdict=$(grep -E 'PASSED|FAILED|passed|failed|ERROR SUMMARY|RACECHECK SUMMARY|held' "$folder/$name.log" | tail -1)
  echo "$name: exit $status; ${verdict:0:150}"
  verdict=$(tr -d '"\\\000-\037' <<< "${verdict:0:150}" | sed 's/^[ =]*//; s/[ =]*$//')
  printf '{"part":"%s","exit":%d,"verdict":"%s","seconds":%d,"ptx_hash":"%s",%s}\n' \
    "$name" $status "$verdict" $took "$kernels" "$STOKER_FAULT_RUN" >> "$folder/gpu_tests.jsonl"
  [ $status = 0 ] || failed=1
}

# A daemon of our own, in a folder of its own, ended whatever happens.
mps_start() { # part
  if ! command -v nvidia-cuda-mps-control > /dev/null; then
    echo "$1: not run, nvidia-cuda-mps-control is missing"
    return 1
  fi
  CUDA_MPS_PIPE_DIRECTORY=$(mktemp -d)
  CUDA_MPS_LOG_DIRECTORY=$(mktemp -d)
  export CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
  trap 'echo quit | nvidia-cuda-mps-control > /dev/null 2>&1' EXIT
  nvidia-cuda-mps-control -d
}

mps_stop() {
  echo quit | nvidia-cuda-mps-control > /dev/null
  trap - EXIT
  unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
}

with_package() { # command...
  LD_LIBRARY_PATH="$here/ops${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" PYTHONDONTWRITEBYTECODE=1 "$@"
}

for what in "${@:-gpu processes nccl mps python layers flashinfer sanitizer demo}"; do for part in $what; do
  case $part in
    gpu)
      step gpu_tests 300 "$here/bin/gpu_tests"
      step fused_cuda_test 120 "$here/bin/fused_cuda_test"
      step bench 60 "$here/bin/stoker" bench finalize --world=2 --hidden=2048 --tokens=1,64 ;;
    processes) step gpu_process_tests 300 "$here/bin/gpu_process_tests" ;;
    # NCCL from where torch has it, else from the system.
    nccl)
      torchs=$(python3 -c 'import nvidia.nccl as n; print(list(n.__path__)[0] + "/lib")' 2> /dev/null)
      LD_LIBRARY_PATH="$torchs:${LD_LIBRARY_PATH:-}" step nccl_tests 120 "$here/bin/nccl_tests" ;;
    mps)
      mps_start "mps" || continue
      step gpu_process_tests_mps 300 "$here/bin/gpu_process_tests"
      mps_stop ;;
    python)
      with_package step python_gpu 300 python3 -m pytest -q -p no:cacheprovider \
        "$here/python/tests/test_gpu.py" "$here/python/tests/test_failing_step.py" ;;
    layers)  # decoder layers of two ranks on one GPU
      mps_start "layers" || continue
      with_package step layer_mock 180 python3 "$here/python/tests/layer_mock.py" --results="$folder/layer_mock.jsonl"
      mps_stop ;;
    flashinfer)  # the parameters of FlashInfer's own tests, two and four ranks on one GPU
      mps_start "flashinfer" || continue
      with_package step flashinfer_parameters 180 python3 -m pytest -q -s -p no:cacheprovider \
        "$here/python/tests/test_flashinfer_parameters.py"
      mps_stop ;;
    sanitizer)
      if ! command -v compute-sanitizer > /dev/null; then
        echo "sanitizer: not run, compute-sanitizer is missing"
        continue
      fi
      for tool in memcheck racecheck initcheck synccheck; do
        step "sanitizer_$tool" 200 compute-sanitizer --tool $tool --error-exitcode 9 \
          "$here/bin/gpu_tests" --gtest_filter='*OneGrid*'
      done ;;
    demo) step demo 120 "$here/bin/layer_tail_demo" ;;
    *) echo "unknown part: $part"; failed=1 ;;
  esac
done; done
exit $failed
