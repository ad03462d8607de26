"""Reading the log of ``s2sft train --log-format json``; as a filter it shows progress.

s2sft train ... --log-format json | python scripts/training_log.py UPDATES
"""

import json
import sys
import time
from collections.abc import Iterator
from typing import Any


def records(line: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what a line of the log holds: ``train_inner`` or ``valid``, and its numbers."""
    for kind in ("train_inner", "valid"):
        marker = f"| INFO | {kind} | "
        if marker in line:
            yield kind, json.loads(line.split(marker, 1)[1])


def main() -> None:
    """Show progress, and everything that is no number (warnings, errors) as it is."""
    total, start = int(sys.argv[1]), time.monotonic()
    for line in sys.stdin:
        for kind, record in records(line):
            if kind == "valid":
                print(f"  held-out loss {record['valid_loss']} ({record['valid_num_updates']} updates)", flush=True)
                continue
            done = int(record["num_updates"])
            left = (time.monotonic() - start) / done * (total - done)
            print(f"  update {done}/{total}: loss {record['loss']}, {left / 60:.1f} min left", flush=True)
        if "| WARNING |" in line or "| ERROR |" in line:
            print(f"  {line.rstrip()}", flush=True)


if __name__ == "__main__":
    main()
