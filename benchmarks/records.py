"""The records of a benchmark's cells. Each cell is measured in its own process; a JSON file keeps its record."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent

# The value is glibc's default. If it is set, this package does not tune the allocator of the process. So other systems
# are measured as they are, even if they are built with parts of the package.
AS_IT_IS = {"GLIBC_TUNABLES": "glibc.malloc.perturb=0"}

Record = dict[str, Any]


def measure_cells(
    cells: Sequence[Any],
    script: str,
    file: Path,
    *,
    resume: bool,
    key_of: Callable[[Record], Any],
    describe: Callable[[Any], str],
) -> list[Record]:
    """Measure cells one after the other, and write each record at once.

    Args:
        cells: dataclasses with fields ``threads`` and ``system``.
        script: the program that measures a cell: it reads the cell's JSON from stdin and writes its record to stdout.
        file: JSON file of the records; it keeps the records of other cells.
        resume: skip cells whose record is in the file.
        key_of: returns the key of a record: records with equal keys measure the same thing.
        describe: returns the name of a cell, for the progress on stderr.

    Returns:
        The records of all cells, in their order.
    """
    records = {key_of(record): record for record in read_records(file)}
    run, code = time.strftime("%Y-%m-%dT%H:%M:%S"), commit()
    for number, cell in enumerate(cells, 1):
        key = key_of(asdict(cell))
        if resume and key in records:
            continue
        print(f"{number}/{len(cells)} {describe(cell)}", file=sys.stderr, flush=True)
        # A record that is measured again goes to the end.
        records.pop(key, None)
        records[key] = {**asdict(cell), "run": run, "commit": code, **measure(cell, script)}
        write_records(file, records.values())
    return [records[key_of(asdict(cell))] for cell in cells]


def measure(cell: Any, script: str) -> Record:
    """Run a cell in its own process, which gets the number of threads in its environment."""
    threads, allocator = str(cell.threads), {} if cell.system in ("ours", "factored") else AS_IT_IS
    done = subprocess.run(
        [sys.executable, str(FOLDER / script)],
        input=json.dumps(asdict(cell)),
        env={**os.environ, **allocator, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads},
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode != 0:
        raise SystemExit(f"the cell failed with status {done.returncode}: {cell}")
    return json.loads(done.stdout.splitlines()[-1])


def commit() -> str | None:
    """Return the measured commit, with a + if files have changed since; None outside of a checkout."""

    def git(*words: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(FOLDER), *words], capture_output=True, text=True)
        except FileNotFoundError:
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    head = git("rev-parse", "HEAD")
    return head and head + ("+" if git("status", "--porcelain") else "")


def read_records(file: Path) -> Sequence[Record]:
    """Return the records that earlier runs wrote."""
    return json.loads(file.read_text(encoding="utf-8")) if file.exists() else []


def write_records(file: Path, records: Iterable[Record]) -> None:
    """Write the records, one line each. A killed run leaves the old file or the new one."""
    new = file.with_name(file.name + ".new")
    lines = ",\n".join(json.dumps(record) for record in records)
    new.write_text(f"[\n{lines}\n]\n", encoding="utf-8")
    os.replace(new, file)
