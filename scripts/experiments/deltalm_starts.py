"""Train DeltaLM from five starts on the same pairs: does pre-training help, and does the decoder look at its source?

    python scripts/experiments/deltalm_starts.py --data multi30k --output out
    python scripts/experiments/deltalm_starts.py --data multi30k --output out --starts random "synthetic, x 3"

DATA has train, valid and test as .src and .tgt, one sentence per line. A SentencePiece model is trained on the training
pairs. The starts are

* random: the model's own initialization
* encoder: encoder and decoder begin with the weights of a random encoder like XLM-R
* spans: the model of "encoder" after span corruption of both sides, and translation span corruption, on the same pairs
* synthetic: the model of "encoder" after training on synthetic pairs (``s2sft pretrain synthetic-deltalm``)
* synthetic, then spans: both, one after the other, each for half of the updates

These might help the third and the fourth:

* random, lr x 2; synthetic, lr x 2: twice the learning rate of fine-tuning
* synthetic, x 3: three times as many updates of pre-training on synthetic pairs
* long spans: spans of 10 tokens on average instead of 3
* pairs: the same, without plain text: the words of a span are often in the other language only

Each seed has an encoder and pre-trainings of its own. Each start is fine-tuned with each seed at a constant learning
rate. At each budget a part of the test set is translated greedily, and the held-out loss is computed with the right
sources and with those of other pairs: where the two losses are equal, the decoder does not look at its source.
OUTPUT/starts.md has BLEU and losses, with intervals over seeds and sentences. Stages that are done are not repeated.
Several processes may share OUTPUT if they train different seeds.
``--budgets`` names other numbers of updates, and needs another OUTPUT.

Hypotheses, written before the first run:

1. "synthetic" is above "random" and "encoder" at every budget up to 1,500 updates.
2. "spans" is below "encoder" after 1,500 updates, as in an earlier run with one seed: span corruption teaches the
   decoder to write without its source.
3. "synthetic, then spans" is above "spans": once the decoder looks at its source, span corruption keeps it so.

The first five starts showed that "synthetic" is ahead only up to 200 updates, and "spans" behind. Before the remedies:

4. A model that looks at its source gains from a higher learning rate: "synthetic, lr x 2" is above "random, lr x 2".
5. "synthetic, x 3" is not above "synthetic" after 800 updates: what it learns is learned early anyway.
6. "pairs" is above "long spans", and that above "spans", because more of a target must be read from the source.
"""

import argparse
import json
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from blocks import source_lines
from intervals import interval_of, table
from logs import log_records
from sentencepiece import SentencePieceTrainer
from torch import nn

from s2sft_fairseq import cli
from s2sft_fairseq.checkpoints.conversion import Conversion
from s2sft_fairseq.checkpoints.pretrained import write_pretrained
from s2sft_fairseq.checksums import write_checksums
from s2sft_fairseq.data.text_files import write_lines
from s2sft_fairseq.evaluation.bleu import sacrebleu
from s2sft_fairseq.evaluation.examples import Example
from s2sft_fairseq.evaluation.settings import Settings
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.models.unilm_config import SIZES, UnilmConfig, complete_sizes
from s2sft_fairseq.objectives.span_corruption import SENTINEL
from s2sft_fairseq.recipes.engine import Stages, options
from s2sft_fairseq.recipes.training import NEVER

BUDGETS = (100, 200, 400, 800, 1500)
SENTINELS = 30
POSITIONS = 128
MODEL = {"encoder_layers": 4, "encoder_embed_dim": 128, "encoder_ffn_embed_dim": 512, "encoder_attention_heads": 2}
RANDOM = ["--random-init", "--arch", "deltalm_tiny", *options(**MODEL, max_positions=POSITIONS)]
SYNTHETIC = {"synthetic": ("all", 1.0), "half": ("half", 0.5), "synthetic x 3": ("long", 3.0)}
"""Pre-trainings on synthetic pairs: the name of the run, and its share of the updates."""


class Spans(NamedTuple):
    """A pre-training by span corruption."""

    begin: str = "encoder"
    share: float = 1.0
    """Of the updates."""
    words: Sequence[str] = ("--text-languages", "src,tgt")


SPANS = {
    "spans": Spans(),
    "synthetic-spans": Spans("half", 0.5),
    "long-spans": Spans(words=("--text-languages", "src,tgt", "--mean-span-length", "10")),
    "pairs": Spans(words=("--mean-span-length", "10")),
}


class Start(NamedTuple):
    """A start of fine-tuning."""

    begin: str | None
    """The pre-training; None: random weights."""
    lr: float = 1.0
    """Factor of the learning rate."""


