#!/usr/bin/env bash
# The main job from beginning to end: fine-tune a real pretrained encoder on real text, generate, score, and plot.
#
#   bash scripts/demo.sh                    summarize docstrings of the installed packages, within 15 minutes on 2 cores
#   bash scripts/demo.sh --full             train longer: ten epochs, longer texts
#   bash scripts/demo.sh --data DIR         your own pairs: DIR/{train,valid,test}.{src,tgt}, one text per line;
#                                           their lengths determine the settings
#   bash scripts/demo.sh --float32          train in float32, even if bfloat16 products are faster here
#   bash scripts/demo.sh --output DIR       where to write (default: demo-out in the checkout)
#
# After a stop, the same command resumes the run; remove the output folder to start over.
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | grep -v '^set'; exit 0 ;; esac
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=$root/.venv bash "$root/scripts/setup.sh"
exec "$root/.venv/bin/python" "$root/scripts/demo.py" "$@"
