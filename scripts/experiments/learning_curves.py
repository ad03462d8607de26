"""Learning curves of all fine-tuning methods from the same start: score after 50, 100, 200, 400 and 800 updates.

    python scripts/experiments/learning_curves.py --data DATA --encoder MINILM --output out
    python scripts/experiments/learning_curves.py --data DATA --encoder MINILM --output deltalm --sets multi30k_en-de \
        --methods "DeltaLM, random" DeltaLM "DeltaLM, synthetic"

``--budgets`` names other numbers of updates, and needs another OUTPUT.

DATA holds the folders ``e2e`` and ``squad_qg``, as for ``blocks.py``, ``gigaword`` (10,000 pairs), and
``multi30k_en-de``, which is translated from German to English, the language of MiniLM. Each method trains with each
seed at a constant learning rate with ``--amp``, and stops at each budget to write a part of the test set greedily.
On a CPU without bfloat16 instructions, ``--amp`` computes in float32: do not mix its seeds with those of other CPUs.
OUTPUT/SET.md and OUTPUT/SET.png have all methods, with intervals over seeds and sentences. Each table of differences
has 45 verdicts; chance alone makes about two of them "higher" or "lower" at 95 %. Stages that are done are not
repeated, and a training that was stopped resumes. Several processes may share OUTPUT if they train different seeds:
give each its ``--train-only``.

Scores of single sentences are SCORES/SET/METHOD-seedN.json. A run whose scores are there is not repeated, so that an
experiment can go on on another machine. ``scripts/experiments/scores/curves`` has the scores in docs/results.md.

Hypotheses, written before the first run:

1. Pseudo-masked fine-tuning is above causal at every budget: each placeholder is trained as it is used in decoding, and
   placeholders are new to the encoder in both, but causal predicts from ordinary tokens, which must forget more.
2. Masked is the lowest at every budget, since it predicts fewer tokens in an update.
3. Infilling without noise and spans equals pseudo-masked within the intervals: the two differ in details.
   (Pseudo-masked fine-tuning corrupts half of the target by default. After the first runs, "whole targets" was added,
   which corrupts none: it should equal infilling.)
4. Noise and spans lower the scores at these budgets, as they did in earlier runs with two seeds; the papers find that
   they help after whole trainings.
5. Blocks are below pseudo-masked by less than two points.
6. Training on synthetic pairs first (``s2sft pretrain synthetic``) raises the scores of pseudo-masked fine-tuning after
   50 and 100 updates, because the encoder then knows placeholders and looks at its source; after 800 updates it makes
   no difference. All seeds begin with the same synthetic training.
7. DeltaLM from MiniLM is above DeltaLM from random weights of the same shape at every budget, with intervals that do
   not overlap, also in translation, where MiniLM knows only the target language.
8. Training DeltaLM from MiniLM on synthetic pairs first raises its scores at the two smallest budgets.
"""

import argparse
import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
from blocks import prepare, source_lines
from intervals import Interval, interval, table
from numpy.typing import NDArray

from s2sft_fairseq import cli
from s2sft_fairseq.data.text_files import write_lines
from s2sft_fairseq.evaluation.examples import Example
from s2sft_fairseq.evaluation.rouge import rouge
from s2sft_fairseq.evaluation.settings import Settings
from s2sft_fairseq.recipes.engine import Stages, options
from s2sft_fairseq.recipes.training import NEVER

