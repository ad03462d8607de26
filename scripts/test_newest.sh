#!/usr/bin/env bash
# Run a part of the tests on the newest supported Python of this machine, if it is newer than the Python of .venv. They
# import every module, and test checkpoints, safe loading and command lines. The environment is .venv-newest.
#
#   bash scripts/test_newest.sh
#   PYTHON_NEWEST=/path/to/python bash scripts/test_newest.sh    use this Python instead of the newest one
#
# If no environment can be made, for example because PyTorch has no build, the last line says NOT TESTED.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tests=(tests/test_*.py tests/runtime tests/commands tests/checkpoints/test_safe_loading.py
    tests/checkpoints/test_pretrained.py tests/checkpoints/test_averaging.py tests/end_to_end/test_resume.py)
# Trainings by several processes take longer than all the others.
left_out=(--ignore=tests/runtime/test_lost_ranks.py --ignore=tests/runtime/test_several_ranks.py
    --ignore=tests/runtime/test_two_machines.py --ignore=tests/runtime/test_slurm_scripts.py)

say() { echo "newest: $*"; }
version() { "$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null; }

# Print the newest Python from 3.14 to 3.12: one on PATH, one of pyenv, whose versions are not on PATH unless chosen, or
# for 3.14 one that is unpacked from Debian's newest suite.
find_newest() {
    local minor candidate
    if [ -n "${PYTHON_NEWEST:-}" ]; then
        echo "$PYTHON_NEWEST"
        return
    fi
    for minor in 14 13 12; do
        for candidate in "python3.$minor" "${PYENV_ROOT:-$HOME/.pyenv}/versions/3.$minor".*/bin/python; do
            case $(version "$candidate") in "3.$minor."*) echo "$candidate"; return ;; esac
        done
        if [ "$minor" = 14 ] && bash scripts/python_of_debian.sh 3.14 .python-3.14 2>/dev/null; then
            return
        fi
    done
}

bash scripts/setup.sh
usual=$(version .venv/bin/python)
python=$(find_newest)
if [ -z "$python" ]; then
    say "no other Python is here than $usual, which all tests have run on"
    exit 0
fi
found=$(version "$python") || { say "error: PYTHON_NEWEST=$python does not run" >&2; exit 1; }
IFS=. read -r _ minor _ <<<"$found"
IFS=. read -r _ usual_minor _ <<<"$usual"
if [ "$minor" -le "$usual_minor" ]; then
    say "Python $found is no newer than $usual, which all tests have run on"
    exit 0
fi

export VENV=.venv-newest
say "testing on Python $found ($python)"
# By default, pip downloads over 2 GB with PyTorch: stop the set-up after 8 minutes.
if ! PYTHON=$python timeout 480 bash scripts/setup.sh; then
    say "NOT TESTED on Python $found: no environment could be made, for the reason above"
    exit 0
fi
bash scripts/test.sh -n auto --maxprocesses 4 --dist worksteal "${tests[@]}" "${left_out[@]}"
say "passed on Python $found"
