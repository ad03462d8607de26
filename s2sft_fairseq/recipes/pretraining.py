"""Pre-training on plain text or synthetic pairs: the presets, most of them from the papers, and the stages.

The stages convert, tokenize or make pairs, find spans, binarize, and train.
"""

import argparse
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from s2sft_fairseq.checksums import write_checksums
from s2sft_fairseq.corpora.synthetic import Maker
from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.data.text_files import write_lines
from s2sft_fairseq.progress import bar
from s2sft_fairseq.recipes.engine import Call, Stages, options
from s2sft_fairseq.recipes.training import NEVER, devices, share_batch
from s2sft_fairseq.tokenization.vocabulary import read_vocabulary


class Preset(NamedTuple):
    """Settings of a paper."""

    task: str
    model: tuple[str, ...]
    """Options of the model if there is no encoder to begin with."""
    lr: str
    updates: int
    warmup: int
    positions: int
    """Positions of the packed texts of an update."""
    options: tuple[str, ...]
    """Further options of ``s2sft train``."""
    spans: bool = False
    """Whether there is a span-by-span flow."""
    texts: int = 0
    """Texts of an update, if the paper gives their number instead of positions."""
    criterion: str = "mask_attention"


_BASE, _LARGE = ("--arch", "unilm_base"), ("--arch", "unilm_large")
# UniLMv2, section 4.1: 7680 texts of 512 tokens; 15 % of the tokens appear three times, which makes 666 positions.
_UNILMV2 = ("--adam-betas", "(0.9, 0.98)", "--adam-eps", "1e-6", "--label-smoothing", "0", "--clip-norm", "0")
# DeltaLM, section 2.3. The paper gives no learning rate for pre-training; the preset has that of fine-tuning.
# It names no sampling of languages either: mT5, which it follows, has D ** 0.3 throughout, a temperature of 1 / 0.3.
_MT5 = ("--first-temperature", "3.3333", "--temperature", "3.3333")
_DELTALM = (
    *("--adam-betas", "(0.9, 0.999)", "--adam-eps", "1e-6", "--clip-norm", "1.0", "--tokens-per-sample", "512", *_MT5),
)
_RELATIVE = ("--relative-position-bins", "32", "--max-relative-position", "128")
_ERNIE_GEN = ("--adam-betas", "(0.9, 0.999)", "--adam-eps", "1e-9", "--label-smoothing", "0", "--clip-norm", "1.0")
# The rows of UniLMv2's Table 6: trained as BERT, with 256 texts per update (footnote 2, which does not mention decay,
# dropout and clipping: these are BERT's, too).
_LIKE_BERT = ("--adam-betas", "(0.9, 0.999)", "--adam-eps", "1e-6", "--label-smoothing", "0", "--clip-norm", "1.0")
_TABLE_6 = {"ae+par-rel": 666, "ae+par": 666, "ae+ar": 666, "ae": 512, "par": 666, "ar": 666}
SYNTHETIC_LONGEST = 48
"""Maximum number of symbols of a synthetic source."""
_SYNTHETIC_POSITIONS = ("--max-source-positions", "50", "--max-target-positions", "50")  # with [CLS] and [SEP]
# ERNIE-GEN, section 4.1; decay, smoothing, dropout and clipping, which it does not mention, are BERT's.
PRESETS = {
    "unilmv2-base": Preset("unilm_pretraining", (*_BASE, *_RELATIVE), "6e-4", 500_000, 24_000, 7680 * 666, _UNILMV2),
    "deltalm-base": Preset(
        *("deltalm_pretraining", (), "3e-4", 600_000, 10_000, 2048 * 512, _DELTALM),
        texts=2048,
        criterion="cross_entropy",
    ),
    "ernie-gen-base": Preset("ernie_gen_pretraining", _BASE, "5e-5", 400_000, 4000, 196_608, _ERNIE_GEN, spans=True),
    "ernie-gen-large": Preset("ernie_gen_pretraining", _LARGE, "5e-5", 450_000, 4000, 196_608, _ERNIE_GEN, spans=True),
    # Appendix A.1: 430 GB of text, one epoch. It names no other setting that differs from those of the 16 GB.
    "ernie-gen-large-430g": Preset(
        *("ernie_gen_pretraining", _LARGE, "5e-5", 1_000_000, 4000, 196_608, _ERNIE_GEN), spans=True
    ),
    # Table 7, rows 2 to 4, and Table 8, whose infilling model is row 4 of Table 7; its row 1 is ernie-gen-base.
    **{
        f"ernie-gen-{name}": Preset(
            *("ernie_gen_pretraining", _BASE, "5e-5", 400_000, 4000, 196_608),
            options=(*_ERNIE_GEN, "--generation", generation, "--noise-prob", noise),
            spans=spans,
        )
        for name, generation, noise, spans in (
            ("table7-without-noise", "infilling", "0", True),
            ("table7-without-spans", "infilling", "0.2", False),
            ("table7-without-both", "infilling", "0", False),
            ("table8-typical", "typical", "0", False),
            ("table8-infilling", "infilling", "0", False),
        )
    },
    **{
        f"unilmv2-table6-{name}": Preset(
            "unilm_pretraining",
            (*_BASE, *(_RELATIVE if name.endswith("-rel") else ())),
            *("1e-4", 1_000_000, 10_000, 256 * positions),
            options=(*_LIKE_BERT, "--language-model", name.removesuffix("-rel")),
            spans=False,
        )
        for name, positions in _TABLE_6.items()
    },
    # Not from a paper: for minutes on a CPU, before fine-tuning.
    "synthetic": Preset(
        task="unilm_seq2seq",
        model=(*_BASE, "--random-init"),
        lr="3e-4",
        updates=500,
        warmup=50,
        positions=4096,
        options=(*_ERNIE_GEN, *_SYNTHETIC_POSITIONS),
    ),
    "synthetic-deltalm": Preset(
        task="deltalm_seq2seq",
        model=(),
        lr="5e-4",
        updates=1000,
        warmup=100,
        positions=4096,
        options=("--adam-betas", "(0.9, 0.98)", "--clip-norm", "1.0", *_SYNTHETIC_POSITIONS),
        criterion="cross_entropy",
    ),
}

