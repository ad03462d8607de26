"""Paraphrases of MRPC, a set on which no setting of this package was chosen: one run with all defaults.

    python scripts/experiments/paraphrases.py --data MRPC --encoder MINILM --output out

MRPC (Dolan and Brockett, 2005) has pairs of sentences from the news; those that are paraphrases are the pairs here: the
first sentence is the source, the second the target. ``s2sft finetune`` trains once, with no option but the files. The
result is compared with the sources themselves as output, which is strong for this task, by paired resamples.

MRPC shares sentences between its splits: 122 of the 1,147 test pairs have a sentence of a training pair.

The hypothesis, written before the run: with 2,462 pairs the model copies most of its source, and does not score higher
than the copy.
"""

import argparse
import csv
import sys
from pathlib import Path

from s2sft_fairseq import cli

SPLITS = {"train": "train", "valid": "dev", "test": "test"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR", help="with train.tsv, dev.tsv and test.tsv")
    parser.add_argument("--encoder", type=Path, required=True, metavar="DIR")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    given = parser.parse_args()
    pairs, run = given.output / "pairs", given.output / "run"
    pairs.mkdir(parents=True, exist_ok=True)
    words: list[object] = ["finetune", "--encoder", given.encoder, "--output", run]
    for split, name in SPLITS.items():
        with (given.data / f"{name}.tsv").open(encoding="utf-8") as file:
            rows = [
                row for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE) if row["Quality"] == "1"
            ]
        words.append(f"--{split}")
        for side, column in (("src", "#1 String"), ("tgt", "#2 String")):
            path = pairs / f"{split}.{side}"
            path.write_text("".join(f"{row[column]}\n" for row in rows), encoding="utf-8")
            words.append(path)
    if status := cli.main([str(word) for word in words]):
        return status
    score = ["evaluate", "--task", "bleu", "--metrics", "rouge", "sacrebleu", "--lowercase"]
    scored = run / "corpus" / "scored.src", run / "corpus" / "scored.refs.jsonl"  # 1,000 of the test pairs
    score += ["--hyp", run / "scored.txt", "--ref", scored[1], "--baseline-hyp", scored[0]]
    score += ["--json", given.output / "scores.json"]
    return cli.main([str(word) for word in score])


if __name__ == "__main__":
    sys.exit(main())
