#!/usr/bin/env bash
# Set up everything that the demo and the tests need, in .venv in the repository's root.
#
#   bash scripts/setup.sh
#
# Needs Python 3.11 to 3.13 with its headers, pip and a C++ compiler. A set-up that is current is left as it is; one that
# was interrupted, or is older than constraints.txt, setup.cfg, pyproject.toml or this script, is made anew. Several at
# once wait for one another.
#
#   PYTHON=/path/to/python bash scripts/setup.sh    use this Python instead of the first suitable one found
#   VENV=/path/to/folder bash scripts/setup.sh      make the environment there (relative to the root) instead of in .venv
#
# Packages come from wherever pip is configured to look. Which build of PyTorch that is, is decided there too: on Linux a
# default configuration gives the CUDA build (over 2 GB). A CPU-only machine needs no more than the CPU build: name the
# index of CPU builds that PyTorch's installation page gives, or a folder with the wheel, in PIP_EXTRA_INDEX_URL or
# PIP_FIND_LINKS.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${VENV:-.venv}
[[ $venv == /* ]] || venv=$root/$venv
stamp=$venv/setup-stamp
work=$venv/setup-work
# These have no wheel on every platform, and are built here.
built_here=(fairseq-fixed antlr4-python3-runtime rouge-score)
cd "$root"
export PIP_USER=0 PIP_NO_INPUT=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_PROGRESS_BAR=off
# Compiling all of the packages takes as long as installing them. The first import compiles what is used, and keeps it.
unset PYTHONDONTWRITEBYTECODE

say() { echo "setup: $*"; }
fail() { echo "setup: error: $*" >&2; exit 1; }

# run LABEL LOG COMMAND...: one step; its output goes to the log, the end of which is shown when the step fails.
run() {
    local label=$1 log=$2 start=$SECONDS
    shift 2
    if ! "$@" >>"$log" 2>&1 </dev/null; then
        tail -n 15 "$log" | sed 's/^/    /' >&2
        fail "$label failed; the lines above are the last of $log"
    fi
    say "$label: $((SECONDS - start)) s"
}

# The first suitable Python, as the interpreter behind any virtual environment (that of the environment first).
find_python() {
    local candidates=("$venv/bin/python" python3.11 python3.12 python3.13 python3)
    local candidate found version base seen=""
    [ -z "${PYTHON:-}" ] || candidates=("$PYTHON")
    for candidate in "${candidates[@]}"; do
        found=$("$candidate" -c 'import sys
print("%d.%d.%d" % sys.version_info[:3], getattr(sys, "_base_executable", sys.executable))' 2>/dev/null) || continue
        version=${found%% *} base=${found#* }
        case $version in 3.11.* | 3.12.* | 3.13.*) echo "$base"; return ;; esac
        seen+="${seen:+, }$candidate is Python $version"
    done
    [ -n "$seen" ] || seen="none of ${PYTHON:-python3.11, python3.12, python3.13, python3} runs"
    fail "Python 3.11 to 3.13 is needed, but $seen; install one, or name it: PYTHON=/path/to/python3.11"
}

# What this machine lacks, a line each.
find_problems() {
    "$python" - "$root" <<'PY'
import importlib.util, os, shlex, shutil, sys, sysconfig

name = f"Python {sys.version.split()[0]} ({sys.executable})"
if not (importlib.util.find_spec("venv") and importlib.util.find_spec("ensurepip")):
    print(f"{name} cannot make virtual environments; install its venv module (Debian: python3-venv)")
if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
    print(f"{name} has no header files; install them (Debian: python3-dev)")
for variable in ("CC", "CXX"):
    command = os.environ.get(variable) or sysconfig.get_config_var(variable) or "c++"
    if not shutil.which(shlex.split(command)[0]):
        print(f"no C++ compiler: {command} is not there; install it (Debian: g++), or set {variable} to another")
free = shutil.disk_usage(sys.argv[1]).free / 1e9
if free < 3:
    print(f"3 GB of disk space are needed in {sys.argv[1]}, {free:.1f} GB are free")
PY
}

# One line that changes with everything that the environment is made from.
fingerprint() {
    "$python" -c 'import hashlib, sys
parts = [repr((sys.version, sys.argv[1])).encode()] + [open(name, "rb").read() for name in sys.argv[2:]]
print(hashlib.sha256(b"".join(hashlib.sha256(part).digest() for part in parts)).hexdigest())' \
        "$root" constraints.txt setup.cfg pyproject.toml scripts/setup.sh
}

# pinned NAME...: their lines in constraints.txt.
pinned() {
    local IFS='|'
    grep -E "^($*)==" constraints.txt
}

pip() { "$venv/bin/python" -m pip "$@"; }

# fairseq's setup.py needs PyTorch for three C++ extensions only, which take most of the time to build and which nothing
# here uses: those of its BASE layers, Levenshtein models and monotonic attention. In place of PyTorch it gets a module
# that leaves them out. Not kept in pip's cache, where other projects would find it.
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

# One set-up at a time: the lock on the repository's folder lasts as long as this script and its children.
exec 9<"$root"
"$python" -c 'import fcntl
try:
    fcntl.flock(9, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    print("setup: waiting for another set-up to end", flush=True)
    fcntl.flock(9, fcntl.LOCK_EX)'
python=$(find_python) # again, for .venv may have been in the making

wanted=$(fingerprint)
if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && "$venv/bin/python" -c '' 2>/dev/null; then
    say "$venv is current"
    exit 0
fi

# It is about to be deleted.
if [ -n "$(ls -A "$venv" 2>/dev/null)" ] && ! [ -e "$venv/setup.log" -o -e "$venv/setup-work" ]; then
    fail "$venv was not made by this script: move it away, or name another folder: VENV=/path/to/folder"
fi
problems=$(find_problems)
[ -z "$problems" ] || fail "this machine lacks something:"$'\n'"$problems"

say "making $venv with Python $("$python" -c 'import sys; print(sys.version.split()[0], sys.executable)')"
rm -f "$stamp" # first, lest half an environment be taken for a whole one
rm -rf "$venv"
mkdir -p "$work"
export TMPDIR=$work # large downloads pass through here, on the disk whose space was checked
log=$venv/setup.log
trap 'fail "interrupted; run it again to set up anew"' INT

run "virtual environment" "$log" "$python" -m venv "$venv"
run "build tools" "$log" pip install --no-compile --no-deps $(pinned cython numpy setuptools)
set -m # a process group of its own, so that it ends with this script
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