STARTS = {
    "random": Start(None),
    "encoder": Start("encoder"),
    "spans": Start("spans"),
    "synthetic": Start("synthetic"),
    "synthetic, then spans": Start("synthetic-spans"),
    "random, lr x 2": Start(None, 2.0),
    "synthetic, lr x 2": Start("synthetic", 2.0),
    "synthetic, x 3": Start("synthetic x 3"),
    "long spans": Start("long-spans"),
    "pairs": Start("pairs"),
}
_OF_A_RUN = ("output", "seeds", "starts", "train_only")
"""Options that may differ between processes with the same output."""


class Experiment(Stages):
    """The stages of the experiment; each makes a file or a folder."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.output = given, given.output.resolve()
        self.budgets = tuple(sorted(given.budgets))  # a training goes on from one budget to the next
        self.output.mkdir(parents=True, exist_ok=True)
        super().__init__("starts", self.output / "commands.jsonl", cli.call)

    def run(self) -> None:
        """Run the stages that are not done."""
        settings = {name: value for name, value in vars(self.given).items() if name not in _OF_A_RUN}
        settings["budgets"] = self.budgets
        self.pin(self.output / "settings.json", ["texts"], **settings)
        for name, work in (
            ("texts", self.texts),
            ("tokenizer", self.tokenizer),
            ("tokens", self.tokens),
            ("data", self.binarize),
        ):
            self.stage(self.output / name, name, work)
        for seed in self.given.seeds:
            for name in self.given.starts:
                made = self.run_folder(name, seed) / "scores.json"
                work = partial(self.fine_tune, name, seed)
                self.stage(made, f"{name}, seed {seed}", work)

    def begin_folder(self, seed: int) -> Path:
        """Return the folder of the encoder and the pre-trainings of a seed."""
        return self.output / f"begin-seed{seed}"

    def run_folder(self, start: str, seed: int) -> Path:
        """Return the folder of a fine-tuning."""
        name = start.replace(", then ", "-").replace(", ", "-").replace(" ", "")
        return self.output / f"{name}-seed{seed}"

    def pretrained(self, name: str, seed: int) -> Path:
        """Make the encoder or the pre-training of a seed, unless it is there; return the model."""
        begin, updates = self.begin_folder(seed), self.given.pretraining_updates
        begin.mkdir(exist_ok=True)
        if name in SYNTHETIC:
            run, share = SYNTHETIC[name]
            self.synthetic(run, round(share * updates), seed)
            return begin / "synthetic" / run / "deltalm"
        if name in SPANS:
            self.stage(begin / name, f"{name}, seed {seed}", partial(self.corrupt_spans, SPANS[name], seed))
            return begin / name / "checkpoint_last.pt"
        self.stage(begin / "encoder", f"encoder, seed {seed}", partial(self.encoder, seed))
        return begin / "encoder"

    def texts(self, made: Path) -> None:
        """Write the pairs, evenly spaced test pairs, and the held-out pairs with the sources of others."""
        made.mkdir()
        for side in ("src", "tgt"):
            for split in ("train", "valid"):
                write_lines(made / f"{split}.{side}", source_lines(self.given.data / f"{split}.{side}"))
            lines = source_lines(self.given.data / f"test.{side}")
            spread = np.linspace(0, len(lines) - 1, self.given.sources).astype(int)
            write_lines(made / f"test.{side}", [lines[number] for number in spread])
        sources = source_lines(made / "valid.src")
        write_lines(made / "other.src", [*sources[1:], sources[0]])
        shutil.copy(made / "valid.tgt", made / "other.tgt")

    def tokenizer(self, made: Path) -> None:
        made.mkdir()
        texts = self.output / "texts"
        SentencePieceTrainer.train(
            input=[str(texts / "train.src"), str(texts / "train.tgt")],
            model_prefix=str(made / "sentencepiece.bpe"),
            vocab_size=self.given.vocab,
            minloglevel=2,
        )

    def tokens(self, made: Path) -> None:
        splits = ("train", "valid", "other")
        files = [self.output / "texts" / f"{split}.{side}" for split in splits for side in ("src", "tgt")]
        made.mkdir()
        named = {"tokenizer_dir": self.output / "tokenizer", "output_dir": made, "dict": made / "dict.txt"}
        self.s2sft("tokenize", input=files, **named)
        with (made / "dict.txt").open("a", encoding="utf-8") as file:
            file.writelines(f"{SENTINEL.format(number)} 1\n" for number in range(SENTINELS))
        write_checksums(made)

    def binarize(self, made: Path) -> None:
        """Binarize the pairs, and each side as plain text: one document, which is cut into samples."""
        tokens = self.output / "tokens"
        common = {"srcdict": tokens / "dict.txt", "workers": 1}
        sides = {"source_lang": "src", "target_lang": "tgt", "joined_dictionary": True}
        held_out = f"{tokens / 'valid'},{tokens / 'other'}"
        self.s2sft("preprocess", trainpref=tokens / "train", validpref=held_out, destdir=made, **sides, **common)
        for side in ("src", "tgt"):
            sets = {"trainpref": tokens / f"train.{side}", "validpref": tokens / f"valid.{side}"}
            self.s2sft("preprocess", only_source=True, destdir=made / side, **sets, **common)

    def encoder(self, seed: int, made: Path) -> None:
        """Write an encoder of random weights, initialized like fairseq's Transformer, with the files of the tokenizer.

        XLM-R begins with a standard deviation of 0.02 at any width. At this width, the signal from the source would be
        too small to learn from it in this number of updates.
        """
        torch.manual_seed(seed)
        dictionary = self.output / "tokens" / "dict.txt"
        cfg = UnilmConfig(**MODEL, max_positions=POSITIONS, num_segments=0)
        complete_sizes(cfg)
        model = UnilmModel(cfg, vocab_size=len(source_lines(dictionary)), pad=1)
        for name, value in model.named_parameters():
            if name.startswith("embeddings.") and value.dim() == 2:
                nn.init.normal_(value, std=cfg.encoder_embed_dim**-0.5)
            elif value.dim() == 2:
                nn.init.xavier_uniform_(value)
        write_pretrained(made, Conversion("XLM-R", model.state_dict(), {name: getattr(cfg, name) for name in SIZES}))
        shutil.copy(dictionary, made)
        shutil.copy(self.output / "tokenizer" / "sentencepiece.bpe.model", made)

    def synthetic(self, name: str, updates: int, seed: int) -> None:
        """Pre-train on synthetic pairs; what is done before is not repeated."""
        begin = self.begin_folder(seed)
        encoder = self.pretrained("encoder", seed)
        further = options(max_tokens=self.given.max_tokens, update_freq=1, lr=self.given.pretraining_lr, dropout="0.1")
        self.s2sft(
            *("pretrain", "synthetic-deltalm", "--encoder", encoder, "--output", begin / "synthetic"),
            *("--run", name, "--updates", updates, "--seed", seed, "--", *further, "--cpu", "--num-workers", 0),
        )

    def corrupt_spans(self, spans: Spans, seed: int, made: Path) -> None:
        """Pre-train by span corruption of texts and of pairs."""
        updates = round(spans.share * self.given.pretraining_updates)
        words = options(task="deltalm_pretraining", arch="deltalm", pretrained=self.pretrained(spans.begin, seed))
        words += options(lang_pairs="src-tgt", tokens_per_sample=100, temperature=1)
        words += options(lr=self.given.pretraining_lr, lr_scheduler="polynomial_decay", warmup_updates=updates // 10)
        self.train_up_to(updates, made, *words, *spans.words, *options(seed=seed))

    def fine_tune(self, name: str, seed: int, made: Path) -> None:
        """Fine-tune up to each budget; write held-out losses, and the counts of BLEU of each test sentence."""
        start, folder, model = STARTS[name], self.run_folder(name, seed), RANDOM
        tokenizer = self.pretrained("encoder", seed)
        if start.begin is not None:
            model = ["--arch", "deltalm", *options(pretrained=self.pretrained(start.begin, seed))]
        lr = start.lr * float(self.given.lr)
        words = options(criterion="label_smoothed_cross_entropy", label_smoothing="0.1", lr=f"{lr:g}", seed=seed)
        words += options(lr_scheduler="fixed", warmup_updates=60, valid_subset="valid,valid1")
        found: dict[int, dict[str, Any]] = {}
        for budget in self.budgets:
            written = folder / f"{budget}.txt"
            if not written.exists():
                self.train_up_to(budget, folder, *model, *words, *options(validate_interval_updates=budget))
                named = {"path": folder / "checkpoint_last.pt", "tokenizer_dir": tokenizer, "beam": 1}
                self.s2sft("generate", **named, input=self.output / "texts" / "test.src", output=written, cpu=True)
            found[budget] = {
                **held_out_losses(folder / "train.log", budget),
                "counts": self.bleu(written).counts.tolist(),
            }
        for checkpoint in folder.glob("*.pt"):
            checkpoint.unlink()
        made.write_text(json.dumps(found), encoding="utf-8")

    def train_up_to(self, updates: int, folder: Path, *words: str) -> None:
        """Train, or resume, and save only the last checkpoint."""
        folder.mkdir(exist_ok=True)
        self.s2sft(
            *("train", self.output / "data", *words),
            *options(optimizer="fused_adamw", adam_betas="(0.9, 0.98)", clip_norm="1.0", dropout="0.1"),
            *options(max_tokens=self.given.max_tokens, update_freq=1, max_update=updates, cpu=True, num_workers=0),
            *options(save_dir=folder, save_interval_updates=updates, keep_interval_updates=1, save_interval=NEVER),
            *options(
                validate_interval=NEVER,
                no_epoch_checkpoints=True,
                no_model_folder=True,
                ignore_unused_valid_subsets=True,
            ),
            *options(no_progress_bar=True, log_interval=50, log_format="json", log_file=folder / "train.log"),
        )

    def bleu(self, written: Path) -> Any:
        """Return sacreBLEU's counts of each sentence."""
        texts = zip(source_lines(written), source_lines(self.output / "texts" / "test.tgt"), strict=True)
        examples = [Example(hypothesis, (reference,)) for hypothesis, reference in texts]
        return sacrebleu(examples, Settings()).statistics


