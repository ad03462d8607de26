"""Train on a corpus in many shards, and measure memory, which must not grow with the number of shards read.

    python benchmarks/many_shards.py --source train.src --target train.tgt --dictionary dict.txt --output out

Each shard is a folder of binarized data, and one epoch: ``s2sft train shard0:shard1:...``. The files hold tokens, as
``s2sft tokenize`` writes them. Their lines are repeated until there are enough. Resident memory and open files of the
process are sampled when an epoch ends; resident memory includes mapped pages of the files. Shards that exist are not
made again.
"""

import argparse
import itertools
import json
import re
import statistics
import subprocess
import sys
from pathlib import Path

from records import write_records
from soak import S2SFT, used_by

from s2sft_fairseq import cli

SMALL = ["--arch", "unilm_tiny", "--random-init", "--cpu", "--batch-size", "64", "--lr", "1e-4", "--seed", "1"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--dictionary", type=Path, required=True)
    parser.add_argument("--shards", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=5000, help="of a shard")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    options = parser.parse_args()
    folders = binarize(options)
    samples = train(folders, options.output)
    write_records(options.output / "many_shards.json", samples)
    report(samples, sum(file.stat().st_size for folder in folders for file in folder.glob("train.*.bin")))


def binarize(options: argparse.Namespace) -> list[Path]:
    """Write the shards, with one dictionary, and return their folders."""
    sides = [path.read_text(encoding="utf-8").splitlines() for path in (options.source, options.target)]
    lines = [itertools.cycle(side) for side in sides]
    folders = [options.output / f"shard{number}" for number in range(options.shards)]
    words = ["preprocess", "--source-lang", "src", "--target-lang", "tgt", "--workers", "1", "--joined-dictionary"]
    options.output.mkdir(parents=True, exist_ok=True)
    for folder in folders:
        texts = [[next(side) for _ in range(options.pairs)] for side in lines]
        if folder.exists():
            continue
        prefix = folder.with_suffix(".part")
        parts = [Path(f"{prefix}.{side}") for side in ("src", "tgt")]
        for part, text in zip(parts, texts, strict=True):
            part.write_text("".join(f"{line}\n" for line in text), encoding="utf-8")
        places = ["--trainpref", str(prefix), "--destdir", str(folder), "--srcdict", str(options.dictionary)]
        if cli.main([*words, *places]):
            sys.exit(1)
        for part in parts:
            part.unlink()
    return folders


def train(folders: list[Path], out: Path) -> list[dict[str, int]]:
    """Train one epoch on each shard; return memory and open files at the end of each epoch."""
    words = [*S2SFT, "train", ":".join(map(str, folders)), *SMALL, "--max-epoch", str(len(folders))]
    words += ["--no-save", "--save-dir", str(out / "run"), "--disable-validation", "--log-format", "json"]
    samples: list[dict[str, int]] = []
    others: list[str] = []
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"\| train \| (\{.*)", line):
                samples.append({"epoch": json.loads(found[1])["epoch"], **used_by(process.pid)})
                print(samples[-1], flush=True)
            else:
                others = [*others[-20:], line]
    if process.returncode:
        sys.exit(f"{''.join(others)}the training ended with {process.returncode}")
    return samples


def report(samples: list[dict[str, int]], size: int) -> None:
    """Compare the last tenth of the shards with the second tenth."""
    tenth = max(1, len(samples) // 10)
    print(f"{len(samples)} shards, {size / 2**20:.0f} MB of ids")
    for name in ("resident_kB", "files"):
        second, last = (
            statistics.median(each[name] for each in part) for part in (samples[tenth : 2 * tenth], samples[-tenth:])
        )
        print(f"{name}: {second:.0f} -> {last:.0f} ({100 * (last / second - 1):+.1f} %)")


if __name__ == "__main__":
    main()
