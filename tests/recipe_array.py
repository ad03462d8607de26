"""What a recipe sets, without running it."""

import functools
import os
import subprocess
import sys
from pathlib import Path

RECIPES = Path(__file__).resolve().parents[1] / "scripts" / "recipes"


@functools.cache
def recipe_array(name: str, task: str, *words: str) -> tuple[str, ...]:
    """Return an array of a recipe, such as ``evaluate`` or ``layout``, as these words of the command line leave it."""
    path = RECIPES / f"{task}.sh"
    shown = f'parse "$@"; [ -z "$preset" ] || use_preset; settings; printf "%s\\n" ${{{name}[@]+"${{{name}[@]}}"}}'
    script = path.read_text().replace('run_recipe "$@"', shown).replace("${BASH_SOURCE[0]}", str(path))
    done = subprocess.run(
        ["bash", "-c", script, path.name, *words],
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return tuple(done.stdout.splitlines())
