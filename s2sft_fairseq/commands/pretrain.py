"""Pre-train an encoder, or DeltaLM, on plain text: from the text to a folder that fine-tuning begins with.

    s2sft pretrain ernie-gen-base --text books --encoder bert-base-uncased --output out
    s2sft pretrain ernie-gen-base --text books --tokenizer-dir vocab --output out --updates 500 \\
        -- --arch unilm_tiny --update-freq 1 --cpu
    s2sft pretrain deltalm-base --text texts --pairs pairs --encoder infoxlm-base --output out

`--text` is a folder with train.txt and valid.txt, a paragraph a line and an empty line behind each document. Settings
are those of the paper, for as many GPUs as there are; options of ``s2sft train`` behind ``--`` win over them. Stages:
convert, tokenize, find spans, binarize, train. One that is done is not done again; a training that was stopped goes on.
The trainings of one output share the text. The encoder is OUT/RUN/encoder, for ``--pretrained`` and for recipes.

DeltaLM is OUT/RUN/deltalm. Its `--text` has a subfolder for each language, with train.txt and valid.txt; `--pairs` has
train.X-Y.X, train.X-Y.Y, valid.X-Y.X and valid.X-Y.Y for each pair of languages.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from s2sft_fairseq.commands.pretraining_presets import PRESETS
from s2sft_fairseq.files import locked

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


def main(arguments: Sequence[str]) -> None:
    """Run the command line; ends the process if a stage fails."""
    words = list(arguments)
    place = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(
        prog="s2sft pretrain", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("preset", choices=PRESETS)
    parser.add_argument("--text", type=Path, required=True, metavar="DIR", help="with train.txt and valid.txt")
    parser.add_argument("--pairs", type=Path, metavar="DIR", help="DeltaLM: with train.X-Y.X and so on")
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
    for name in ("text", "pairs", "encoder", "tokenizer_dir"):  # remembered, wherever the next command is run from
        if path := getattr(options, name):
            setattr(options, name, path.resolve())
    kind = DeltaLMPretraining if options.preset.startswith("deltalm") else Pretraining
    kind(options, words[place + 1 :]).run()


def find_problems(options: argparse.Namespace) -> list[str]:
    """Tell everything that is wrong with the options."""
    numbers = {"--updates": options.updates, "--device-tokens": options.device_tokens}
    folders = {"--text": options.text, "--encoder": options.encoder, "--tokenizer-dir": options.tokenizer_dir}
    folders["--pairs"] = options.pairs
    problems = [f"{name} must be at least 1, but is {n}" for name, n in numbers.items() if n is not None and n < 1]
    problems += [f"{name} must be a folder, but {at} is none" for name, at in folders.items() if at and not at.is_dir()]
    is_deltalm = options.preset.startswith("deltalm")
    if is_deltalm and options.tokenizer_dir:
        problems.append(f"{options.preset} needs --encoder, from whose layers DeltaLM begins, not --tokenizer-dir")
    if options.pairs and not is_deltalm:
        problems.append(f"--pairs is for deltalm-base, but the preset is {options.preset}")
    needed = ["train.txt", "valid.txt"]
    if is_deltalm:
        needed = [f"{language}/{name}" for language in languages_of(options.text) or ["LANGUAGE"] for name in needed]
    missing = [name for name in needed if not (options.text / name).is_file()]
    if missing and options.text.is_dir():
        problems.append(f"--text must hold {' and '.join(missing)}, but {options.text} does not")
    if options.pairs and options.pairs.is_dir():
        pairs = pairs_of(options.pairs) or ["X-Y"]
        missing = [name for pair in pairs for name in files_of_pair(pair) if not (options.pairs / name).is_file()]
        if missing:
            problems.append(f"--pairs must hold {' and '.join(missing)}, but {options.pairs} does not")
    return problems


def languages_of(text: Path) -> list[str]:
    """Return the languages of plain text: the subfolders of a folder."""
    return sorted(folder.name for folder in text.iterdir() if folder.is_dir()) if text.is_dir() else []


def pairs_of(folder: Path) -> list[str]:
    """Return the pairs of languages of a folder, X-Y, by the names of its files."""
    names = [re.fullmatch(r"train\.([^.-]+-[^.-]+)\.[^.]+", path.name) for path in folder.iterdir()]
    return sorted({found[1] for found in names if found})


def files_of_pair(pair: str) -> list[str]:
    """Return the names of the files of a pair of languages."""
    return [f"{split}.{pair}.{language}" for split in ("train", "valid") for language in pair.split("-")]


class Pretraining:
    """The stages of one training."""

    def __init__(self, options: argparse.Namespace, further: Sequence[str]) -> None:
        self.options, self.further = options, further
        self.preset = PRESETS[options.preset]
        self.output = options.output.resolve()
        self.folder = self.output / (options.run or options.preset)
        self.spans = self.preset.spans and not options.word_flow_only
        self.made = self.folder / "encoder"
        # A folder that was converted has the files of its tokenizer.
        self.tokenizer = (options.tokenizer_dir or self.output / "begin").resolve()

    def run(self) -> None:
        """Do what is not done yet."""
        options, output = self.options, self.output
        output.mkdir(parents=True, exist_ok=True)
        tokenizer = options.tokenizer_dir or options.encoder
        self.remember(output / "text.settings", text=options.text, pairs=options.pairs, tokenizer=tokenizer)
        if options.encoder is not None:
            self.remember(output / "begin.settings", encoder=options.encoder)
            self.stage(output / "begin", "convert", self.convert)
        self.stage(output / "tokens", "tokenize", self.tokenize)
        if self.spans:
            self.stage(output / "spans.txt", "find spans", self.find_spans)
        self.stage(output / "binarized", "binarize", self.binarize)
        self.remember(self.folder / "settings", **vars(options) | {"further": self.further})
        self.stage(self.made, "train", self.train)
        print(f"pretrain: the {self.made.name} is {self.made}", flush=True)

    def stage(self, made: Path, what: str, work: Callable[[Path], None]) -> None:
        """Make a file or folder under another name first, unless it is there."""
        if made.exists():
            print(f"pretrain: {what}: done before ({made})", flush=True)
            return
        print(f"pretrain: {what} ...", flush=True)
        partial = made.with_name(f"{made.name}.partial")
        with locked(made, made.with_name(f".stage-{made.name}.lock")):
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
        if changed := [name for name in settings if settings[name] != before.get(name, "None")]:
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

    def convert(self, made: Path, *words: object) -> None:
        encoder = self.options.encoder.resolve()
        if all((encoder / name).is_file() for name in ("model.pt", "config.json")):
            made.symlink_to(encoder)
        else:
            self.s2sft("convert", encoder, "--to", made, *words)

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
        if options.encoder and "--relative-position-bins" in preset.model:
            print("pretrain: relative positions are those of the encoder, if it has any", flush=True)
        return [
            *("train", self.output / "binarized", "--task", preset.task, *self.begin(), "--seed", options.seed),
            *("--criterion", preset.criterion, "--optimizer", "fused_adamw", "--weight-decay", "0.01", *preset.options),
            *("--dropout", "0.1", "--attention-dropout", "0.1", "--lr", preset.lr),
            *("--lr-scheduler", "polynomial_decay", "--warmup-updates", warmup, "--max-update", updates),
            *self.batch(devices),
            *("--validate-interval-updates", every, "--save-interval-updates", min(every, SAVED_AFTER)),
            *("--keep-interval-updates", "1"),
            *("--validate-interval", "1000000", "--save-interval", "1000000", "--no-epoch-checkpoints"),
            *("--save-dir", checkpoints, "--log-interval", max(1, updates // 200), "--log-format", "json"),
            *("--log-file", self.folder / "train.log", "--no-progress-bar", *self.further),
        ]

    def begin(self) -> tuple[object, ...]:
        """What the model begins with, and what it reads beside the text."""
        model = self.preset.model if self.options.encoder is None else ("--pretrained", self.output / "begin")
        return (*model, "--span-vocab", self.output / "spans.txt") if self.spans else model

    def batch(self, devices: int) -> tuple[object, ...]:
        """How many positions are trained on at a time, and how often before an update."""
        tokens = self.options.device_tokens
        return "--max-tokens", tokens, "--update-freq", max(1, round(self.preset.positions / (tokens * devices)))

    def train(self, made: Path) -> None:
        """Train, write the folder of the last checkpoint, and draw the losses."""
        updates, checkpoints = self.options.updates or self.preset.updates, self.folder / "checkpoints"
        progress = [sys.executable, str(SCRIPTS / "training_log.py"), str(updates)]
        if not (checkpoints / "checkpoint_last.pt").exists():  # what a training before saved nothing of
            (self.folder / "train.log").unlink(missing_ok=True)
        with subprocess.Popen(progress, stdin=subprocess.PIPE) as shown:
            self.s2sft(*self.training(checkpoints, updates), stdout=shown.stdin)
        self.write(checkpoints / "checkpoint_last.pt", made)
        curves = (SCRIPTS / "loss_curves.py", self.folder / "train.log", self.folder / "loss.png")
        if subprocess.run([sys.executable, *map(str, curves)]).returncode:
            print("pretrain: no plot of the losses, see above", flush=True)  # without matplotlib, for example

    def write(self, checkpoint: Path, made: Path) -> None:
        exported = self.folder / "exported"
        shutil.rmtree(exported, ignore_errors=True)
        self.s2sft("export", checkpoint, "--tokenizer-dir", self.tokenizer, "--to", exported)
        self.s2sft("convert", exported, "--to", made)


class DeltaLMPretraining(Pretraining):
    """That of an encoder-decoder, on the texts of several languages and on pairs of them."""

    def __init__(self, options: argparse.Namespace, further: Sequence[str]) -> None:
        super().__init__(options, further)
        self.made = self.folder / "deltalm"
        self.languages, self.pairs = languages_of(options.text), pairs_of(options.pairs) if options.pairs else []

    def convert(self, made: Path) -> None:
        super().convert(made, "--sentinels", 100)

    def tokenize(self, made: Path) -> None:
        made.mkdir()
        folders = {language: self.options.text / language for language in self.languages}
        files = {made / name: [folder / "train.txt", folder / "valid.txt"] for name, folder in folders.items()}
        if self.pairs:
            files[made / "pairs"] = [self.options.pairs / name for pair in self.pairs for name in files_of_pair(pair)]
        for folder, inputs in files.items():
            self.s2sft("tokenize", "--input", *inputs, "--tokenizer-dir", self.tokenizer, "--output-dir", folder)

    def binarize(self, made: Path) -> None:
        tokens, dictionary = self.output / "tokens", ("--srcdict", self.tokenizer / "dict.txt")
        for language in self.languages:
            sets = ("--trainpref", tokens / language / "train.txt", "--validpref", tokens / language / "valid.txt")
            self.s2sft("preprocess", "--only-source", *dictionary, *sets, "--destdir", made / language)
        for pair in self.pairs:
            (source, target), texts = pair.split("-"), tokens / "pairs"
            sets = ("--trainpref", texts / f"train.{pair}", "--validpref", texts / f"valid.{pair}")
            words = ("--source-lang", source, "--target-lang", target, "--joined-dictionary", *dictionary, *sets)
            self.s2sft("preprocess", *words, "--destdir", made / pair)
            for path in (made / pair).iterdir():  # the dictionary of a language is the same in all pairs
                path.replace(made / path.name)
            (made / pair).rmdir()

    def begin(self) -> tuple[object, ...]:
        parts = ("--text-languages", ",".join(self.languages))
        if self.pairs:
            parts += ("--lang-pairs", ",".join(self.pairs))
        return "--arch", "deltalm", "--pretrained", self.output / "begin", *parts

    def batch(self, devices: int) -> tuple[object, ...]:
        """Return the options for the texts of an update; a text may have 512 tokens."""
        share = max(1, self.preset.texts // devices)
        most = max(1, min(share, self.options.device_tokens // 512))
        size = next(size for size in range(most, 0, -1) if share % size == 0)
        return "--batch-size", size, "--update-freq", share // size

    def write(self, checkpoint: Path, made: Path) -> None:
        self.s2sft("convert", checkpoint, "--tokenizer-dir", self.tokenizer, "--to", made)
