"""The stages of a benchmark of understanding: prepare, convert, tokenize, binarize, train, predict, score."""

import shlex
import shutil
from pathlib import Path
from typing import ClassVar

from s2sft_fairseq.recipes.engine import options
from s2sft_fairseq.recipes.recipe import TRAINING, Recipe
from s2sft_fairseq.recipes.training import optimization


class Understanding(Recipe):
    """From raw files to the scores of predictions."""

    values: ClassVar = {
        "UniLMv2, Table 9": {"lr": "2e-5", "batch": 32, "warmup_share": "0.1", "weight_decay": "0.01"}
    }
    task: ClassVar[str]
    """Of fairseq."""

    def run(self) -> None:
        """Do what is not done yet."""
        self.pin_corpus()
        self.pin_encoder()
        self.prepare_texts()
        self.plan()
        self.pin_training([name for name in TRAINING if name != "epochs"])  # its updates are counted
        self.stage(self.binarized, "binarize", self.binarize)
        self.train_model()
        self.predict_and_score()
        self.say(f"everything is in {self.work}")

    def prepare_texts(self) -> None:
        """Make the tokenized texts of the raw files."""
        raise NotImplementedError

    def predict_and_score(self) -> None:
        """Make the files of the official evaluators, and score those that have labels."""
        raise NotImplementedError

    def prepare_corpus(self, _: Path) -> None:
        self.prepare(self.corpus, *self.reader_options())

    def texts(self, split: str) -> list[Path]:
        return sorted(self.tokens.glob(f"{split}*.txt"))

    def counted(self) -> Path:
        return self.tokens / "train.txt"

    def binarize(self, made: Path) -> None:
        prefixes = {f"{split}pref": ",".join(map(str, self.texts(split))) for split in ("valid", "test")}
        self.preprocess(made, "--only-source", trainpref=self.counted(), **prefixes)
        for pattern in ("*.label", "labels.txt", "*.questions.jsonl"):
            for path in self.corpus.glob(pattern):
                shutil.copy(path, made)

    def metric(self) -> str:
        """Return what the best checkpoint is chosen by."""
        return "accuracy"

    def model_options(self) -> list[str]:
        return shlex.split(self.settings.layout)

    def training(self) -> list[str]:
        s = self.settings
        model = options(pretrained=self.encoder)
        if not (s.encoder or s.dry_run):
            model = options(arch="unilm_tiny", random_init=True, max_positions=s.max_source)
        return [
            *(str(self.binarized), *options(task=self.task), *model, *self.model_options()),
            *options(best_checkpoint_metric=self.metric(), maximize_best_checkpoint_metric=True),
            "--ignore-unused-valid-subsets",  # MNLI has two
            *optimization(s, self.work),
            *self.further,
        ]

    def predict(self, split: str, made: Path, **named: object) -> None:
        """Write what the model says of a split."""
        common = {"path": self.work / "best.pt", "subset": split, "output": made, "cpu": self.settings.cpu}
        self.s2sft("predict", self.binarized, **common, **named)
