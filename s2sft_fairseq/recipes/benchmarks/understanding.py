"""Benchmarks of classification and question answering."""

from argparse import Namespace
from functools import partial
from pathlib import Path

from s2sft_fairseq.corpora.glue import TASKS, read_glue
from s2sft_fairseq.corpora.reading import require
from s2sft_fairseq.corpora.squad import VERSIONS, read_squad_files
from s2sft_fairseq.corpora.writing import write_labelled
from s2sft_fairseq.data.bounded_files import read_bytes
from s2sft_fairseq.question_answering.squad_windows import WindowMaker, write_windows
from s2sft_fairseq.recipes.engine import options
from s2sft_fairseq.recipes.recipe import Benchmark, Writer
from s2sft_fairseq.recipes.settings import Setting, Settings
from s2sft_fairseq.recipes.understanding import Understanding
from s2sft_fairseq.tokenization.folder import open_tokenizer

SMOKE_BYTES = 1_000_000
"""Bytes of SQuAD's file from which --smoke makes a vocabulary."""
# The names of predictions on GLUE's server that differ from the upper-case name of the task.
SERVER = {"cola": "CoLA", "mnli-test": "MNLI-m", "mnli-test1": "MNLI-mm", "mnli-test2": "AX"}


class Glue(Understanding):
    """Recipe of one GLUE task. MNLI is scored on both of its development sets."""

    task = "unilm_classification"

    @classmethod
    def output_name(cls, name: str, settings: Settings) -> str:
        """Return the name of the output folder, with the task."""
        return f"{name}-{settings.glue_task}"

    def ranges_of_paper(self) -> dict[str, list[str]]:
        """Return the ranges of UniLMv2's Table 9."""
        return {
            "batch": ["16", "32"],
            "lr": ["5e-6", "1e-5", "1.5e-5", "2e-5", "3e-5"],
            "warmup_share": ["0.1", "0.2"],
            "weight_decay": ["0.01", "0.1"],
            "epochs": ["10", "15"],
        }

    def reader_options(self) -> list[str]:
        """Return the task for ``s2sft prepare``."""
        return options(task=self.settings.glue_task)

    def prepare_texts(self) -> None:
        """Prepare and tokenize the texts of the task."""
        self.stage(self.corpus, "prepare", self.prepare_corpus)
        self.stage(self.encoder, "convert", self.make_encoder)
        texts = sorted(path for path in self.corpus.glob("*.txt") if path.name != "labels.txt")
        self.stage(self.tokens, "tokenize", lambda made: self.tokenize(made, texts, " [SEP] "))

    def predict_and_score(self) -> None:
        """Predict the labels of the development and test sets, and score the development sets."""
        task = self.settings.glue_task
        clip = [0, 5] if task == "sts-b" else None
        valid, test = ([path.stem for path in self.texts(split)] for split in ("valid", "test"))
        for split in [*valid, *test]:
            name = SERVER.get(f"{task}-{split}", SERVER.get(task, task.upper())) if split in test else split
            self.predict_stage(split, self.work / f"{name}.tsv", clip)
        for split in valid:
            made = self.work / f"{split}.tsv"
            self.score(made, task=task, hyp=made, ref=self.corpus / f"{split}.label")

    def predict_stage(self, split: str, made: Path, clip: list[int] | None) -> None:
        """Write the predictions of a split, unless the file exists."""
        self.stage(made, f"predict {split}", lambda _: self.predict(split, made, clip=clip))


