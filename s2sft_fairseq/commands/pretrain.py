"""Pre-train an encoder on plain text: from the text to a folder that fine-tuning begins with.

    s2sft pretrain ernie-gen-base --text books --encoder bert-base-uncased --output out
    s2sft pretrain ernie-gen-base --text books --tokenizer-dir vocab --output out --updates 500 \\
        -- --arch unilm_tiny --update-freq 1 --cpu

`--text` is a folder with train.txt and valid.txt, a paragraph a line and an empty line behind each document. Settings
are those of the paper, for as many GPUs as there are; options of ``s2sft train`` behind ``--`` win over them. Stages:
convert, tokenize, find spans, binarize, train. One that is done is not done again; a training that was stopped goes on.
The trainings of one output share the text. The encoder is OUT/RUN/encoder, for ``--pretrained`` and for recipes.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

SAVED_AFTER = 1000
"""Updates that are lost at most when a training is stopped."""
MADE = {
    "begin.settings": ("begin",),
    "text.settings": ("tokens",),
    "settings": ("checkpoints/checkpoint_last.pt", "encoder", "deltalm"),
}
"""Which files are made with the settings of a file: before one of them is there, these may change."""
ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "s2sft_fairseq" / "recipes"


class Preset(NamedTuple):
    """Settings of a paper."""

    task: str
    model: tuple[str, ...]
    """Where there is no encoder to begin with."""
    lr: str
    updates: int
    warmup: int
    positions: int
    """Of the packed texts of an update."""
    options: tuple[str, ...]
    """Further ones of ``s2sft train``."""
    spans: bool
    """Whether it has a span-by-span flow."""


_BASE, _LARGE = ("--arch", "unilm_base"), ("--arch", "unilm_large")
# UniLMv2, section 4.1: 7680 texts of 512 tokens, of which 15 % are there three times.
_UNILMV2 = ("--adam-betas", "(0.9, 0.98)", "--adam-eps", "1e-6", "--label-smoothing", "0", "--clip-norm", "0")
_RELATIVE = ("--relative-position-bins", "32", "--max-relative-position", "128")
_ERNIE_GEN = ("--adam-betas", "(0.9, 0.999)", "--adam-eps", "1e-9", "--label-smoothing", "0", "--clip-norm", "1.0")
# ERNIE-GEN, section 4.1; what it says nothing of (decay, smoothing, dropout, clipping) is BERT's.
PRESETS = {
    "unilmv2-base": Preset(
        "unilm_pretraining", (*_BASE, *_RELATIVE), "6e-4", 500_000, 24_000, 7680 * 666, _UNILMV2, spans=False
    ),
    "ernie-gen-base": Preset("ernie_gen_pretraining", _BASE, "5e-5", 400_000, 4000, 196_608, _ERNIE_GEN, spans=True),
    "ernie-gen-large": Preset("ernie_gen_pretraining", _LARGE, "5e-5", 450_000, 4000, 196_608, _ERNIE_GEN, spans=True),
}


def main(arguments: Sequence[str]) -> None:
    """Run the command line; ends the process if a stage fails."""
    words = list(arguments)
    place = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(
        prog="s2sft pretrain", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("preset", choices=PRESETS)
    parser.add_argument("--text", type=Path, required=True, metavar="DIR", help="with train.txt and valid.txt")
    start = parser.add_mutually_exclusive_group(required=True)
    start.add_argument("--encoder", type=Path, metavar="DIR", help="to begin with, as it is published or converted")
    start.add_argument("--tokenizer-dir", type=Path, metavar="DIR", help="such as BERT's vocab.txt: random weights")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--run", metavar="NAME", help="folder in it of this training (default: the preset)")
    parser.add_argument("--updates", type=int, metavar="N", help="(default: the paper's)")
    parser.add_argument("--device-tokens", type=int, default=8192, metavar="N", help="positions at a time on a device")
    parser.add_argument("--word-flow-only", action="store_true", help="ERNIE-GEN without the span-by-span flow")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="(default: 1)")
    options = parser.parse_args(words[:place])
    if problems := find_problems(options):
        parser.error("; ".join(problems))
    for name in ("text", "encoder", "tokenizer_dir"):  # remembered, wherever the next command is run from
        if path := getattr(options, name):
            setattr(options, name, path.resolve())
    Pretraining(options, words[place + 1 :]).run()


def find_problems(options: argparse.Namespace) -> list[str]:
    """Tell everything that is wrong with the options."""
    numbers = {"--updates": options.updates, "--device-tokens": options.device_tokens}
    folders = {"--text": options.text, "--encoder": options.encoder, "--tokenizer-dir": options.tokenizer_dir}
    problems = [f"{name} must be at least 1, but is {n}" for name, n in numbers.items() if n is not None and n < 1]
    problems += [f"{name} must be a folder, but {at} is none" for name, at in folders.items() if at and not at.is_dir()]
    missing = [name for name in ("train.txt", "valid.txt") if not (options.text / name).is_file()]
    if missing and options.text.is_dir():
        problems.append(f"--text must hold {' and '.join(missing)}, but {options.text} does not")
    return problems


class Pretraining:
    """The stages of one training."""

    def __init__(self, options: argparse.Namespace, further: Sequence[str]) -> None:
        self.options, self.further = options, further
        self.preset = PRESETS[options.preset]
        self.output = options.output.resolve()
        self.folder = self.output / (options.run or options.preset)
        self.spans = self.preset.spans and not options.word_flow_only
        # A folder that was converted has the files of its tokenizer.
        self.tokenizer = (options.tokenizer_dir or self.output / "begin").resolve()

    def run(self) -> None:
        """Do what is not done yet."""
        options, output = self.options, self.output
        output.mkdir(parents=True, exist_ok=True)
        self.remember(output / "text.settings", text=options.text, tokenizer=options.tokenizer_dir or options.encoder)
        if options.encoder is not None:
            self.remember(output / "begin.settings", encoder=options.encoder)
            self.stage(output / "begin", "convert", self.convert)
        self.stage(output / "tokens", "tokenize", self.tokenize)
        if self.spans:
            self.stage(output / "spans.txt", "find spans", self.find_spans)
        self.stage(output / "binarized", "binarize", self.binarize)
        self.remember(self.folder / "settings", **vars(options) | {"further": self.further})
        self.stage(self.folder / "encoder", "train", self.train)
        print(f"pretrain: the encoder is {self.folder / 'encoder'}", flush=True)

    def stage(self, made: Path, what: str, work: Callable[[Path], None]) -> None:
        """Make a file or folder under another name first, unless it is there."""
        if made.exists():
            print(f"pretrain: {what}: done before ({made})", flush=True)
            return
        print(f"pretrain: {what} ...", flush=True)
        partial = made.with_name(f"{made.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        work(partial)
        partial.rename(made)

    def remember(self, file: Path, **settings: object) -> None:
        """Note what the files beside this one are made with; ends the process if that has changed."""
        settings = {name: str(value) for name, value in settings.items() if name != "output"}
        file.parent.mkdir(parents=True, exist_ok=True)
        if not file.exists() or not any((file.parent / made).exists() for made in MADE[file.name]):
            file.write_text(json.dumps(settings, indent=1), encoding="utf-8")
        before = json.loads(file.read_text(encoding="utf-8"))
        if changed := [name for name in settings if settings[name] != before.get(name)]:
            sys.exit(
                f"pretrain: error: {file.parent} holds files of other settings; name another folder, or remove it\n"
                + "\n".join(f"  {name}: before {before.get(name)}, now {settings[name]}" for name in changed)
            )

    def s2sft(self, *words: object, **options: object) -> None:
        """Run a command of ours; ends the process if it fails."""
        measured = (SCRIPTS / "measured.py", self.folder / "commands.jsonl", sys.executable)
        self.call(*measured, "-m", "s2sft_fairseq", *words, **options)

    def call(self, *words: object, **options: object) -> None:
        """Run Python with these words; ends the process if it fails."""
        if status := subprocess.run([sys.executable, *map(str, words)], cwd=ROOT, **options).returncode:
            sys.exit(status)

    def convert(self, made: Path) -> None:
        encoder = self.options.encoder.resolve()
        if all((encoder / name).is_file() for name in ("model.pt", "config.json")):
            made.symlink_to(encoder)
        else:
            self.s2sft("convert", encoder, "--to", made)

    def tokenize(self, made: Path) -> None:
        texts = [self.options.text.resolve() / name for name in ("train.txt", "valid.txt")]
        made.mkdir()
        words = ("--tokenizer-dir", self.tokenizer, "--output-dir", made, "--dict", made / "dict.txt")
        self.s2sft("tokenize", "--input", *texts, *words)

    def find_spans(self, made: Path) -> None:
        text = self.output / "tokens" / "train.txt"
        self.s2sft("span-vocab", "--input", text, "--tokenizer-dir", self.tokenizer, "--output", made)

    def binarize(self, made: Path) -> None:
        tokens = self.output / "tokens"
        sets = ("--trainpref", tokens / "train.txt", "--validpref", tokens / "valid.txt")
        self.s2sft("preprocess", "--only-source", "--srcdict", tokens / "dict.txt", *sets, "--destdir", made)

    def training(self, checkpoints: Path, updates: int) -> list[object]:
        """The words of the training; those of the user come last."""
        import torch  # not before the help is shown

        preset, options = self.preset, self.options
        devices = max(1, torch.cuda.device_count())
        every = max(1, updates // 20)
        # A training that is a good deal shorter than the paper's is warmed up for a tenth of it.
        warmup = preset.warmup if 4 * preset.warmup <= updates else updates // 10
        begin = preset.model if options.encoder is None else ("--pretrained", self.output / "begin")
        if options.encoder and "--relative-position-bins" in preset.model:
            print("pretrain: relative positions are those of the encoder, if it has any", flush=True)
        return [
            *("train", self.output / "binarized", "--task", preset.task, *begin, "--seed", options.seed),
            *(("--span-vocab", self.output / "spans.txt") if self.spans else ()),
            *("--criterion", "mask_attention", "--optimizer", "fused_adamw", "--weight-decay", "0.01", *preset.options),
            *("--dropout", "0.1", "--attention-dropout", "0.1", "--lr", preset.lr),
            *("--lr-scheduler", "polynomial_decay", "--warmup-updates", warmup, "--max-update", updates),
            *("--max-tokens", options.device_tokens),
            *("--update-freq", max(1, round(preset.positions / (options.device_tokens * devices)))),
            *("--validate-interval-updates", every, "--save-interval-updates", min(every, SAVED_AFTER)),
            *("--keep-interval-updates", "1"),
            *("--validate-interval", "1000000", "--save-interval", "1000000", "--no-epoch-checkpoints"),
            *("--save-dir", checkpoints, "--log-interval", max(1, updates // 200), "--log-format", "json"),
            *("--log-file", self.folder / "train.log", "--no-progress-bar", *self.further),
        ]

    def train(self, made: Path) -> None:
        """Train, export the last checkpoint, converted again, and draw the losses."""
        updates, checkpoints = self.options.updates or self.preset.updates, self.folder / "checkpoints"
        progress = [sys.executable, str(SCRIPTS / "training_log.py"), str(updates)]
        if not (checkpoints / "checkpoint_last.pt").exists():  # what a training before saved nothing of
            (self.folder / "train.log").unlink(missing_ok=True)
        with subprocess.Popen(progress, stdin=subprocess.PIPE) as shown:
            self.s2sft(*self.training(checkpoints, updates), stdout=shown.stdin)
        exported = self.folder / "exported"
        shutil.rmtree(exported, ignore_errors=True)
        last = checkpoints / "checkpoint_last.pt"
        self.s2sft("export", last, "--tokenizer-dir", self.tokenizer, "--to", exported)
        self.s2sft("convert", exported, "--to", made)
        curves = (SCRIPTS / "loss_curves.py", self.folder / "train.log", self.folder / "loss.png")
        if subprocess.run([sys.executable, *map(str, curves)]).returncode:
            print("pretrain: no plot of the losses, see above", flush=True)  # without matplotlib, for example
