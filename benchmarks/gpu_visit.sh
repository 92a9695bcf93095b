#!/usr/bin/env bash
# What needs an NVIDIA GPU, in parts that take a few minutes each:
#
#     benchmarks/gpu_visit.sh OUT memory limits mps shares busy throughput serving card profile training learning
#
# OUT gets logs, tables and traces. Nobody else may use the GPU meanwhile; no setting of the card is changed.
# Needs a Python (PYTHON=) with strata's dependencies, pytest, torch and, for serving and training, transformers.
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:?usage: benchmarks/gpu_visit.sh OUT PART...}
shift
mkdir -p "$out"
export PYTHONPATH="$PWD/src${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 COLUMNS=100
python=${PYTHON:-python3}
strata() { "$python" -m strata "$@"; }
tests() { "$python" -m pytest -o addopts= --import-mode=importlib -q -s -rs --tb=short -p no:cacheprovider -p no:benchmark "$@"; }

part() {
  case $1 in
    memory)  # what the driver takes for what is asked; an observer looks at the whole device
      tests -p no:xdist tests/slicing/gpu/test_memory_on_a_gpu.py ;;
    limits)  # programs at their limit, several at once
      tests -p no:xdist tests/slicing/gpu/test_programs_on_a_gpu.py -k 'context_is_measured or nvidia_smi'
      tests -n 6 tests/slicing/gpu/test_on_a_gpu.py tests/slicing/gpu/test_programs_on_a_gpu.py \
        -k 'not throughput and not trainers_share and not context_is_measured and not nvidia_smi' ;;
    mps)
      export CUDA_MPS_PIPE_DIRECTORY=$(mktemp -d) CUDA_MPS_LOG_DIRECTORY=$(mktemp -d)
      nvidia-cuda-mps-control -d && tests -p no:xdist tests/slicing/gpu/test_programs_on_a_gpu.py -k mps
      echo quit | nvidia-cuda-mps-control
      unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY ;;
    shares)
      tests -p no:xdist tests/slicing/gpu/test_shares_on_a_gpu.py -k "${SHARES:-share or tenants}" ;;
    busy)  # shares of programs that the device waits for, while others keep three processors of four
      others=()
      trap 'kill "${others[@]}" 2>/dev/null' EXIT  # of this part's own shell, however it ends
      for _ in $(seq $(($(nproc) * 3 / 4))); do "$python" -c 'while True: pass' & others+=($!); done
      tests -p no:xdist tests/slicing/gpu/test_shares_on_a_gpu.py -k '10-host-bound or 30-host-bound'
      tests -p no:xdist tests/slicing/gpu/test_on_a_gpu.py -k trainers_share ;;
    throughput)
      tests -p no:xdist tests/slicing/gpu/test_on_a_gpu.py -k 'throughput or trainers_share' ;;
    serving)  # layers of real families, by range
      tests -n 4 tests/serving/pretrained/test_on_a_gpu.py ;;
    card)
      nvidia-smi
      strata kube agent --once --benchmark -o json | tee "$out/agent.json"
      strata fleet discover --local | tee "$out/fleet.yaml" ;;
    profile)
      strata profile qwen3-0.6b --sequence 4096 --microbatch 2,4 --save "$out/qwen3-0.6b.json"
      strata profile llama-3.1-8b --sequence 4096 --microbatch 1,2 --save "$out/llama-3.1-8b.json" ;;
    training)
      "$python" benchmarks/gpu_training.py "$out/measured_runs.csv" ${RUNS:-}
      strata bench published "$out/measured_runs.csv" ;;
    learning)
      strata learn train --device cuda --minutes 0.7 --out "$out/hi-ppo" ;;
    *) echo "no part $1"; return 2 ;;
  esac
}

for name in "$@"; do
  begun=$(date +%s)
  echo "== $name"
  part "$name" 2>&1 | tee "$out/$name.log"
  echo "== $name: $(($(date +%s) - begun)) s"
done
