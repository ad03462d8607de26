#!/usr/bin/env bash
# The main job from beginning to end: fine-tune a real pretrained encoder on real text, generate, score, show.
#
#   bash scripts/demo.sh                    summarise the docstrings of the installed packages, within 15 minutes on 2 cores
#   bash scripts/demo.sh --full             the same for longer: ten epochs, longer texts
#   bash scripts/demo.sh --data DIR         your own pairs: DIR/{train,valid,test}.{src,tgt}, one text a line; settings by their lengths
#   bash scripts/demo.sh --float32          train in 32 bits where the processor multiplies faster in 16
#   bash scripts/demo.sh --output DIR       where to write (default: demo-out in the checkout)
#
# Stopped and started again it goes on where it was; remove the output folder to begin anew.
set -euo pipefail
case ${1:-} in -h | --help) sed -n '2,/^set/s/^# \{0,1\}//p' "$0" | grep -v '^set'; exit 0 ;; esac
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=$root/.venv bash "$root/scripts/setup.sh"
exec "$root/.venv/bin/python" "$root/scripts/demo.py" "$@"
