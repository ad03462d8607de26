"""Scaling of training over ranks: the same number of examples per update, by one rank or several, one thread each.

    python benchmarks/ranks.py --data data-bin --pretrained encoder --ranks 1 2 --output out

Efficiency is the speed of N ranks divided by N times the speed of one rank. Speed is measured over all updates after
the first ten, from the times in the log, which are whole seconds: give `--updates` that take minutes. Runs take turns,
and the fastest run of each number of ranks counts.
"""

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

from records import write_records


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--pretrained", required=True)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batch", type=int, default=16, help="examples of an update, of all ranks together")
    parser.add_argument("--updates", type=int, default=50)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    fastest = dict.fromkeys(options.ranks, 0.0)
    for _ in range(options.repeats):
        for ranks in options.ranks:
            fastest[ranks] = max(fastest[ranks], updates_per_second(options, ranks))
    records = [
        {"ranks": ranks, "updates/s": speed, "efficiency": speed / fastest[1] / ranks}
        for ranks, speed in fastest.items()
    ]
    write_records(options.output / "ranks.json", records)
    for record in records:
        print(f"{record['ranks']} ranks: {record['updates/s']:.3f} updates/s, efficiency {record['efficiency']:.2f}")


def updates_per_second(options: argparse.Namespace, ranks: int) -> float:
    """Train; return the speed after the first ten updates, in updates/s."""
    words = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(ranks), "-m", "s2sft_fairseq"]
    words += ["train", options.data, "--pretrained", options.pretrained, "--cpu", "--seed", "1", "--lr", "1e-5"]
    words += ["--batch-size", str(options.batch // ranks), "--max-update", str(options.updates), "--no-save"]
    words += ["--disable-validation", "--log-format", "json", "--log-interval", "10", "--save-dir", str(options.output)]
    done = subprocess.run(
        words, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode:
        sys.exit(f"{done.stdout[-3000:]}\nthe training ended with {done.returncode}")
    logged = [json.loads(numbers) for numbers in re.findall(r"\| train_inner \| (\{.*)", done.stdout)]
    walls = [(int(line["num_updates"]), float(line["wall"])) for line in logged]
    (first, began), (last, ended) = walls[0], walls[-1]
    return (last - first) / (ended - began)


if __name__ == "__main__":
    main()
