"""The record of a benchmark, and the base of all recipes.

A benchmark consists of a reader of its raw files, and the settings of its papers. All recipes share settings, and the
stages up to a trained model.
"""

import contextlib
import os
import re
import shlex
import shutil
import sys
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from s2sft_fairseq.checkpoints.paddle_files import paddle_model
from s2sft_fairseq.corpora.reading import Malformed
from s2sft_fairseq.corpora.writing import write_corpus
from s2sft_fairseq.data.bounded_files import read_text
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.hub import is_hub_name, local_path
from s2sft_fairseq.received import has_part, part
from s2sft_fairseq.recipes.engine import Call, Stages, is_converted, options
from s2sft_fairseq.recipes.settings import RUN, SMOKE_LINES, SMOKE_UPDATES, TRAINING, BySource, Setting, Settings
from s2sft_fairseq.recipes.training import count_updates

LARGE_LR = "2e-5"
_CHOICES = ("method", "preset", "set")  # other settings depend on these, and on the options of a benchmark

Splits = Mapping[str, Iterable[Any]]
Read = Callable[[Namespace, Malformed], Splits]
Writer = Callable[..., dict[str, Any]]
Options = Mapping[str, Setting]


@dataclass(frozen=True)
class Benchmark:
    """The record of a benchmark; docs/recipes.md explains how to add one."""

    about: str
    """A sentence with its name, its sources and its targets."""
    raw: str
    """The raw files in their folder DIR, and where they are published."""
    read: Read
    """A function from the options of ``s2sft prepare`` to the examples of each split."""
    settings: BySource
    """Settings that differ from those of the `recipe`."""
    recipe: "type[Recipe]"
    """The class with the stages."""
    notes: str = ""
    """Notes about settings and scores."""
    options: Options = field(default_factory=dict)
    """Options of ``s2sft prepare`` and of the recipe for this benchmark."""
    reader_options: Options = field(default_factory=dict)
    """Options of only ``s2sft prepare`` for this benchmark."""
    recipe_options: Options = field(default_factory=dict)
    """Options of only the recipe for this benchmark."""
    depends: Callable[[Settings], None] = lambda settings: None
    """A function that sets the settings that depend on others, and raises `UserError` if settings contradict."""
    deltalm: BySource = field(
        default_factory=lambda: {"all positions, for the paper names no limit": {"max_source": 512, "max_target": 512}}
    )
    """Settings with --method deltalm that differ from those of DeltaLM's paper."""
    writer: Callable[[Namespace], Writer] = lambda options: write_corpus
    """A function from the options of ``s2sft prepare`` to a function with the parameters of `write_corpus`."""


def of_folder(read: Callable[[Path, Malformed], Splits]) -> Read:
    """Return the reader of a benchmark without options."""
    return lambda options, malformed: read(options.raw, malformed)