_INFILLING = ("--finetune-method", "infilling")
NOISE = ("--noise-prob", "0.5")
METHODS: dict[str, tuple[str, ...]] = {
    "pseudo-masked": (),
    "causal": ("--finetune-method", "causal"),
    "masked": ("--finetune-method", "masked"),
    "infilling": _INFILLING,
    "infilling, noise": (*_INFILLING, *NOISE),
    "infilling, spans": (*_INFILLING, "--span-vocab", "SPANS"),
    "infilling, noise, spans": (*_INFILLING, *NOISE, "--span-vocab", "SPANS"),
    "blocks": ("--finetune-method", "blocks", "--noise-schedule", "cosine"),
    "pseudo-masked, synthetic": (),
    "pseudo-masked, whole targets": ("--target-mask-prob", "0"),
}
_DELTALM = ("--criterion", "label_smoothed_cross_entropy")
DELTALM: dict[str, tuple[str, ...]] = {
    "DeltaLM": ("--arch", "deltalm", *_DELTALM),
    "DeltaLM, synthetic": ("--arch", "deltalm", *_DELTALM),
    "DeltaLM, random": (
        *("--arch", "deltalm_tiny", "--random-init", *_DELTALM),
        # The shape of DeltaLM from MiniLM.
        *options(encoder_layers=6, decoder_layers=3, encoder_embed_dim=384, encoder_ffn_embed_dim=1536),
        *options(encoder_attention_heads=12, max_positions=512),
    ),
}
BEGINS = {
    "pseudo-masked, synthetic": "synthetic/synthetic/encoder",
    "DeltaLM, synthetic": "synthetic_deltalm/synthetic-deltalm/deltalm",
    "DeltaLM, random": "",
}
"""Models from which a training starts, if that is not the encoder; empty: random weights."""
SYNTHETIC = ("--updates", "300", "--device-tokens", "2048")
OF_SYNTHETIC = ("--update-freq", "1", "--amp", "--cpu", "--num-workers", "0")
BUDGETS = (50, 100, 200, 400, 800)
OPTIMIZATION = options(batch_size=16, lr="3e-4", warmup_updates=20, amp=True)
TARGETS = {"e2e": 64, "squad_qg": 32, "gigaword": 32, "multi30k_en-de": 64}
POSITIONS = 511
"""Positions of source and target together. MiniLM has one more, for the start of the target."""
_OF_A_RUN = ("output", "scores", "sets", "methods", "seeds", "train_only")
"""Options that may differ between processes with the same output."""


