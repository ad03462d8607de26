"""The stages of a benchmark of generation: prepare, convert, tokenize, binarize, train, generate, score."""

import math
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from s2sft_fairseq.checksums import write_checksums
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.files import as_argument
from s2sft_fairseq.recipes import deltalm
from s2sft_fairseq.recipes.engine import options
from s2sft_fairseq.recipes.option_texts import scoring_options, search_options, words_of
from s2sft_fairseq.recipes.recipe import Benchmark, Recipe
from s2sft_fairseq.recipes.settings import MOST_POSITIONS, RUN, TRAINING, Setting, Settings, use_preset
from s2sft_fairseq.recipes.training import optimization

METHODS = ("causal", "masked", "pseudo_masked", "infilling", "blocks", "deltalm")
_MASKING = ("masked", "pseudo_masked")
POSITIONS = 512  # of most encoders


class Generation(Recipe):
    """The stages from raw files to the scores of generated text."""

    run_options: ClassVar = {
        **RUN,
        "sources": Setting(None, "generate from N sources of the set only, evenly spaced", least=1),
        "hyp": Setting("", "score this file, and train nothing", "FILE"),
        "scoring": Setting(
            "", 'further options of s2sft evaluate, such as "--lowercase"', "WORDS", options=scoring_options
        ),
        "fit_head": Setting(False, "compute the language model head of an encoder that has none (docs/s2s-ft.md)"),
    }
    declared: ClassVar = {
        "preset": Setting("", "settings of ERNIE-GEN or UniLMv2 (docs/ernie-gen.md, docs/unilmv2.md)", "NAME"),
        "method": Setting("pseudo_masked", "of fine-tuning; deltalm is the encoder-decoder", choices=METHODS),
        "set": Setting("test", "which set to generate from and to score; dev is the validation set", "NAME"),
        "separator": Setting("", "between the fields of a source", "TEXT"),
        "added_token": Setting("", "that encoders lack", "TOKEN"),
        "max_target": Setting(32, "positions of a target, special symbols included", least=1, most=MOST_POSITIONS),
        **TRAINING,
        "label_smoothing": Setting("", "share of the probability that goes to other tokens", "X", most=1),
        "target_mask_prob": Setting(
            "", "masked and pseudo_masked: share of the target tokens that are masked", "P", most=1
        ),
        "noise_prob": Setting("", "infilling, causal: share of the target tokens that are noise", "P", most=1),
        "noise_symbol": Setting("", "infilling, causal: the noise, a symbol of the encoder (random tokens)", "X"),
        "source_loss_weight": Setting(
            "", "causal, with a language model: weight of a source token in the loss (0)", "W", most=math.inf
        ),
        "loss_tokens": Setting(None, "infilling: target tokens that the loss counts (all)", choices=("all", "noised")),
        "device_tokens": Setting(4096, "deltalm: tokens at a time", least=1),
        "accumulate": Setting(128, "deltalm: how often before an update, of all GPUs; less for few data", least=1),
        "averaged": Setting(0, "deltalm: average the last N checkpoints", least=0),
        "longest": Setting(80, "deltalm: tokens of an output", least=1),
        "held_out": Setting(1000, "pairs of the validation set that the held-out loss is computed on", least=1),
        "decoding": Setting("--beam 5", "options of s2sft generate", "WORDS", options=search_options),
        "evaluation": Setting("--task rouge", "options of s2sft evaluate", "WORDS", options=scoring_options),
    }
    values: ClassVar = {
        "s2s-ft, Table 7": {
            "batch": 64,
            "warmup": 1000,
            "label_smoothing": "0.1",
            "dropout": "0.1",
            "weight_decay": "0.01",
        },
        "s2s-ft, appendix A, of 5e-5 to 1e-4": {"lr": "7e-5"},
        "s2s-ft, appendix A, of 10 to 30": {"epochs": 10},
        "s2s-ft, appendix A, of 0.4 to 0.7": {"target_mask_prob": "0.5"},
        "DeltaLM, section 3.1": {"device_tokens": 4096, "accumulate": 128, "longest": 80},
    }

    searched: ClassVar = (
        *Recipe.searched,
        *("method", "label_smoothing", "target_mask_prob", "noise_prob", "noise_symbol", "source_loss_weight"),
        *("loss_tokens", "accumulate"),
    )

    @classmethod
    def choose(cls, name: str, benchmark: Benchmark, settings: Settings) -> None:
        """Set the values of DeltaLM or of the preset, if one is given."""
        if settings.method == "deltalm":
            deltalm.choose(settings, benchmark.deltalm)
        elif settings.preset:
            use_preset(settings, name)

    def run_name(self) -> str:
        """Return the name of the folder of this run."""
        s = self.settings
        return f"scored-{Path(s.hyp).name}" if s.hyp else f"{s.method}-seed{s.seed}"

    def ranges_of_paper(self) -> dict[str, list[str]]:
        """Return the ranges of s2s-ft's appendix A."""
        if self.settings.method not in _MASKING:
            return {}
        lr = ["1e-5", "1.5e-5", "2e-5", "3e-5"] if self.is_large() else ["5e-5", "7e-5", "1e-4"]
        return {"lr": lr, "epochs": ["10", "15", "20", "30"], "target_mask_prob": ["0.4", "0.5", "0.6", "0.7"]}

    def score_files(self) -> list[Path]:
        """Return the files of the scores of each direction."""
        return [self.output_of(direction).with_suffix(".json") for direction in self.directions()]

    def directions(self) -> list[str]:
        """Return the folders of the corpus, X-Y, that are decoded and scored separately; "" is the corpus itself."""
        return [""]

    def pairs(self) -> dict[str, tuple[str, str]]:
        """Return the folders of the corpus to train on, with the suffixes of source and target in binarized data."""
        return {"": ("src", "tgt")}

    def run(self) -> None:
        """Run all stages that are not done yet, and score."""
        self.pin_corpus()
        self.stage(self.corpus, "prepare", self.prepare_corpus)
        self.choose_set()
        if not self.settings.hyp:
            self.train_and_generate()
        for direction in self.directions():
            self.score_direction(direction)
        self.summarize()
        self.say(f"everything is in {self.work}")

    def train_and_generate(self) -> None:
        """Record the settings, then train and generate."""
        s = self.settings
        self.plan()
        names = [*TRAINING, "method", "max_target", "label_smoothing", "noise_prob", "noise_symbol", "loss_tokens"]
        names += ["source_loss_weight", "fit_head"]
        names += ["target_mask_prob"] if s.method in _MASKING else []
        if s.method == "deltalm":
            names += ["device_tokens", "accumulate", "averaged"]
        else:
            names.remove("epochs")  # the number of updates is recorded instead
        self.pin_training(names, languages=shlex.join(self.languages()))
        outputs = [str(self.output_of(direction).relative_to(self.work)) for direction in self.directions()]
        self.pin(self.work / f"{s.set}.settings", outputs, decoding=s.decoding)
        self.pin_encoder(held_out=s.held_out, conversion=shlex.join(self.conversion()), separator=s.separator)
        self.stage(self.encoder, "convert", self.make_encoder)
        self.stage(self.tokens, "tokenize", self.tokenize_pairs)
        if s.fit_head:
            self.stage(self.output / "fitted", "compute the head", self.fit_head)
        self.stage(self.binarized, "binarize", self.binarize)
        self.train_model()
        for direction in self.directions():
            self.generate(direction)

    def generate(self, direction: str) -> None:
        """Generate the hypotheses of a direction, unless they exist."""
        words = self.generation(direction)
        made = self.output_of(direction)
        self.stage(made, f"generate {direction}".strip(), lambda _: self.s2sft("generate", *words))

    def output_of(self, direction: str) -> Path:
        """Return the path of the hypotheses of a direction."""
        return self.work / direction / f"{self.settings.set}.out"

    def choose_set(self) -> None:
        """Check that the set to score exists. With --sources, write a smaller set beside it and choose that.

        Raises:
            UserError: there is no such set.
        """
        whole, sources = self.settings.set, self.settings.sources
        for folder in [self.corpus / direction for direction in self.directions()]:
            known = sorted(path.name.removesuffix(".refs.jsonl") for path in folder.glob("*.refs.jsonl"))
            if whole not in known:  # a configuration file may also name a path
                raise UserError(f"--set must be one of {', '.join(known)}, the sets that are scored, but is {whole}")
            for kind in ("src", "refs.jsonl") if sources else ():
                keep_evenly(sources, folder / f"{whole}.{kind}", folder / f"{whole}-{sources}.{kind}")
        if sources:
            self.settings.set = f"{whole}-{sources}"

    def vocabulary(self) -> list[Path]:
        """Return the texts from which --smoke makes a tokenizer: the sources and targets of all pairs."""
        return [self.corpus / folder / f"train.{side}" for folder in self.pairs() for side in ("src", "tgt")]

    def kept(self) -> list[str]:
        """Return the tokens that the encoder needs and may lack."""
        return [self.settings.added_token] if self.settings.added_token else []

    def positions(self) -> int:
        """Return the number of positions that the encoder needs, including one for infilling's start symbol."""
        s = self.settings
        return max(s.max_source, s.max_target) if s.method == "deltalm" else s.max_source + s.max_target + 1

    def conversion(self) -> list[str]:
        """Return the options of ``s2sft convert``."""
        needed = self.positions()
        return options(max_positions=needed if needed > POSITIONS else None, add_token=self.settings.added_token)

    def fit_head(self, made: Path) -> None:
        """Convert the encoder again, and compute its language model head from the training texts."""
        named = {"fit_head": self.tokens / "train.src", "output_prior": self.tokens / "train.tgt"}
        self.s2sft("convert", Path(self.settings.encoder), "--to", made, *self.conversion(), **named)

    def tokenize_pairs(self, made: Path) -> None:
        """Tokenize the training and validation sets, and keep `held_out` pairs for validation."""
        for folder, names in self.pairs().items():
            texts = [f"{split}.{side}" for split in ("train", "valid") for side in ("src", "tgt")]
            self.tokenize(made / folder, [self.corpus / folder / text for text in texts], self.settings.separator)
            for side, name in zip(("src", "tgt"), names, strict=True):
                (made / folder / f"train.{side}").rename(made / folder / f"train.{name}")
                keep_evenly(self.settings.held_out, made / folder / f"valid.{side}", made / folder / f"valid.{name}")
            write_checksums(made / folder)

    def binarize(self, made: Path) -> None:
        """Binarize all pairs into one folder."""
        for folder, (source, target) in self.pairs().items():
            prefixes = {f"{split}pref": self.tokens / folder / split for split in ("train", "valid")}
            sides = {"source_lang": source, "target_lang": target, "joined_dictionary": True}
            self.preprocess(made / folder, **sides, **prefixes)
            for path in (made / folder).iterdir() if folder else ():
                path.replace(made / path.name)  # the dictionary of a language is the same in all pairs
        write_checksums(made)

    def counted(self) -> Path:
        """Return the file with a line for each training example."""
        return self.vocabulary()[0]

    def plan(self) -> None:
        """Set the length of the training."""
        if self.settings.method == "deltalm":
            files = self.vocabulary()
            deltalm.plan(self.settings, list(zip(files[::2], files[1::2], strict=True)), len(self.directions()))
        else:
            super().plan()

    def languages(self) -> list[str]:
        """Return DeltaLM's options of several languages."""
        return []

    def training(self) -> list[str]:
        """Return the arguments of ``s2sft train``."""
        s, encoder = self.settings, self.output / "fitted" if self.settings.fit_head else self.encoder
        is_deltalm = s.method == "deltalm"
        model = options(arch="deltalm" if is_deltalm else None, pretrained=encoder)
        if not (s.encoder or s.dry_run):
            arch = "deltalm_tiny" if is_deltalm else "unilm_tiny"
            model = options(arch=arch, random_init=True, max_positions=self.positions())
        if is_deltalm:
            words = [*options(task="deltalm_seq2seq"), *model, *options(seed=s.seed), *self.languages()]
            return [as_argument(self.binarized), *words, *deltalm.training(s, self.work), *self.further]
        masked = s.target_mask_prob if s.method in _MASKING else None
        return [
            *(as_argument(self.binarized), *model, *options(finetune_method=s.method, target_mask_prob=masked)),
            *options(max_source_positions=s.max_source, max_target_positions=s.max_target),
            *words_of(s.layout),
            *options(noise_prob=s.noise_prob, noise_symbol=s.noise_symbol, loss_tokens=s.loss_tokens),
            *options(source_loss_weight=s.source_loss_weight),
            *options(criterion="mask_attention", label_smoothing=s.label_smoothing),
            *optimization(s, self.work),
            *self.further,
        ]

    def generation(self, direction: str) -> list[str]:
        """Return the arguments of ``s2sft generate``."""
        s, source = self.settings, self.corpus / direction / f"{self.settings.set}.src"
        return [
            *options(path=self.work / "best.pt", tokenizer_dir=self.encoder),
            *words_of(s.decoding),
            *options(separator=s.separator, target_lang=self.target_language(direction), input=source),
            *options(output=self.output_of(direction), cpu=s.cpu),
        ]

    def target_language(self, direction: str) -> str:
        """Return the language to generate if the model has several, else ""."""
        return ""

    def commands(self) -> Iterator[list[str]]:
        """Yield the commands that take long: training and generation."""
        yield from super().commands()
        for direction in self.directions():
            yield ["generate", *self.generation(direction)]

    def score_direction(self, direction: str) -> None:
        """Score the hypotheses of a direction, or those of --hyp."""
        s, made = self.settings, self.output_of(direction)
        of = self.corpus / direction / s.set
        made.parent.mkdir(parents=True, exist_ok=True)
        words = words_of(f"{s.evaluation} {s.scoring}")
        self.score(made, *words, hyp=s.hyp or made, src=f"{of}.src", ref=f"{of}.refs.jsonl")

    def summarize(self) -> None:
        """Summarize the scores of all directions; by default do nothing."""


def keep_evenly(count: int, path: Path, kept: Path) -> None:
    """Write at most `count` lines of a file, evenly spaced; `kept` may be the file itself."""
    with path.open("rb") as file:
        lines = file.readlines()
    count = min(count, len(lines))
    kept.write_bytes(b"".join(lines[-(-number * len(lines) // count) - 1] for number in range(1, count + 1)))
