#!/usr/bin/env bash
# Check correctness, speed and memory of this package on a GPU. Needs no network and no .venv.
#
#   bash scripts/gpu_check.sh                        all parts, at most 9 minutes each, and the report
#   bash scripts/gpu_check.sh training decoding      these parts; a second run continues with missing cells
#   bash scripts/gpu_check.sh --out DIR PART ...     where to write (default: gpu-out): gpu.json, report.md, tests.txt
#   bash scripts/gpu_check.sh --again PART           measure failed cells again
#   bash scripts/gpu_check.sh --device cpu --tiny    try everything without a GPU
#
# Parts: environment, parity, training, decoding, memory, resume (benchmarks/gpu.py), and tests (those that need a GPU).
#
# Needs Python 3.11 to 3.13 with a CUDA build of PyTorch 2.6 or later, NumPy, transformers, and for tests pytest. The
# other packages that fairseq needs come from a folder of wheels, which scripts/gpu_wheels.sh fills on a machine with a
# network:
#
#   WHEELS=folder bash scripts/gpu_check.sh          installs them into DIR/packages, and nowhere else
#   PYTHON=/path/to/python bash scripts/gpu_check.sh
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${PYTHON:-python3}
limit=540 # seconds per part
every=(environment parity training decoding memory resume tests)

say() { echo "gpu_check: $*" >&2; }
fail() { say "error: $*"; exit 1; }

out=gpu-out parts=() options=() again=()
while [ $# -gt 0 ]; do
    case $1 in
        -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | grep -v '^set'; exit 0 ;;
        --out) out=${2:?--out needs a folder}; shift ;;
        --device) options+=(--device "${2:?--device needs cuda or cpu}"); shift ;;
        --tiny) options+=(--tiny) ;;
        --again) again=(--again) ;;
        -*) fail "$1 is no option; see --help" ;;
        *) [[ " ${every[*]} " == *" $1 "* ]] || fail "a part must be one of ${every[*]}, but is $1"; parts+=("$1") ;;
    esac
    shift
done
[ ${#parts[@]} -gt 0 ] || parts=("${every[@]}")
mkdir -p "$out"
out=$(cd "$out" && pwd)
# Use one GPU: the first one, unless CUDA_VISIBLE_DEVICES is set.
export CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-0}
export PYTHONPATH=$root:$out/packages${PYTHONPATH:+:$PYTHONPATH}

# find_missing PACKAGE=MODULE...: print the packages, by their names for pip, whose modules are not installed.
find_missing() {
    "$python" -c 'import importlib.util, sys
print(*(name for name, module in (pair.split("=") for pair in sys.argv[1:]) if not importlib.util.find_spec(module)))' "$@"
}

missing=$(find_missing torch=torch numpy=numpy transformers=transformers) || fail "$python does not run: name another, PYTHON=..."
[ -z "$missing" ] || fail "$python has no $missing, which must be installed here already"
missing=$(find_missing fairseq-fixed=fairseq bitarray=bitarray hydra-core=hydra omegaconf=omegaconf \
    antlr4-python3-runtime=antlr4)
if [ -n "$missing" ]; then
    [ -n "${WHEELS:-}" ] || fail "$python has no $missing. Where there is a network: bash scripts/gpu_wheels.sh FOLDER;" \
        "then here: WHEELS=FOLDER bash scripts/gpu_check.sh"
    say "installing $missing from $WHEELS into $out/packages"
    "$python" -m pip install --quiet --no-index --no-deps --find-links "$WHEELS" --target "$out/packages" $missing ||
        fail "$WHEELS has not all of $missing for $("$python" --version): fill it with scripts/gpu_wheels.sh"
fi
"$python" -c 'import s2sft_fairseq.plugin' || fail "the package cannot be imported, for the reason above"

# Run the test files, each as a whole, that have tests which are skipped without a GPU.
run_tests() {
    local files
    mapfile -t files < <(cd "$root" && grep -rlE 'reason="no GPU' tests | sort)
    (cd "$root" && timeout -k 10 "$limit" "$python" -m pytest -q -rs -p no:cacheprovider "${files[@]}") 2>&1 |
        tee "$out/tests.txt"
}

# run_part PART: run a part; repeat it in another process if an error left the GPU unusable for the first one.
run_part() {
    local end=$((SECONDS + limit)) of_run=("${again[@]}") left status
    while left=$((end - SECONDS)) && [ "$left" -gt 60 ]; do
        status=0
        timeout -k 10 "$left" "$python" "$root/benchmarks/gpu.py" "$1" --out "$out" --seconds $((left - 60)) \
            "${options[@]}" "${of_run[@]}" || status=$?
        [ "$status" = 75 ] || return "$status"
        of_run=() # do not measure failed cells once more
    done
    return 3
}

unfinished=()
for part in "${parts[@]}"; do
    say "$part"
    status=0
    if [ "$part" = tests ]; then run_tests || status=$?; else run_part "$part" || status=$?; fi
    [ "$status" = 0 ] || unfinished+=("$part ($status)")
done
[ ! -e "$out/gpu.json" ] || "$python" "$root/benchmarks/gpu.py" report "$out" | tee "$out/report.md"
[ ${#unfinished[@]} = 0 ] || fail "not finished (exit status): ${unfinished[*]}; 3 and 124: for want of time, run it again"