class Curves(Stages):
    """The curves of a data set. ``ablations.py`` has other methods and starts."""

    options_of: ClassVar[Mapping[str, tuple[str, ...]]] = METHODS | DELTALM
    optimization = OPTIMIZATION

    def __init__(self, given: argparse.Namespace, name: str) -> None:
        self.given, self.set = given, name
        self.budgets = tuple(sorted(given.budgets))  # a training goes on from one budget to the next
        self.output: Path = given.output.resolve() / name
        self.scores: Path = (given.scores or given.output / "scores").resolve() / name
        self.data: Path = given.data.resolve() / name
        super().__init__("curves", self.output / "commands.jsonl", cli.call)

    def run(self) -> None:
        """Make the shared files, then train with each seed and method whose scores are not there yet."""
        missing = self.missing()
        settings = {name: value for name, value in vars(self.given).items() if name not in _OF_A_RUN}
        settings |= {"optimization": self.optimization, "budgets": self.budgets}
        # Scores may come from another machine, so their settings have no paths.
        without_paths = {name: value for name, value in settings.items() if not isinstance(value, Path)}
        self.scores.mkdir(parents=True, exist_ok=True)
        for method in self.given.methods:
            name = file_name(method)
            made = [*self.scores.glob(f"{name}-seed*.json"), *self.output.glob(f"{name}-seed*")]
            options_of = {"options": self.options_of[method], **without_paths}
            self.pin(self.scores / f"{name}.settings.json", map(str, made), **options_of)
        if not missing:
            return
        self.output.mkdir(parents=True, exist_ok=True)
        self.pin(self.output / "settings.json", ["texts"], **settings)
        for work in self.shared():
            self.stage(self.output / work.__name__, work.__name__, work)
        for method, seed in missing:
            made_by = partial(self.curve, method, seed)
            self.stage(self.scores_file(method, seed), self.run_folder(method, seed).name, made_by)

    def missing(self) -> list[tuple[str, int]]:
        """Return the method and the seed of each run that has no scores."""
        runs = [(method, seed) for seed in self.given.seeds for method in self.given.methods]
        return [run for run in runs if not self.scores_file(*run).exists()]

    def shared(self) -> Sequence[Callable[[Path], None]]:
        """Return the stages that all trainings need. Each makes a file or folder of its name."""
        methods = self.given.methods
        works = [self.texts, self.words, self.encoder, self.tokens, self.binarized]
        works += [self.spans] if any("SPANS" in self.options_of[method] for method in methods) else []
        works += [self.synthetic] if "pseudo-masked, synthetic" in methods else []
        return [*works, self.synthetic_deltalm] if "DeltaLM, synthetic" in methods else works

    def begin(self, method: str, seed: int) -> Path | None:
        """Return the model from which a training starts; None: random weights."""
        begin = BEGINS.get(method, "encoder")
        return self.output / begin if begin else None

    def run_folder(self, method: str, seed: int) -> Path:
        """Return the folder of a training."""
        return self.output / f"{file_name(method)}-seed{seed}"

    def scores_file(self, method: str, seed: int) -> Path:
        """Return the file for the scores of a training."""
        return self.scores / f"{self.run_folder(method, seed).name}.json"

    def texts(self, made: Path) -> None:
        """Write the pairs, one per line, and evenly spaced test sources with their references."""
        made.mkdir()
        files = prepare(self.set, self.data, made)
        for side, path in zip(("src", "tgt"), files["train"], strict=True):
            write_lines(made / f"train.{side}", source_lines(path))
        for path, name in zip(files["benchmark"], ("test.src", "test.refs.jsonl"), strict=True):
            lines = source_lines(path)
            spread = np.linspace(0, len(lines) - 1, self.given.sources).astype(int)
            write_lines(made / name, [lines[number] for number in spread])

    def words(self, made: Path) -> None:
        """Tokenize the targets, from which the head of the encoder is computed."""
        self.s2sft(
            "tokenize", input=self.output / "texts" / "train.tgt", tokenizer_dir=self.given.encoder, output_dir=made
        )

    def encoder(self, made: Path) -> None:
        words = self.output / "words" / "train.tgt"
        self.s2sft("convert", self.given.encoder, to=made, fit_head=words, output_prior=words)

    def tokens(self, made: Path) -> None:
        files = [self.output / "texts" / f"train.{side}" for side in ("src", "tgt")]
        self.s2sft("tokenize", input=files, tokenizer_dir=self.output / "encoder", output_dir=made)

    def spans(self, made: Path) -> None:
        files = [self.output / "tokens" / f"train.{side}" for side in ("src", "tgt")]
        self.s2sft("span-vocab", input=files, tokenizer_dir=self.output / "encoder", output=made)

    def binarized(self, made: Path) -> None:
        sides = {"source_lang": "src", "target_lang": "tgt", "joined_dictionary": True, "destdir": made}
        named = {"srcdict": self.output / "encoder" / "dict.txt", "trainpref": self.output / "tokens" / "train"}
        self.s2sft("preprocess", workers=1, **named, **sides)

    def synthetic(self, made: Path, preset: str = "synthetic") -> None:
        """Train the encoder on synthetic pairs."""
        named = {"encoder": self.output / "encoder", "output": made}
        self.s2sft("pretrain", preset, *options(**named), *SYNTHETIC, "--", *OF_SYNTHETIC)

    def synthetic_deltalm(self, made: Path) -> None:
        """Train DeltaLM from the encoder on synthetic pairs."""
        self.synthetic(made, "synthetic-deltalm")

    def curve(self, method: str, seed: int, made: Path) -> None:
        """Train up to each budget, write the test sources and score them."""
        folder = self.run_folder(method, seed)
        for budget in self.budgets:
            if not (folder / f"{budget}.txt").exists():
                folder.mkdir(exist_ok=True)
                self.s2sft("train", *self.training(budget, method, seed, folder))
                self.evaluate(folder, budget)
        scores = self.scores_of(folder)
        for checkpoint in folder.glob("*.pt"):
            checkpoint.unlink()
        made.write_text(json.dumps(scores), encoding="utf-8")

    def evaluate(self, folder: Path, budget: int) -> None:
        """Write the test sources with the checkpoint of a budget."""
        where = {"input": self.output / "texts" / "test.src", "output": folder / f"{budget}.txt"}
        where |= {"path": folder / "checkpoint_last.pt", "tokenizer_dir": self.output / "encoder"}
        self.s2sft("generate", beam=1, cpu=True, **where)

    def scores_of(self, folder: Path) -> dict[str, list[float]]:
        """Return the score of each test source after each budget."""
        return {str(budget): self.rouge_l(folder / f"{budget}.txt") for budget in self.budgets}

    def training(self, budget: int, method: str, seed: int, folder: Path) -> list[str]:
        """Return the arguments of ``s2sft train``, which saves only the last checkpoint."""
        spans = str(self.output / "spans")
        words = [spans if word == "SPANS" else word for word in self.options_of[method]]
        target, begin = TARGETS[self.set], self.begin(method, seed)
        return [
            *(str(self.output / "binarized"), *words, *(options(pretrained=begin) if begin else ())),
            *options(save_dir=folder, seed=seed, cpu=True, num_workers=0),
            *options(max_target_positions=target, max_source_positions=POSITIONS - target),
            *options(update_freq=1, lr_scheduler="fixed", label_smoothing="0", dropout="0.1"),
            *self.optimization,
            *options(max_update=budget, save_interval_updates=budget, keep_interval_updates=1, save_interval=NEVER),
            *options(disable_validation=True, no_epoch_checkpoints=True, no_model_folder=True, log_interval=50),
            *options(no_progress_bar=True, log_format="json", log_file=folder / "train.log"),
        ]

    def rouge_l(self, found: Path) -> list[float]:
        """Return ROUGE-L of each text."""
        references = self.output / "texts" / "test.refs.jsonl"
        texts = zip(source_lines(found), source_lines(references), strict=True)
        examples = [Example(hypothesis, tuple(json.loads(line)["refs"])) for hypothesis, line in texts]
        statistics = rouge(examples, Settings()).statistics
        return [round(100 * value, 2) for value in statistics.values["ROUGE-L"]]


