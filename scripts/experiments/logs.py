"""Read the logs of trainings, ``--log-format json --log-file``, for all experiments."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from blocks import source_lines


def log_records(log: Path) -> Iterator[dict[str, Any]]:
    """Yield the numbers of each line that has numbers."""
    for line in source_lines(log):
        if line.startswith('{"'):
            yield json.loads(line)


def update_seconds(log: Path) -> dict[int, float]:
    """Return the seconds of the updates up to each logged number of updates, since the logged number before it.

    The log of a training that was stopped and resumed has some updates twice: the later value counts.
    """
    of_updates = [record for record in log_records(log) if "num_updates" in record]  # not the summary of an epoch
    return {int(record["num_updates"]): float(record["train_wall"]) for record in of_updates}
