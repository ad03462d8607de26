"""Whole trainings with ``s2sft finetune``: for each data set a model folder, its card, and the scores of the papers.

    python scripts/experiments/whole_trainings.py --data DATA --encoder MINILM --output out

DATA is that of ``learning_curves.py``. First the learning rate is the best of three, as the papers searched on the
development set: each trains for some hundred updates, and ROUGE-L of 200 validation sources decides. A short training
may prefer a higher rate than a long one. Then one model is trained (seed 1), with defaults for all but the learning
rate and the passes over the training set, and writes the whole test set.

OUTPUT/SET/run/model is the model folder, OUTPUT/SET.md its card, OUTPUT/SET.json the scores as the papers have them,
OUTPUT/SET-lr.json the learning rates with their scores. If that file is there, for example from a GPU, its best rate is
used. Started again, the program continues where it was.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from blocks import ENDINGS, source_lines

from s2sft_fairseq import cli
from s2sft_fairseq.data.text_files import write_lines
from s2sft_fairseq.recipes.engine import options


class Whole(NamedTuple):
    """Passes over the training set, and how the test set is scored."""

    epochs: int
    scoring: tuple[str, ...]


SETS = {
    "gigaword": Whole(10, ("--task", "gigaword")),
    "e2e": Whole(2, ("--task", "bleu", "--lowercase", "--pretokenize", "nltk", "--metrics", "sacrebleu", "rouge")),
    "multi30k_en-de": Whole(6, ("--task", "bleu", "--lowercase")),
    "squad_qg": Whole(3, ("--task", "qg", "--pretokenize", "nltk")),
}
LEARNING_RATES = ("1e-4", "3e-4", "1e-3")
ALL = 1_000_000
"""More sources than any set has."""


def pairs(name: str, folder: Path) -> list[object]:
    """Return the options of ``s2sft finetune`` that name the pairs, but not the test set."""
    fields = ["--source", "src", "--target", "refs"] if name == "e2e" else []
    return ["--train", *files(name, folder, "train"), "--valid", *files(name, folder, "valid"), *fields]


def files(name: str, folder: Path, split: str) -> list[Path]:
    """Return the files of a split. E2E's sources for validation and test have several references."""
    if name == "e2e" and split != "train":
        return [folder / f"{split}.multi.jsonl"]
    return [folder / f"{split}{end}" for end in ENDINGS.get(name, (".src", ".tgt"))]


def choose_learning_rate(given: argparse.Namespace, name: str, chosen: Path) -> str:
    """Return the learning rate with the best score on the validation set; the file has all scores."""
    if not chosen.exists():
        scores: dict[str, float] = {}
        for lr in LEARNING_RATES:
            output = given.output / name / f"lr-{lr}"
            sizes = {"updates": given.updates_of_choice, "candidates": 1, "beam": 1, "scored_on": 50}
            cli.call("finetune", [*common(given, name), *options(lr=lr, output=output, **sizes)])
            record = json.loads((output / "finetune.json").read_text(encoding="utf-8"))
            scores[lr] = record["searches"][0]["rouge-l"]
        chosen.write_text(json.dumps(scores, indent=1), encoding="utf-8")
    scores = json.loads(chosen.read_text(encoding="utf-8"))
    return max(scores, key=lambda lr: scores[lr])


def common(given: argparse.Namespace, name: str) -> list[str]:
    """Return the options of all trainings on a set."""
    named = ["--encoder", given.encoder, *pairs(name, given.data / name), *(["--cpu"] if given.cpu else [])]
    return [*map(str, named), *options(device_batch=given.device_batch)]


def train(given: argparse.Namespace, name: str) -> None:
    """Choose the learning rate, train, score the test set, and copy the card."""
    whole, run = SETS[name], given.output / name / "run"
    lr = choose_learning_rate(given, name, given.output / f"{name}-lr.json")
    test = files(name, given.data / name, "test")
    rest = options(output=run, lr=lr, epochs=given.epochs or whole.epochs, scored_on=ALL)
    cli.call("finetune", [*common(given, name), "--test", *map(str, test), *rest])
    texts = scored(run, test)
    cli.call("evaluate", [*whole.scoring, *options(**texts, json=given.output / f"{name}.json")])
    shutil.copy(run / "model" / "README.md", given.output / f"{name}.md")


def scored(run: Path, test: Sequence[Path]) -> dict[str, Path]:
    """Return the files that are scored. In a set of two files, each line is scored on its own, as in the papers.

    ``s2sft finetune`` generates once for equal sources, and collects their references.
    """
    corpus = run / "corpus"
    texts = {"hyp": run / "scored.txt", "src": corpus / "scored.src", "ref": corpus / "scored.refs.jsonl"}
    if len(test) == 1:
        return texts
    generated = dict(zip(source_lines(texts["src"]), source_lines(texts["hyp"]), strict=True))
    sources, references = map(source_lines, test)
    lines = {kind: path.with_name(path.name.replace("scored", "lines")) for kind, path in texts.items()}
    write_lines(lines["hyp"], [generated[source] for source in sources])
    write_lines(lines["src"], sources)
    write_lines(lines["ref"], [json.dumps({"refs": [reference]}) for reference in references])
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--encoder", type=Path, required=True, metavar="DIR")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--epochs", type=int, metavar="N", help="(default: 2 to 10, depending on the set)")
    parser.add_argument("--updates-of-choice", type=int, default=800, metavar="N", help="(default: 800)")
    parser.add_argument("--device-batch", type=int, metavar="N", help="examples at a time, as in s2sft finetune")
    parser.add_argument("--cpu", action="store_true")
    given = parser.parse_args(arguments)
    for name in given.sets:
        if status := cli.guarded("whole trainings", lambda name=name: train(given, name)):
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
