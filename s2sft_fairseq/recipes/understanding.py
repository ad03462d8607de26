"""The stages of a benchmark of understanding: prepare, convert, tokenize, binarize, train, predict, score."""

import shutil
from pathlib import Path
from typing import ClassVar

from s2sft_fairseq.checksums import write_checksums
from s2sft_fairseq.files import as_argument
from s2sft_fairseq.recipes.engine import options
from s2sft_fairseq.recipes.option_texts import words_of
from s2sft_fairseq.recipes.recipe import Recipe
from s2sft_fairseq.recipes.settings import TRAINING, Setting
from s2sft_fairseq.recipes.training import optimization


class Understanding(Recipe):
    """The stages from raw files to the scores of predictions.

    A subclass has the stages that differ: `prepare_texts` makes tokenized texts from the raw files, and
    `predict_and_score` writes predictions in the official formats, and scores those of sets with labels.
    """

    declared: ClassVar = {
        **TRAINING,
        "metric": Setting("accuracy", "by which the best checkpoint is chosen", "NAME"),
    }
    values: ClassVar = {"UniLMv2, Table 9": {"lr": "2e-5", "batch": 32, "warmup_share": "0.1", "weight_decay": "0.01"}}
    task: ClassVar[str]
    """The name of the fairseq task."""

    def run(self) -> None:
        """Run all stages that are not done yet, and score."""
        self.pin_corpus()
        self.pin_encoder()
        self.prepare_texts()
        self.plan()
        self.pin_training([name for name in TRAINING if name != "epochs"])  # the number of updates is recorded instead
        self.stage(self.binarized, "binarize", self.binarize)
        self.train_model()
        self.predict_and_score()
        self.say(f"everything is in {self.work}")

    def prepare_texts(self) -> None:
        """Prepare and tokenize the texts of the benchmark."""
        raise NotImplementedError

    def predict_and_score(self) -> None:
        """Predict with the trained model, and score the predictions."""
        raise NotImplementedError

    def score_files(self) -> list[Path]:
        """Return the file of the scores of the development set; of MNLI, the matched one."""
        return [self.work / "valid.json"]

    def texts(self, split: str) -> list[Path]:
        """Return the tokenized texts of a split; MNLI has several files."""
        return sorted(self.tokens.glob(f"{split}*.txt"))

    def binarize(self, made: Path) -> None:
        """Binarize the texts, and copy labels and questions."""
        prefixes = {f"{split}pref": ",".join(map(str, self.texts(split))) for split in ("valid", "test")}
        self.preprocess(made, only_source=True, trainpref=self.counted(), **prefixes)
        for pattern in ("*.label", "labels.txt", "*.questions.jsonl"):
            for path in self.corpus.glob(pattern):
                shutil.copy(path, made)
        write_checksums(made)

    def training(self) -> list[str]:
        """Return the arguments of ``s2sft train``."""
        s = self.settings
        model = options(pretrained=self.encoder)
        if not (s.encoder or s.dry_run):
            model = options(arch="unilm_tiny", random_init=True, max_positions=s.max_source)
        return [
            *(as_argument(self.binarized), *options(task=self.task), *model, *words_of(s.layout)),
            *options(best_checkpoint_metric=s.metric, maximize_best_checkpoint_metric=True),
            "--ignore-unused-valid-subsets",  # MNLI has two validation sets
            *optimization(s, self.work),
            *self.further,
        ]

    def predict(self, split: str, made: Path, **named: object) -> None:
        """Write the predictions of the model for a split."""
        common = {"path": self.work / "best.pt", "subset": split, "output": made, "cpu": self.settings.cpu}
        self.s2sft("predict", self.binarized, **common, **named)
