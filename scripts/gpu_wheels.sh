#!/usr/bin/env bash
# Collect the packages that fairseq needs on a GPU machine that has PyTorch and transformers, but no network. Run this
# on a machine with a network, and copy the folder to the GPU machine, for scripts/gpu_check.sh.
#
#   bash scripts/gpu_wheels.sh WHEELS                for Python 3.12 on Linux, x86-64, with any Python that runs this
#   PYTHON=/path/to/python bash scripts/gpu_wheels.sh WHEELS
set -euo pipefail
case ${1:-} in "" | -*) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | grep -v '^set'; exit 2 ;; esac
folder=$(realpath -m "$1")
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-python3}
# pinned NAME...: print their lines in constraints.txt.
pinned() {
    local IFS='|'
    grep -E "^($*)==" constraints.txt
}

mkdir -p "$folder"
platforms=(--platform manylinux_2_28_x86_64 --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64)
"$python" -m pip download --no-deps --only-binary :all: --python-version 3.12 "${platforms[@]}" \
    -d "$folder" $(pinned fairseq-fixed bitarray hydra-core omegaconf)
# It has no wheel, and is pure Python.
"$python" -m pip wheel --no-deps -w "$folder" $(pinned antlr4-python3-runtime)
echo "gpu_wheels: $(ls "$folder" | wc -l) files in $folder; there: WHEELS=FOLDER bash scripts/gpu_check.sh"
