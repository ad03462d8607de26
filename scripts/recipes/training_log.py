"""Reading the log of ``s2sft train --log-format json``; as a filter it shows progress.

s2sft train ... --log-format json | python scripts/recipes/training_log.py UPDATES     0: how many is not known
"""

import json
import sys
import time
from typing import Any


def parse(line: str) -> tuple[str, dict[str, Any]] | None:
    """Return ``training`` or ``held out``, and the numbers, of a line that has any.

    In the output they stand behind the time and the logger's name, in a ``--log-file`` alone.
    """
    start = line.find('{"')
    try:
        record = json.loads(line[start:]) if start >= 0 else {}
    except ValueError:
        return None
    if "valid_loss" in record:
        return "held out", {name.removeprefix("valid_"): value for name, value in record.items()}
    return ("training", record) if "num_updates" in record else None


def main() -> None:
    """Show progress, and everything that is no number (warnings, errors) as it is."""
    # The first record starts the clock: before it there is set-up, or what an earlier run has done.
    total, first, start = int(sys.argv[1]), None, time.monotonic()
    for line in sys.stdin:
        if parsed := parse(line):
            kind, record = parsed
            done = int(record["num_updates"])
            if first is None:
                first, start = done, time.monotonic()
            left = (time.monotonic() - start) / max(1, done - first) * (total - done)
            ahead = f", {left / 60:.1f} min left" if first < done < total and kind == "training" else ""
            of_all = f"/{total}" if total else ""
            print(f"  update {done}{of_all}: {kind} loss {record['loss']}{ahead}", flush=True)
        if "| WARNING |" in line or "| ERROR |" in line:
            print(f"  {line.rstrip()}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:  # the training that is read says so itself
        sys.exit(130)
