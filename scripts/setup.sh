#!/usr/bin/env bash
# Install everything that the demo and the tests need into .venv in the repository's root.
#
#   bash scripts/setup.sh
#
# Needs Python 3.11 to 3.14 with its headers, pip and, except for 3.12 on Linux, a C++ compiler. An environment that is
# current stays as it is. One that was interrupted, or was made from other versions of constraints.txt, setup.cfg,
# pyproject.toml or this script, is made anew. Several set-ups at once wait for one another.
#
#   PYTHON=/path/to/python bash scripts/setup.sh    use this Python instead of the first suitable one
#   VENV=/path/to/folder bash scripts/setup.sh      make this folder (relative to the root) instead of .venv
#
# Packages come from pip's configured sources, which also determine the build of PyTorch: on Linux the default is the
# CUDA build (over 2 GB). For a CPU-only machine the CPU build is enough: set PIP_EXTRA_INDEX_URL to the index of CPU
# builds that PyTorch's installation page gives, or PIP_FIND_LINKS to a folder with the wheel.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${VENV:-.venv}
[[ $venv == /* ]] || venv=$root/$venv
stamp=$venv/setup-stamp
work=$venv/setup-work
# Not all platforms have wheels of these packages: build them here.
built_here=(fairseq-fixed antlr4-python3-runtime rouge-score)
cd "$root"
export PIP_USER=0 PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_PROGRESS_BAR=off
# Do not compile packages at installation: it takes as long as installing them. Python compiles and caches modules when
# they are first imported.
unset PYTHONDONTWRITEBYTECODE

say() { echo "setup: $*"; }
fail() { echo "setup: error: $*" >&2; exit 1; }

# run LABEL LOG COMMAND...: run one step. Its output goes to the log; if the step fails, print the end of the log.
run() {
    local label=$1 log=$2 start=$SECONDS
    shift 2
    if ! "$@" >>"$log" 2>&1 </dev/null; then
        tail -n 15 "$log" | sed 's/^/    /' >&2
        fail "$label failed; the lines above are the last of $log"
    fi
    say "$label: $((SECONDS - start)) s"
}

# Print the first suitable Python, that of the environment first; resolve a virtual environment to its base interpreter.
find_python() {
    local candidates=("$venv/bin/python" python3.11 python3.12 python3.13 python3.14 python3)
    local candidate found version base seen=""
    [ -z "${PYTHON:-}" ] || candidates=("$PYTHON")
    for candidate in "${candidates[@]}"; do
        found=$("$candidate" -c 'import sys
print("%d.%d.%d" % sys.version_info[:3], getattr(sys, "_base_executable", sys.executable))' 2>/dev/null) || continue
        version=${found%% *} base=${found#* }
        case $version in 3.11.* | 3.12.* | 3.13.* | 3.14.*) echo "$base"; return ;; esac
        seen+="${seen:+, }$candidate is Python $version"
    done
    [ -n "$seen" ] || seen="none of ${PYTHON:-python3.11, python3.12, python3.13, python3.14, python3} runs"
    fail "Python 3.11 to 3.14 is needed, but $seen; install one, or name it: PYTHON=/path/to/python3.11"
}

# Print what this machine lacks, one problem per line.
find_problems() {
    "$python" - "$root" <<'PY'
import importlib.util, os, shlex, shutil, sys, sysconfig

name = f"Python {sys.version.split()[0]} ({sys.executable})"
if not (importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")):
    print(f"{name} cannot make virtual environments; install its venv module (Debian: python3-venv)")
if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
    print(f"{name} has no header files; install them (Debian: python3-dev)")
# fairseq-fixed has a wheel for this Python and platform, and is built from source for all others.
has_wheel = sys.version_info[:2] == (3, 12) and sysconfig.get_platform() == "linux-x86_64"
for variable in () if has_wheel else ("CC", "CXX"):
    command = os.environ.get(variable) or sysconfig.get_config_var(variable) or "c++"
    if not shutil.which(shlex.split(command)[0]):
        print(f"no C++ compiler: {command} is not there; install it (Debian: g++), or set {variable} to another")
free = shutil.disk_usage(sys.argv[1]).free / 1e9
if free < 3:
    print(f"3 GB of disk space are needed in {sys.argv[1]}, {free:.1f} GB are free")
PY
}

# Print a hash of everything that the environment is made from.
fingerprint() {
    "$python" -c 'import hashlib, sys
parts = [repr((sys.version, sys.argv[1])).encode()] + [open(name, "rb").read() for name in sys.argv[2:]]
print(hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest())' \
        "$root" constraints.txt setup.cfg pyproject.toml scripts/setup.sh
}

# pinned NAME...: print their lines in constraints.txt.
pinned() {
    local IFS='|'
    grep -E "^($*)==" constraints.txt
}

pip() { "$venv/bin/python" -m pip "$@"; }

# fairseq's setup.py needs PyTorch only for three C++ extensions: BASE layers, Levenshtein models and monotonic
# attention. They take most of the build time, and nothing here uses them. A stub in place of PyTorch leaves them out.
# The wheel does not go to pip's cache, where other projects would find it.
build_wheels() {
    mkdir -p "$work/stub/torch/utils"
    touch "$work/stub/torch/__init__.py"
    cat >"$work/stub/torch/utils/cpp_extension.py" <<'PY'
from setuptools import Extension
from setuptools.command.build_ext import build_ext


class CppExtension(Extension):
    pass


class BuildExtension(build_ext):
    def finalize_options(self):
        kept = [extension for extension in self.distribution.ext_modules if not isinstance(extension, CppExtension)]
        self.distribution.ext_modules = kept
        super().finalize_options()
PY
    unset CUDA_HOME
    PYTHONPATH=$work/stub pip wheel --no-cache-dir --no-deps --no-build-isolation --use-pep517 \
        -w "$work/wheels" $(pinned "${built_here[@]}")
}

python=$(find_python)

# One set-up at a time: this script and its children hold a lock on the repository's folder.
exec 9<"$root"
"$python" -c 'import fcntl
try:
    fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("setup: waiting for another set-up to end", flush=True)
    fcntl.flock(9, fcntl.LOCK_EX)'
python=$(find_python) # again, because another set-up may have changed .venv meanwhile

wanted=$(fingerprint)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && "$venv/bin/python" -c '' 2>/dev/null; then
    say "$venv is current"
    exit 0
fi

# Below, the folder is deleted: make sure that this script made it.
if [ -n "$(ls -A "$venv" 2>/dev/null)" ] && ! [ -e "$venv/setup.log" -o -e "$venv/setup-work" ]; then
    fail "$venv was not made by this script: move it away, or name another folder: VENV=/path/to/folder"
fi
problems=$(find_problems)
[ -z "$problems" ] || fail "this machine lacks something:"$'\n'"$problems"

say "making $venv with Python $("$python" -c 'import sys; print(sys.version.split()[0], sys.executable)')"
rm -f "$stamp" # first, so that half an environment never counts as current
rm -rf "$venv"
mkdir -p "$work"
export TMPDIR=$work # large downloads go here, to the disk whose free space was checked
log=$venv/setup.log
trap 'fail "interrupted; run it again to set up anew"' INT

run "virtual environment" "$log" "$python" -m venv "$venv"
run "build tools" "$log" pip install --no-compile --no-deps $(pinned cython numpy setuptools)
set -m # give the build its own process group, so that it can be killed when this script ends
say "building ${built_here[*]} meanwhile"
build_wheels >"$venv/setup-build.log" 2>&1 </dev/null &
builder=$!
set +m
trap 'kill -- "-$builder" 2>/dev/null || true' EXIT
run "PyTorch" "$log" pip install --no-compile -c constraints.txt $(pinned torch)
grep -vxF "$(pinned "${built_here[@]}")" constraints.txt >"$work/others.txt"
run "other packages" "$log" pip install --no-compile --no-deps --no-build-isolation -r "$work/others.txt"
run "rest of the build" "$venv/setup-build.log" wait "$builder"
trap - EXIT
run "fairseq and s2sft_fairseq" "$log" pip install --no-compile --no-deps --no-build-isolation "$work"/wheels/*.whl -e .
run "first import" "$log" "$venv/bin/python" -c 'import s2sft_fairseq.plugin
import fairseq.data.data_utils_fast, fairseq.data.token_block_utils_fast, fairseq.libbleu
import matplotlib.pyplot, rouge_score.rouge_scorer, safetensors.torch, tokenizers, transformers.models.bert.modeling_bert'

rm -rf "$work"
echo "$wanted" >"$stamp"
say "ready after $SECONDS s: $("$venv/bin/python" -c 'from importlib.metadata import version
print(", ".join(f"{name} {version(name)}" for name in ("torch", "fairseq-fixed", "s2sft_fairseq")))')"
