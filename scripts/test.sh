#!/usr/bin/env bash
# Run the linter, the type checker and every test; sets up what they need itself.
#
#   bash scripts/test.sh                  all tests but the slow ones, on all cores (4 at most), with line coverage, which
#                                         must be 98 % or more
#   bash scripts/test.sh --slow           the slow ones too
#   bash scripts/test.sh --quick          those that start no process, without coverage
#   bash scripts/test.sh -k word -x ...   with arguments for pytest: no coverage
#   VENV=folder bash scripts/test.sh ...  with the environment in that folder instead of .venv, see scripts/setup.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

bash scripts/setup.sh
python=${VENV:-.venv}/bin/python
"$python" -m ruff check
"$python" -m ruff format --check
"$python" -m mypy

options=(-rs)
if [ "${1:-}" = --slow ]; then
    options+=(-m "")
    shift
fi
side_by_side=(-n auto --maxprocesses 4 --dist worksteal)
if [ "${1:-}" = --quick ]; then
    options+=(-m "not slow and not process" "${side_by_side[@]}")
    shift
elif [ $# = 0 ]; then
    options+=(--cov --cov-fail-under=98 "${side_by_side[@]}")
fi
# The tests start processes of their own, which share the cores; and one thread adds in the same order everywhere.
OMP_NUM_THREADS=1 exec "$python" -m pytest "${options[@]}" "$@"
