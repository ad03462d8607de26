#!/usr/bin/env bash
# Check the spelling and build the documentation site.
#
#   bash scripts/docs.sh                 into site/, whose pages can be opened as files; a broken link is an error
#   bash scripts/docs.sh serve           the same at http://127.0.0.1:8001/, built again when a page changes
#   VENV=folder bash scripts/docs.sh     with the environment in that folder instead of .venv
#
# The extra docs must be installed there: bash scripts/setup.sh does it, or pip install -e ".[docs]".
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${VENV:-.venv}/bin/python
if ! "$python" -c 'import codespell_lib, material, mkdocs, mkdocstrings_handlers.python' 2>/dev/null; then
    echo "docs: error: $python lacks the extra docs: run bash scripts/setup.sh, or pip install -e '.[docs]'" >&2
    exit 1
fi
"$python" -m codespell_lib README.md CHANGELOG.md CONTRIBUTING.md SECURITY.md docs s2sft_fairseq scripts tests benchmarks
# Its warnings of a coming version of mkdocs are not about this site.
export NO_MKDOCS_2_WARNING=1 DISABLE_MKDOCS_2_WARNING=true
if [ "${1:-}" = serve ]; then
    exec "$python" -m mkdocs serve --dev-addr 127.0.0.1:8001
fi
"$python" -m mkdocs build --clean --strict
# Links to files of the repository, commands and options in examples.
if "$python" -c 'import pytest, s2sft_fairseq' 2>/dev/null; then
    "$python" -m pytest -q -p no:cacheprovider tests/test_docs.py
fi
echo "docs: site/index.html"