class Recipe(Stages):
    """The settings of a recipe, and the stages that make files and folders in its output."""

    run_options: ClassVar[Mapping[str, Setting]] = RUN
    declared: ClassVar[Mapping[str, Setting]] = TRAINING
    values: ClassVar[BySource] = {}
    """The settings of all benchmarks of this kind; the record of a benchmark may change them."""
    searched: ClassVar[Sequence[str]] = (
        *("lr", "epochs", "updates", "warmup", "warmup_share", "batch", "dropout", "weight_decay", "adam_eps"),
    )
    """Settings that ``--grid`` may search: those of a training that no other training of an output shares."""
    tokens_name: ClassVar[str] = "tokens"
    """Name of the folder of tokenized texts."""

    def __init__(self, name: str, benchmark: Benchmark, settings: Settings, further: Sequence[str], call: Call) -> None:
        """Prepare the stages.

        Args:
            name: the name of the benchmark.
            benchmark: its record.
            settings: the result of `configure`.
            further: options of ``s2sft train``, which have precedence over all settings.
            call: runs a command.
        """
        self.benchmark, self.settings, self.further = benchmark, settings, further
        self.output = Path(settings.output or f"recipes-out/{self.output_name(name, settings)}")
        self.work = self.output / (settings.run or self.run_name())
        self.corpus, self.encoder = self.output / "corpus", self.output / "encoder"
        self.tokens, self.binarized = self.output / self.tokens_name, self.output / "binarized"
        super().__init__(name, self.work / "commands.jsonl", call)

    @classmethod
    def configurable(cls, benchmark: Benchmark) -> dict[str, Setting]:
        """Return the settings that a configuration file may have."""
        return {**benchmark.options, **benchmark.recipe_options, **cls.declared}

    @classmethod
    def configure(cls, name: str, benchmark: Benchmark, given: Mapping[str, Any], file: Mapping[str, Any]) -> Settings:
        """Return all settings.

        Args:
            name: the name of the benchmark.
            benchmark: its record.
            given: settings of the command line, which have precedence.
            file: settings of a configuration file. A setting that has its default value there may still change with
                other settings.

        Raises:
            UserError: settings contradict each other.
        """
        own = [*_CHOICES, *benchmark.options, *benchmark.recipe_options]
        chosen = {key: value for key, value in file.items() if key in own and value}
        usual = cls._settle(name, benchmark, {"": chosen})
        edited = {key: value for key, value in file.items() if value != getattr(usual, key)}
        return cls._settle(name, benchmark, {"the command line": given, "--config": chosen | edited})

    @classmethod
    def _settle(cls, name: str, benchmark: Benchmark, given: BySource) -> Settings:
        settings = Settings({**cls.run_options, **cls.configurable(benchmark)}, cls.values, benchmark.settings)
        settings.give(given)
        cls.choose(name, benchmark, settings)
        benchmark.depends(settings)
        if settings.smoke:
            settings.limit = settings.limit or SMOKE_LINES
            settings.updates = settings.updates or SMOKE_UPDATES
            settings.batch, settings.accumulate = settings.device_batch, 1
            settings.given.add("accumulate")
        return settings

    @classmethod
    def choose(cls, name: str, benchmark: Benchmark, settings: Settings) -> None:
        """Set the values of a method or a preset; by default do nothing."""

    @classmethod
    def output_name(cls, name: str, settings: Settings) -> str:
        """Return the name of the output folder."""
        return name

    def run_name(self) -> str:
        """Return the name of the folder of this run."""
        return f"seed{self.settings.seed}"

    def ranges_of_paper(self) -> dict[str, list[str]]:
        """Return the values of each setting that the paper of this kind of benchmark tried."""
        return {}

    def score_files(self) -> list[Path]:
        """Return the files of the scores of a finished run."""
        raise NotImplementedError

    def problems(self) -> Iterator[str]:
        """Yield the problems of the settings of a run."""
        s, hyp = self.settings, getattr(self.settings, "hyp", "")
        if not (s.raw or s.dry_run or s.dump_config):
            yield "--raw is needed: the folder of the raw files (docs/recipes.md)"
        if not (s.encoder or s.smoke or s.dry_run or s.dump_config or hyp):
            yield "--encoder is needed: a folder with a pretrained encoder"
        if s.raw and not Path(s.raw).is_dir():
            yield f"--raw must be a folder, but {s.raw} is not one"
        if s.encoder and not (Path(s.encoder).is_dir() or is_hub_name(s.encoder)):
            yield f"--encoder must be a folder, or a name on the Hugging Face hub, but {s.encoder} is neither"
        if s.encoder and (what := paddle_model(Path(s.encoder))):
            yield f"--encoder {s.encoder} holds {what}"
        if hyp and not Path(hyp).is_file():
            yield f"--hyp must be a file, but {hyp} is not one"

    def find_encoder(self) -> None:
        """Replace the name of an encoder on the hub by the folder of its files, which may be downloaded.

        Raises:
            UserError: it cannot be downloaded.
        """
        if self.settings.encoder:
            self.settings.encoder = str(local_path(self.settings.encoder))

    def is_large(self) -> bool:
        """Return whether the encoder is known to be 1,024 wide or more."""
        config = Path(self.settings.encoder, "config.json")
        if not self.settings.encoder or not has_part(config):
            return False
        width = re.search(r'"(?:hidden_size|encoder_embed_dim)"\s*:\s*(\d{1,9})\b', read_text(config))
        return width is not None and int(width[1]) >= 1024

    def choose_lr(self) -> None:
        """Lower the learning rate for large encoders: s2s-ft's appendix A has 1e-5 to 3e-5 instead of 5e-5 to 1e-4."""
        s = self.settings
        if "lr" not in s.given and self.is_large() and float(s.lr) > 3e-5:
            text = f"the learning rate is {LARGE_LR} in place of {s.lr} (--lr takes another)"
            print(f"{self.name}: --encoder is a large one: {text}", file=sys.stderr)
            s.take({"s2s-ft, appendix A, for large encoders": {"lr": LARGE_LR}})

    def show_commands(self) -> None:
        """Print the commands that take long.

        Raises:
            UserError: the length of the training depends on a corpus that does not exist.
        """
        if self.settings.updates is None and not self.counted().exists():
            raise UserError(
                f"--dry-run needs --updates: {self.output} has no corpus from which to count the updates of an epoch"
            )
        self.plan()
        for words in self.commands():
            print(shlex.join(["s2sft", *words]))

    # From raw files to data.

    def reader_options(self) -> list[str]:
        """Return the options of ``s2sft prepare`` for this benchmark."""
        return options(**{name: getattr(self.settings, name) for name in self.benchmark.options})

    def prepare(self, folder: Path, *words: str) -> None:
        """Run ``s2sft prepare`` with the raw files."""
        s = self.settings
        common = {"raw": s.raw, "output": folder, "limit": s.limit, "skip_malformed": s.skip_malformed}
        self.s2sft("prepare", self.name, *words, **common)

    def prepare_corpus(self, _: Path) -> None:
        """Prepare the corpus."""
        self.prepare(self.corpus, *self.reader_options())

    def pin_corpus(self) -> None:
        """Record the settings of the corpus, which all trainings of an output share."""
        s, words = self.settings, shlex.join(self.reader_options())
        named = {"raw": Path(s.raw).resolve(), "limit": s.limit, "prepare": words, "skip_malformed": s.skip_malformed}
        self.pin(self.output / "corpus.settings", ("corpus", "tokens", "binarized"), **named)

    def pin_encoder(self, **further: object) -> None:
        """Record the settings of the encoder and the binarized data, which all trainings of an output share."""
        encoder = Path(self.settings.encoder).resolve() if self.settings.encoder else ""
        made = ("encoder", self.tokens_name, "fitted", "binarized")
        self.pin(self.output / "encoder.settings", made, encoder=encoder, **further)

    def kept(self) -> list[str]:
        """Return the tokens that the encoder needs and may lack."""
        return []

    def conversion(self) -> list[str]:
        """Return the options of ``s2sft convert``."""
        return []

    def vocabulary(self) -> list[Path]:
        """Return the texts from which --smoke makes a tokenizer if no encoder is given."""
        return [self.corpus / "train.txt"]

    def make_encoder(self, made: Path) -> None:
        """Convert the encoder, or without one make a tiny tokenizer for --smoke.

        Raises:
            UserError: it is already converted, and lacks a token.
        """
        if not self.settings.encoder:
            from s2sft_fairseq.tokenization.wordpiece import train_wordpiece

            return train_wordpiece(made, self.vocabulary(), self.kept())
        encoder = Path(self.settings.encoder)
        if is_converted(encoder):
            known = {line.split(" ")[0] for line in read_text(part(encoder / "dict.txt")).split("\n")}
            if lacking := [token for token in self.kept() if token not in known]:
                raise UserError(
                    f"--encoder {encoder} is converted, but without {' '.join(lacking)}: give the one that it was "
                    f"converted from, or convert that with s2sft convert {shlex.join(self.conversion())}"
                )
        return self.convert(encoder, made, *self.conversion())

    def workers(self) -> int:
        """Return the number of processes for tokenizing and binarizing."""
        return self.settings.workers or len(os.sched_getaffinity(0))

    def tokenize(self, made: Path, texts: Iterable[Path], separator: str) -> None:
        """Tokenize texts into a folder."""
        named = {"tokenizer_dir": self.encoder, "output_dir": made, "separator": separator, "input": list(texts)}
        self.s2sft("tokenize", **named, workers=self.workers())

    def preprocess(self, made: Path, **named: object) -> None:
        """Binarize tokenized texts."""
        with (self.output / "binarize.log").open("a", encoding="utf-8") as log, contextlib.redirect_stdout(log):
            common = {"srcdict": self.encoder / "dict.txt", "destdir": made, "workers": self.workers()}
            self.s2sft("preprocess", **named, **common)

    # The training.

    def plan(self) -> None:
        """Set the length of the training."""
        count_updates(self.settings, self.counted())

    def counted(self) -> Path:
        """Return the file with a line for each training example."""
        return self.tokens / "train.txt"

    def training(self) -> list[str]:
        """Return the arguments of ``s2sft train``."""
        raise NotImplementedError

    def commands(self) -> Iterator[list[str]]:
        """Yield the commands that take long."""
        yield ["train", *self.training()]

    def pin_training(self, names: Iterable[str], **further: object) -> None:
        """Record the settings of the model; `names` are names of settings."""
        named = {name: getattr(self.settings, name) for name in names}
        made = ("checkpoints/checkpoint_last.pt", "best.pt")
        self.pin(self.work / "settings", made, **named, **further, train=shlex.join(self.further))

    def train_model(self) -> None:
        """Make ``best.pt`` and the plot of the losses."""
        s, checkpoints, best = self.settings, self.work / "checkpoints", self.work / "best.pt"

        def work(_: Path) -> None:
            self.train(self.work, self.training(), s.updates)
            if averaged := getattr(s, "averaged", 0):
                self.s2sft("average", checkpoints, last=averaged, output=best)
            else:
                (checkpoints / "checkpoint_best.pt").rename(best)
            shutil.rmtree(checkpoints)

        self.stage(best, f"train, {s.updates} updates" if s.updates else f"train, {s.epochs} epochs", work)
        if (self.work / "train.log").exists():
            self.stage(self.work / "training.png", "plot", lambda _: self.plot(self.work))

    def score(self, made: Path, *words: str, **named: object) -> None:
        """Score generated texts or predictions. This is repeated in each run, because its options may have changed."""
        scores = self.printed("evaluate", *words, **named, json=made.with_suffix(".json"))
        print(scores, end="", flush=True)
        made.with_suffix(".scores").write_text(scores, encoding="utf-8")
