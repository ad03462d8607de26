#!/usr/bin/env bash
# Set up the environment if needed, then run the linter, the type checker and the tests.
#
#   bash scripts/test.sh                  all tests but the slow ones, in one process per core (at most 4), with line
#                                         coverage, which must be 98 % or more
#   bash scripts/test.sh --slow           the slow ones too
#   bash scripts/test.sh --quick          tests that are not slow and start no process, without coverage
#   bash scripts/test.sh -k word -x ...   with arguments for pytest, without coverage
#   VENV=folder bash scripts/test.sh ...  use the environment in that folder instead of .venv, see scripts/setup.sh
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
# One thread per process: tests start processes that share the cores, and one thread always adds in the same order.
OMP_NUM_THREADS=1 exec "$python" -m pytest "${options[@]}" "$@"