def file_name(method: str) -> str:
    """Return the name of a method in names of files."""
    return method.replace(", ", "+").replace(" ", "-")


Scores = dict[int, NDArray[np.float64]]
"""By budget: (S, N). S: seeds, N: test sentences."""


def read_curves(curves: Curves) -> dict[str, Scores]:
    """Return the scores of each method."""
    found: dict[str, Scores] = {}
    for method in curves.given.methods:
        files = [curves.scores_file(method, seed) for seed in curves.given.seeds]
        of_seeds = [json.loads(path.read_text(encoding="utf-8")) for path in files]
        found[method] = {budget: np.array([scores[str(budget)] for scores in of_seeds]) for budget in curves.budgets}
    return found


def tabulate(found: Mapping[str, Scores], baseline: str, path: Path) -> None:
    """Write a table of scores, and one of differences to a method, each with its interval."""
    columns = [f"{budget} updates" for budget in found[baseline]]
    scores = {method: list(map(interval, of_budget.values())) for method, of_budget in found.items()}
    differences: dict[str, list[str]] = {}
    for method, of_budget in found.items():
        pairs = [interval(values - found[baseline][budget]) for budget, values in of_budget.items()]
        differences[method] = [f"{difference}, {difference.verdict}" for difference in pairs]
    del differences[baseline]
    text = f"ROUGE-L:\n\n{table(columns, scores)}\nDifference from {baseline}:\n\n{table(columns, differences)}"
    path.write_text(text, encoding="utf-8")


def draw(found: Mapping[str, Mapping[float, Interval]], over: str, path: Path) -> None:
    """Draw the scores of each method over numbers of updates, or over minutes, with their intervals."""
    # An import has set the level of all loggers to DEBUG.
    logging.getLogger("matplotlib").setLevel(logging.WARNING)
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, axis = pyplot.subplots(figsize=(7, 5), layout="constrained")
    for (method, points), marker in zip(found.items(), "oXsdv^<>P*", strict=False):
        means = [point.value for point in points.values()]
        errors = [point.high - point.value for point in points.values()]
        axis.errorbar(list(points), means, yerr=errors, label=method, marker=marker, capsize=2, linewidth=1)
    ticks = list(next(iter(found.values())))
    axis.set(xscale="log", xlabel=over, ylabel="ROUGE-L", xticks=ticks, xticklabels=[f"{tick:.3g}" for tick in ticks])
    axis.minorticks_off()
    axis.legend()
    figure.savefig(path, dpi=120)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--encoder", type=Path, required=True, metavar="DIR")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--scores", type=Path, metavar="DIR", help="(default: OUTPUT/scores)")
    parser.add_argument("--sets", nargs="+", choices=TARGETS, default=["e2e", "squad_qg"])
    parser.add_argument("--methods", nargs="+", choices=[*METHODS, *DELTALM], default=list(METHODS))
    parser.add_argument("--budgets", type=int, nargs="+", default=BUDGETS, metavar="N", help="(default: 50 to 800)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--sources", type=int, default=200, help="of the test set (default: 200)")
    parser.add_argument("--train-only", action="store_true", help="leave tables and figures to a later run")
    given = parser.parse_args(arguments)
    curves = [Curves(given, name) for name in given.sets]
    for one in curves:
        if status := cli.guarded("curves", one.run):
            return status
    for one in [] if given.train_only else curves:
        given.output.mkdir(parents=True, exist_ok=True)
        found = read_curves(one)
        tabulate(found, given.methods[0], given.output / f"{one.set}.md")
        points = {
            method: {budget: interval(values) for budget, values in of_budget.items()}
            for method, of_budget in found.items()
        }
        draw(points, "updates", given.output / f"{one.set}.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