class Squad(Understanding):
    """Recipe of SQuAD: answers in windows of passages."""

    task = "unilm_question_answering"
    tokens_name = "corpus"

    @classmethod
    def output_name(cls, name: str, settings: Settings) -> str:
        """Return the name of the output folder, with the version."""
        return f"{name}-v{settings.version}"

    def reader_options(self) -> list[str]:
        """Return the options of ``s2sft prepare``, with the size of windows and the tokenizer."""
        own = options(max_positions=self.settings.max_source, tokenizer_dir=self.encoder)
        return [*super().reader_options(), *own]

    def vocabulary(self) -> list[Path]:
        """Write the beginning of the raw training file, from which --smoke makes a tokenizer."""
        (raw,) = require(Path(self.settings.raw), f"train-v{self.settings.version}.json")
        path = self.output / "vocabulary.txt"
        path.write_bytes(read_bytes(raw)[:SMOKE_BYTES])
        return [path]

    def prepare_texts(self) -> None:
        """Convert the encoder, then prepare windows with its tokenizer."""
        self.stage(self.encoder, "convert", self.make_encoder)
        self.stage(self.corpus, "prepare", self.prepare_corpus)

    def predict_and_score(self) -> None:
        """Predict the answers of the development set, and score them."""
        is_v2, answers = self.settings.version == "2.0", self.work / "answers.json"
        odds = {"null_odds": self.work / "null_odds.json"} if is_v2 else {}
        # Always write an answer; the threshold of the odds is applied when scoring.
        always = {"null_threshold": "inf"} if is_v2 else {}
        self.stage(answers, "predict", lambda _: self.predict("valid", answers, **odds, **always))
        scoring = {"task": f"squad_v{self.settings.version[0]}", "hyp": answers, "ref": self.corpus / "valid.json"}
        threshold = self.settings.null_threshold if is_v2 else None
        self.score(self.work / "valid.json", **scoring, **odds, null_threshold=threshold)


def _metric_of_task(settings: Settings) -> None:
    layout = f"--max-source-positions {settings.max_source}"
    if settings.glue_task == "sts-b":
        settings.take({"numbers, not classes": {"metric": "pearson", "layout": f"{layout} --regression"}})
    else:
        metric = "mcc" if settings.glue_task == "cola" else "accuracy"
        settings.take({"GLUE's score": {"metric": metric}, "positions of a text": {"layout": layout}})


def _glue_writer(options: Namespace) -> Writer:
    return partial(write_labelled, classes=TASKS[options.task].classes)


def _squad_writer(options: Namespace) -> Writer:
    tokenizer = open_tokenizer(Path(options.tokenizer_dir))
    windows = WindowMaker(tokenizer, options.max_positions, options.stride, options.max_query)
    return partial(write_windows, windows=windows)


UNDERSTANDING = {
    "glue": Benchmark(
        about="GLUE: classification of sentences and of pairs of sentences, one of nine tasks at a time.",
        raw="DIR/{CoLA,SST-2,MRPC,STS-B,QQP,MNLI,QNLI,RTE,WNLI}/{train,dev,test}.tsv (https://gluebenchmark.com). MNLI "
        "is scored on both of its development sets, and predicts the diagnostic set too, if "
        "DIR/diagnostic/diagnostic.tsv is there.",
        read=lambda options, malformed: read_glue(options.raw, options.task, malformed),
        settings={"BERT": {"max_source": 128}, "UniLMv2, Table 9": {"epochs": 10}},
        recipe=Glue,
        notes="Table 9 gives the ranges that were searched for each task, by the average of five runs: --grid paper "
        "--runs 5 searches them. Which value was the best of a task it does not say.",
        reader_options={"task": Setting(None, "one of the nine", choices=tuple(TASKS), is_required=True)},
        recipe_options={"glue_task": Setting("mrpc", "one of the nine", choices=tuple(TASKS))},
        depends=_metric_of_task,
        writer=_glue_writer,
    ),
    "squad": Benchmark(
        about="SQuAD v1.1 and v2.0: answers to questions, found in passages.",
        raw="DIR/{train,dev}-v1.1.json or DIR/{train,dev}-v2.0.json (https://rajpurkar.github.io/SQuAD-explorer). "
        "Scored on the development set, for the test sets are not published.",
        read=lambda options, malformed: read_squad_files(options.raw, options.version, malformed),
        settings={"BERT": {"max_source": 384, "stride": 128, "max_query": 64}, "UniLMv2, Table 9": {"epochs": 4}},
        recipe=Squad,
        options={
            "version": Setting("1.1", "of the raw files", choices=VERSIONS),
            "stride": Setting(128, "tokens from the beginning of a window to that of the next", least=1),
            "max_query": Setting(64, "tokens of a question", least=1),
        },
        reader_options={
            "tokenizer_dir": Setting(None, "the folder of the converted encoder", "DIR", is_required=True),
            "max_positions": Setting(384, "of question and window", least=1),
        },
        recipe_options={
            "null_threshold": Setting(
                "0", "2.0: odds above which there is no answer; the best one is searched in any case", "X"
            )
        },
        writer=_squad_writer,
    ),
}