def held_out_losses(log: Path, updates: int) -> dict[str, float]:
    """Return the losses with the right and with other sources, in bits per token, after some updates."""
    losses = {}
    for record in log_records(log):
        for name, subset in (("loss", "valid"), ("loss with other sources", "valid1")):
            if int(record.get(f"{subset}_num_updates", 0)) == updates:
                losses[name] = float(record[f"{subset}_nll_loss"])
    return losses


def tabulate(experiment: Experiment, path: Path) -> None:
    """Write BLEU with intervals, differences from the first start, and the losses with both kinds of sources."""
    found = {
        start: [
            json.loads((experiment.run_folder(start, seed) / "scores.json").read_text(encoding="utf-8"))
            for seed in experiment.given.seeds
        ]
        for start in experiment.given.starts
    }
    budgets = experiment.budgets
    score = experiment.bleu(next(experiment.output.glob(f"*-seed*/{budgets[0]}.txt"))).scores
    counts = {
        (start, budget): np.array([of_seed[str(budget)]["counts"] for of_seed in of_seeds])
        for start, of_seeds in found.items()
        for budget in budgets
    }

    def bleu(start: str, budget: int, seeds: Any, sentences: Any) -> float:
        """Return the mean over seeds of BLEU over sentences."""
        sums = counts[start, budget][seeds][:, sentences].sum(axis=1)
        return float(np.mean([score(of_seed)["BLEU"] for of_seed in sums]))

    baseline = experiment.given.starts[0]
    shape = counts[baseline, budgets[0]].shape[:2]
    columns = [f"{budget} updates" for budget in budgets]
    scores, differences, losses = {}, {}, {}
    for start, of_seeds in found.items():
        scores[start] = [interval_of(lambda *at, b=budget, s=start: bleu(s, b, *at), *shape) for budget in budgets]
        compared = [
            interval_of(lambda *at, b=budget, s=start: bleu(s, b, *at) - bleu(baseline, b, *at), *shape)
            for budget in budgets
        ]
        differences[start] = [f"{difference}, {difference.verdict}" for difference in compared]
        names = ("loss", "loss with other sources")
        means = [[np.mean([of[str(budget)][name] for of in of_seeds]) for name in names] for budget in budgets]
        losses[start] = [f"{right:.2f}, {other:.2f}" for right, other in means]
    del differences[baseline]
    parts = {"BLEU": scores, f"BLEU, difference from {baseline}": differences, "Held-out loss, other sources": losses}
    path.write_text("\n".join(f"{name}:\n\n{table(columns, part)}" for name, part in parts.items()), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--vocab", type=int, default=4000, metavar="N", help="pieces (default: 4000)")
    parser.add_argument("--max-tokens", type=int, default=2048, metavar="N", help="of a batch (default: 2048)")
    parser.add_argument("--lr", default="1e-3", metavar="X", help="of fine-tuning (default: 1e-3)")
    parser.add_argument("--pretraining-lr", default="5e-4", metavar="X", help="(default: 5e-4)")
    parser.add_argument("--pretraining-updates", type=int, default=1000, metavar="N", help="(default: 1000)")
    parser.add_argument("--budgets", type=int, nargs="+", default=BUDGETS, metavar="N", help="(default: 100 to 1500)")
    parser.add_argument("--sources", type=int, default=250, metavar="N", help="of the test set (default: 250)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5], metavar="N", help="(default: 1 to 5)")
    parser.add_argument(
        "--starts",
        nargs="+",
        choices=STARTS,
        default=list(STARTS)[:5],
        metavar="START",
        help="the first one is the baseline of the table (default: the first five of the list above)",
    )
    parser.add_argument("--train-only", action="store_true", help="leave the table to a later run")
    given = parser.parse_args(arguments)
    given.data = given.data.resolve()
    experiment = Experiment(given)
    status = cli.guarded("deltalm_starts", experiment.run)
    if not status and not given.train_only:
        tabulate(experiment, given.output / "starts.md")
    return status


if __name__ == "__main__":
    sys.exit(main())
