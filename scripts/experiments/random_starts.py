"""Pre-train small models from random weights: do their placeholders learn to look at words within 15 minutes?

    python scripts/experiments/random_starts.py --text books --tokenizer-dir bert-base-uncased --output out

The text is a folder with train.txt and valid.txt: one paragraph per line, and an empty line after each document.
``unilm_tiny`` is pre-trained by ERNIE-GEN and by UniLMv2 from four starts:

* 0.02: weights of BERT's standard deviation
* default: weights of the default standard deviation, which is 0.049 at this width of 128
* relative: the same, with a relative position bias, as UniLMv2 has
* local: the same, with biases that fall with the distance (``--initial-locality 1``)

A placeholder that looks at nothing can at best predict the frequencies of words: its loss is then their entropy. In
ERNIE-GEN a target ends with [SEP]; if its place is known, the loss of its tokens is lower in proportion. UniLMv2
replaces some placeholders by words, half of them by the right ones, which a model can predict without looking at
others. Here it replaces none (``--random-prob 0 --keep-prob 0``).

Hypotheses, each written before its first run:

1. With "default" the placeholders are below the entropy within 15 minutes on one core, with "0.02" they are not. This
   was run with 700 updates of 4,096 positions, texts of 508 tokens, and a learning rate of 1e-3.
2. With "local" they are below it, and predict a word better in the flow that sees the word before it (ERNIE-GEN) or the
   earlier blocks (UniLMv2) than in the other flow; with "default" and "relative" they are not. This was written after
   trials of 350 updates.

Stages that are done are not repeated, and a training that was stopped resumes. The table is in OUTPUT, named
after the presets.
"""

import argparse
import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from blocks import source_lines
from logs import log_records, update_seconds

from s2sft_fairseq import cli
from s2sft_fairseq.objectives.ernie_gen import Fragments

RELATIVE = ("--relative-position-bins", "32", "--max-relative-position", "128")
STARTS = {
    "0.02": ("--relative-position-bins", "0", "--initial-std", "0.02"),
    "default": ("--relative-position-bins", "0"),
    "relative": RELATIVE,
    "local": (*RELATIVE, "--initial-locality", "1"),
}
FLOWS = {"ernie-gen-base": ("word", "span"), "unilmv2-base": ("par", "ae")}
"""The flows of each preset; the first one sees more."""
WITHOUT_WORDS = {"ernie-gen-base": (), "unilmv2-base": ("--random-prob", "0", "--keep-prob", "0")}
"""Options for placeholders alone."""
SHARES = (10, 25, 50, 75, 100)
"""Parts of a training, in percent, after which the table has the loss. Held-out losses are computed 20 times."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, metavar="DIR")
    parser.add_argument("--tokenizer-dir", type=Path, required=True, metavar="DIR", help="such as BERT's vocab.txt")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--presets", nargs="+", choices=FLOWS, default=list(FLOWS))
    parser.add_argument("--starts", nargs="+", choices=STARTS, default=list(STARTS))
    parser.add_argument("--updates", type=int, default=1400, metavar="N", help="(default: 1400)")
    parser.add_argument("--positions", type=int, default=1024, metavar="N", help="of an update (default: 1024)")
    parser.add_argument("--tokens", type=int, default=128, metavar="N", help="of a text (default: 128)")
    parser.add_argument("--lr", default="2e-3", metavar="X", help="(default: 2e-3)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="(default: 1)")
    given = parser.parse_args()
    rows = ["| pre-training | start | flow | minutes | " + " | ".join(f"{n} %" for n in SHARES) + " |\n"]
    rows.append("|---" * (4 + len(SHARES)) + "|\n")
    for preset in given.presets:
        for name in given.starts:
            folder = given.output / preset / f"{name}-seed{given.seed}"
            if status := pretrain(given, preset, STARTS[name], folder):
                return status
            for flow in FLOWS[preset]:
                losses, minutes = read(folder, flow)
                cells = [f"{losses[given.updates * share // 100]:.2f}" for share in SHARES]
                rows.append(f"| {preset} | {name} | {flow} | {minutes:.1f} | {' | '.join(cells)} |\n")
    words = entropy_of(given.output / given.presets[0] / "tokens" / "train.txt")
    content = Fragments().target_length(np.array(given.tokens))
    text = (
        f"{''.join(rows)}\nThe entropy of single words is {words:.2f} bits. With the [SEP] of ERNIE-GEN's targets, "
        f"whose place is known, it is {words * content / (content + 1):.2f} bits per token.\n"
    )
    (given.output / f"{'+'.join(given.presets)}.md").write_text(text, encoding="utf-8")
    print(text)
    return 0


def pretrain(given: argparse.Namespace, preset: str, start: tuple[str, ...], folder: Path) -> int:
    """Pre-train; return the exit status."""
    words: list[Any] = ["pretrain", preset, "--text", given.text, "--tokenizer-dir", given.tokenizer_dir]
    words += ["--output", folder.parent, "--run", folder.name, "--updates", given.updates, "--seed", given.seed]
    words += ["--device-tokens", given.positions, "--", "--arch", "unilm_tiny", *start, *WITHOUT_WORDS[preset]]
    words += ["--tokens-per-sample", given.tokens]
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
