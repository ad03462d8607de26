"""Let the tests import the benchmarks: scripts in one folder that are not a package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
