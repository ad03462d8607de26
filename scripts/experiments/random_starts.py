"""Pre-train small models from random weights: do their placeholders learn to look at words within 15 minutes?

    python scripts/experiments/random_starts.py --text books --tokenizer-dir bert-base-uncased --output out

The text is a folder with train.txt and valid.txt: one paragraph per line, and an empty line after each document.
``unilm_tiny`` is pre-trained by ERNIE-GEN and by UniLMv2, from weights of BERT's standard deviation of 0.02 and of the
default, which is 0.049 at this width of 128. A placeholder that looks at nothing can at best predict the frequencies of
words: its loss is then their entropy, which the table has beside the held-out losses.

The hypothesis, written before the first run: with the default the placeholders are below the entropy within 15 minutes
on one core, with 0.02 they are not.

Stages that are done are not repeated, and a training that was stopped resumes. The table is OUTPUT/starts.md.
"""

import argparse
import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from blocks import source_lines
from logs import log_records, update_seconds

from s2sft_fairseq import cli

FLOWS = {"ernie-gen-base": "word", "unilmv2-base": "par"}
"""The flow of placeholders of each preset."""
DEVIATIONS = {"0.02": ("--initial-std", "0.02"), "default": ()}
SHARES = (10, 25, 50, 75, 100)
"""Parts of a training, in percent, after which the table has the loss. Held-out losses are computed 20 times."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, metavar="DIR")
    parser.add_argument("--tokenizer-dir", type=Path, required=True, metavar="DIR", help="such as BERT's vocab.txt")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--presets", nargs="+", choices=FLOWS, default=list(FLOWS))
    parser.add_argument("--deviations", nargs="+", choices=DEVIATIONS, default=list(DEVIATIONS))
    parser.add_argument("--updates", type=int, default=700, metavar="N", help="(default: 700)")
    parser.add_argument("--positions", type=int, default=4096, metavar="N", help="of an update (default: 4096)")
    parser.add_argument("--lr", default="1e-3", metavar="X", help="(default: 1e-3)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="(default: 1)")
    given = parser.parse_args()
    rows = ["| pre-training | standard deviation | minutes | " + " | ".join(f"{n} %" for n in SHARES) + " |\n"]
    rows.append("|---" * (3 + len(SHARES)) + "|\n")
    for preset in given.presets:
        for name in given.deviations:
            folder = given.output / preset / f"{name}-seed{given.seed}"
            if status := pretrain(given, preset, DEVIATIONS[name], folder):
                return status
            losses, minutes = read(folder, FLOWS[preset])
            cells = [f"{losses[given.updates * share // 100]:.2f}" for share in SHARES]
            rows.append(f"| {preset} | {name} | {minutes:.1f} | {' | '.join(cells)} |\n")
    entropy = entropy_of(given.output / given.presets[0] / "tokens" / "train.txt")
    text = f"{''.join(rows)}\nThe entropy of single words is {entropy:.2f} bits per token.\n"
    (given.output / "starts.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


def pretrain(given: argparse.Namespace, preset: str, deviation: tuple[str, ...], folder: Path) -> int:
    """Pre-train; return the exit status."""
    words: list[Any] = ["pretrain", preset, "--text", given.text, "--tokenizer-dir", given.tokenizer_dir]
    words += ["--output", folder.parent, "--run", folder.name, "--updates", given.updates, "--seed", given.seed]
    words += ["--device-tokens", given.positions, "--", "--arch", "unilm_tiny", *deviation]
    words += ["--lr", given.lr, "--update-freq", 1, "--attention-dropout", 0, "--cpu", "--num-workers", 0]
    return cli.main([str(word) for word in words])


def read(folder: Path, flow: str) -> tuple[dict[int, float], float]:
    """Return the held-out losses of a flow by update, in bits per token, and the minutes of all updates."""
    losses = {
        int(record["valid_num_updates"]): float(record[f"valid_{flow}_loss"])
        for record in log_records(folder / "train.log")
        if f"valid_{flow}_loss" in record
    }
    return losses, sum(update_seconds(folder / "train.log").values()) / 60


def entropy_of(path: Path) -> float:
    """Return the entropy of the tokens of a file, in bits."""
    counts = Counter(word for line in source_lines(path) for word in line.split())
    total = sum(counts.values())
    return -sum(count / total * math.log2(count / total) for count in counts.values())


if __name__ == "__main__":
    sys.exit(main())