SYNTHETIC = ("synthetic", "synthetic-deltalm")
"""Presets that need no text."""

SAVED_AFTER = 1000
"""Maximum number of updates that are lost when a training is stopped."""
LONGEST = 512
"""Maximum number of tokens of a text of DeltaLM."""
SYNTHETIC_PAIRS = {"train": 50_000, "valid": 500}


class Pretraining(Stages):
    """The stages of pre-training an encoder."""

    made_name = "encoder"
    converted_for = ""
    """Recorded with the converted encoder. One synthetic preset adds sentinels to it, so the two must not share it."""

    def __init__(self, given: argparse.Namespace, further: Sequence[str], call: Call) -> None:
        """Prepare the stages.

        Args:
            given: the options of ``s2sft pretrain``.
            further: options of ``s2sft train``, which have precedence.
            call: runs a command.
        """
        self.given, self.further, self.preset = given, further, PRESETS[given.preset]
        self.output = given.output.resolve()
        self.folder = self.output / (given.run or given.preset)
        self.made = self.folder / self.made_name
        self.tokens, self.binarized, self.begin = (self.output / name for name in ("tokens", "binarized", "begin"))
        self.spans = self.output / "spans.txt" if self.preset.spans and not given.word_flow_only else None
        # A converted encoder has the files of its tokenizer.
        self.tokenizer = (given.tokenizer_dir or self.begin).resolve()
        super().__init__("pretrain", self.folder / "commands.jsonl", call)

    def run(self) -> None:
        """Run all stages that are not done yet."""
        given = self.given
        tokenizer = given.tokenizer_dir or given.encoder
        self.pin(self.output / "text.settings", ["tokens"], text=given.text, pairs=given.pairs, tokenizer=tokenizer)
        if given.encoder is not None:
            self.pin(self.output / "begin.settings", ["begin"], encoder=given.encoder, converted_for=self.converted_for)
            self.stage(self.begin, "convert", self.convert_encoder)
        self.stage(self.tokens, "tokenize", self.tokenize)
        if self.spans:
            named = {"input": self.tokens / "train.txt", "tokenizer_dir": self.tokenizer}
            self.stage(self.spans, "find spans", lambda made: self.s2sft("span-vocab", **named, output=made))
        self.stage(self.binarized, "binarize", self.binarize)
        settings = {name: value for name, value in vars(given).items() if name != "output"} | {"further": self.further}
        self.pin(self.folder / "settings", ["checkpoints/checkpoint_last.pt", self.made_name], **settings)
        self.stage(self.made, "train", self.make)
        self.say(f"the {self.made_name} is {self.made}")

    def convert_encoder(self, made: Path) -> None:
        """Convert the encoder to begin with."""
        self.convert(self.given.encoder.resolve(), made)

    def tokenize(self, made: Path) -> None:
        """Tokenize the training and validation texts."""
        made.mkdir()
        texts = [self.given.text.resolve() / name for name in ("train.txt", "valid.txt")]
        named = {"tokenizer_dir": self.tokenizer, "output_dir": made, "dict": made / "dict.txt"}
        self.s2sft("tokenize", input=texts, **named)

    def binarize(self, made: Path) -> None:
        """Binarize the tokenized texts."""
        named = {"srcdict": self.tokens / "dict.txt", "only_source": True, "destdir": made}
        self.s2sft("preprocess", trainpref=self.tokens / "train.txt", validpref=self.tokens / "valid.txt", **named)

    def start(self) -> list[str]:
        """Return the options of the model and of the span vocabulary."""
        model = list(self.preset.model) if self.given.encoder is None else options(pretrained=self.begin)
        return [*model, *options(span_vocab=self.spans)]

    def batch(self) -> list[str]:
        """Return the options of the batch: its number of texts or positions, and the number of batches of an update."""
        tokens, gpus = self.given.device_tokens, devices()
        if self.preset.texts:
            size, update_freq = share_batch(max(1, self.preset.texts // gpus), max(1, tokens // LONGEST))
            return options(batch_size=size, update_freq=update_freq)
        tokens = min(tokens, max(1, self.preset.positions // gpus))
        return options(max_tokens=tokens, update_freq=max(1, round(self.preset.positions / (tokens * gpus))))

    def training(self) -> list[str]:
        """Return the arguments of ``s2sft train``."""
        preset, updates = self.preset, self.given.updates or self.preset.updates
        every = max(1, updates // 20)
        # A training that is much shorter than the paper's warms up for a tenth of its updates.
        warmup = preset.warmup if 4 * preset.warmup <= updates else updates // 10
        return [
            *(str(self.binarized), *options(task=preset.task), *self.start(), *options(seed=self.given.seed)),
            *options(criterion=preset.criterion, optimizer="fused_adamw", weight_decay="0.01"),
            *preset.options,
            *options(dropout=0.1, attention_dropout=0.1, lr=preset.lr, lr_scheduler="polynomial_decay"),
            *options(warmup_updates=warmup, max_update=updates),
            *self.batch(),
            *options(validate_interval_updates=every, save_interval_updates=min(every, SAVED_AFTER)),
            *options(keep_interval_updates=1, validate_interval=NEVER, save_interval=NEVER, no_epoch_checkpoints=True),
            *options(save_dir=self.folder / "checkpoints", log_interval=max(1, updates // 200), log_format="json"),
            *options(log_file=self.folder / "train.log", no_progress_bar=True),
            *self.further,
        ]

    def make(self, made: Path) -> None:
        """Train, convert the last checkpoint, and draw the losses."""
        if self.given.encoder and "--relative-position-bins" in self.preset.model:
            self.say("relative positions are those of the encoder, if it has any")
        self.train(self.folder, self.training(), self.given.updates or self.preset.updates)
        self.write(self.folder / "checkpoints" / "checkpoint_last.pt", made)
        self.plot(self.folder)

    def write(self, checkpoint: Path, made: Path) -> None:
        """Export a checkpoint in Hugging Face's format, and convert that."""
        exported = self.folder / "exported"
        shutil.rmtree(exported, ignore_errors=True)
        self.s2sft("export", checkpoint, tokenizer_dir=self.tokenizer, to=exported, format="hugging_face")
        self.s2sft("convert", exported, to=made)


class DeltaLMPretraining(Pretraining):
    """The stages of pre-training DeltaLM, on texts of several languages and on pairs."""

    made_name = "deltalm"

    def __init__(self, given: argparse.Namespace, further: Sequence[str], call: Call) -> None:
        super().__init__(given, further, call)
        self.languages = languages_of(given.text) if given.text else []
        self.pairs = pairs_of(given.pairs) if given.pairs else []

    def convert_encoder(self, made: Path) -> None:
        """Convert the encoder to begin with, and add sentinels."""
        self.convert(self.given.encoder.resolve(), made, *options(sentinels=100))

    def tokenize(self, made: Path) -> None:
        """Tokenize the texts of each language, and the pairs."""
        made.mkdir()
        given = self.given
        files = {name: [given.text / name / split for split in ("train.txt", "valid.txt")] for name in self.languages}
        if self.pairs:
            files["pairs"] = [given.pairs / name for pair in self.pairs for name in files_of_pair(pair)]
        for folder, texts in files.items():
            self.s2sft("tokenize", input=texts, tokenizer_dir=self.tokenizer, output_dir=made / folder)

    def binarize(self, made: Path) -> None:
        """Binarize the texts of each language, and the pairs."""
        for name in self.languages:
            self._binarize(made / name, name, ".txt", only_source=True)
        for pair in self.pairs:
            source, target = pair.split("-")
            sides = {"source_lang": source, "target_lang": target, "joined_dictionary": True}
            self._binarize(made / pair, "pairs", f".{pair}", **sides)
            for path in (made / pair).iterdir():  # the dictionary of a language is the same in all pairs
                path.replace(made / path.name)
            (made / pair).rmdir()
        write_checksums(made)

    def _binarize(self, made: Path, folder: str, ending: str, **named: object) -> None:
        prefixes = {f"{split}pref": self.tokens / folder / f"{split}{ending}" for split in ("train", "valid")}
        self.s2sft("preprocess", srcdict=self.tokenizer / "dict.txt", destdir=made, **prefixes, **named)

    def start(self) -> list[str]:
        """Return the options of the model, the languages and the pairs."""
        parts = options(text_languages=",".join(self.languages), lang_pairs=",".join(self.pairs))
        return [*options(arch="deltalm", pretrained=self.begin), *parts]

    def write(self, checkpoint: Path, made: Path) -> None:
        """Convert a checkpoint."""
        self.s2sft("convert", checkpoint, tokenizer_dir=self.tokenizer, to=made)


class SyntheticPretraining(Pretraining):
    """The stages of training an encoder on synthetic pairs of symbols of its vocabulary."""

    converted_for = "synthetic"

    def tokenize(self, made: Path) -> None:
        """Make the pairs."""
        made.mkdir()
        vocabulary = read_vocabulary(self.tokenizer)
        dictionary = PretrainedDictionary.of(vocabulary.symbols, vocabulary.special)
        dictionary.save(str(made / "dict.txt"))
        pairs = Maker(dictionary, seed=1)  # trainings with other seeds share the pairs
        for split, count in SYNTHETIC_PAIRS.items():
            made_pairs = bar(pairs.pairs(count, SYNTHETIC_LONGEST), split, " pairs", total=count)
            for side, texts in zip(("src", "tgt"), zip(*made_pairs, strict=True), strict=True):
                write_lines(made / f"{split}.{side}", map(" ".join, texts))

    def binarize(self, made: Path) -> None:
        """Binarize the pairs."""
        sides = {"source_lang": "src", "target_lang": "tgt", "joined_dictionary": True, "destdir": made}
        prefixes = {f"{split}pref": self.tokens / split for split in SYNTHETIC_PAIRS}
        self.s2sft("preprocess", srcdict=self.tokens / "dict.txt", **prefixes, **sides)


class SyntheticDeltaLMPretraining(SyntheticPretraining, DeltaLMPretraining):
    """The stages of training DeltaLM on synthetic pairs."""

    converted_for = "synthetic-deltalm"


def kind_of(preset: str) -> type[Pretraining]:
    """Return the class that runs a preset."""
    is_deltalm = PRESETS[preset].task.startswith("deltalm")
    if preset in SYNTHETIC:
        return SyntheticDeltaLMPretraining if is_deltalm else SyntheticPretraining
    return DeltaLMPretraining if is_deltalm else Pretraining


def languages_of(text: Path) -> list[str]:
    """Return the languages of plain text: the subfolders of a folder."""
    return sorted(folder.name for folder in text.iterdir() if folder.is_dir()) if text.is_dir() else []


def pairs_of(folder: Path) -> list[str]:
    """Return the pairs of languages of a folder, X-Y, from the names of its files."""
    names = [re.fullmatch(r"train\.([^.-]+-[^.-]+)\.[^.]+", path.name) for path in folder.iterdir()]
    return sorted({found[1] for found in names if found})


def files_of_pair(pair: str) -> list[str]:
    """Return the names of the files of a pair of languages."""
    return [f"{split}.{pair}.{language}" for split in ("train", "valid") for language in pair.split("-")]
