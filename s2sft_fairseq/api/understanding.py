"""`Classifier` and `Reader`: models that are fine-tuned for understanding, in Python."""

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from s2sft_fairseq.api.by_path import LoadedByPath
from s2sft_fairseq.api.loading import check_arguments, find_files, own_random_numbers, settled
from s2sft_fairseq.api.texts import fields_of, is_one, is_unicode, listed

# isort: split
from fairseq.data import ListDataset

from s2sft_fairseq.checkpoints.finite_weights import check_half_precision
from s2sft_fairseq.checkpoints.model_folder import source_names_of
from s2sft_fairseq.corpora.squad import SquadQuestion
from s2sft_fairseq.data.text_datasets import LabelledDataset
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.encoder_with_head import EncoderWithHead
from s2sft_fairseq.question_answering.questions import find_answers
from s2sft_fairseq.question_answering.squad_windows import WindowMaker
from s2sft_fairseq.tasks.prediction import load, logits_of
from s2sft_fairseq.tasks.understanding import UnderstandingTask, UnilmClassificationTask, UnilmQuestionAnsweringTask
from s2sft_fairseq.tokenization.folder import open_tokenizer
from s2sft_fairseq.tokenization.tokenize_files import TextTokenizer

MAX_TOKENS = 8192
"""Maximum number of positions in a batch, as in ``s2sft predict``."""


@dataclass(frozen=True)
class Prediction:
    """The output of a classifier for a text."""

    label: str | float
    """The most probable class; for a regression, the number."""
    probabilities: dict[str, float]
    """The probability of each class; empty for a regression."""


@dataclass(frozen=True)
class FoundAnswer:
    """A span of a passage."""

    text: str
    """Empty if ``null_odds`` is above the threshold, or no span was found."""
    score: float
    """The sum of the start logit of its first token and the end logit of its last token."""
    start: int
    """Offset of its first character in the passage."""
    end: int
    """Offset after its last character."""
    null_odds: float
    """The score of no answer minus that of the best span."""


class _Model(LoadedByPath):
    """Base class of `Classifier` and `Reader`. Several threads may use it: a lock lets one at a time use the model."""

    task_class: type[UnderstandingTask]

    def __init__(self, model: EncoderWithHead, task: Any, folder: Path) -> None:
        """Use `from_pretrained`."""
        self._model, self._task, self._tokenizer = model, task, open_tokenizer(folder)
        self._lock = threading.RLock()
        self._source_names: tuple[str, ...] = ()

    @classmethod
    def from_pretrained(
        cls,
        path: str | os.PathLike[str],
        tokenizer: str | os.PathLike[str] | None = None,
        *,
        device: str = "auto",
        dtype: str = "auto",
    ) -> Any:
        """Load a model; see `s2sft_fairseq.Seq2Seq.from_pretrained` for the arguments.

        Raises:
            UserError: naming every argument that is wrong, or what is wrong with the files.
        """
        arguments = {"path": path, "tokenizer": tokenizer, "device": device, "dtype": dtype}
        path, tokenizer = find_files(path, tokenizer)
        check_arguments(path, tokenizer, device, dtype)
        device, dtype = settled(device, dtype)
        folder = Path(tokenizer or path)
        with own_random_numbers():  # the model is initialized at random before its weights are loaded
            model, task = load(Path(path), {"data": str(folder)})
        if not isinstance(task, cls.task_class):
            raise UserError(f"{path} must be a model for a {cls.__name__}, but its task is {task.cfg._name}")
        if dtype != "float32":
            model.to(getattr(torch, dtype))
            check_half_precision(model)
        loaded = cls(model.to(device).eval(), task, folder).loaded_from(**arguments)
        loaded._source_names = source_names_of(path)
        return loaded

    def _logits(self, lines: Sequence[str]) -> list[np.ndarray]:
        """Return the logits for texts, each given as a line of symbols."""
        index = self._task.dictionary.index
        eos = self._task.dictionary.eos()
        rows = [torch.tensor([*map(index, line.split()), eos]) for line in lines]
        texts = ListDataset(rows, np.array([len(row) for row in rows]))
        dataset = LabelledDataset(texts, None, self._task.form, seed=1, shuffle=False, name="texts")
        with self._lock:
            return logits_of(self._task, self._model, dataset, MAX_TOKENS, where="text {} of those given", bar=False)


class Classifier(_Model):
    """A model that predicts a class, or a number, for a text or a pair of texts.

    Examples:
        With a model that learned whether two sentences belong together:

        >>> classifier(("a b", "c")).label
        'yes'
        >>> [each.label for each in classifier([("a b", "c"), {"premise": "a b", "hypothesis": "d"}])]
        ['yes', 'no']
        >>> sorted(classifier(("a b", "c")).probabilities)
        ['no', 'yes']
    """

    task_class = UnilmClassificationTask

    def __call__(self, texts: Any) -> Any:
        """Return the prediction for each text.

        Args:
            texts: one text or a list; a text may be a tuple of its fields, such as premise and hypothesis, or a dict
                of them if the model folder records their names.

        Returns:
            A `Prediction`, or for a list of texts a list of them.

        Raises:
            UserError: if an item is not a text.
        """
        fields = fields_of(listed(texts, "texts", self._source_names), "texts", self._source_names)
        if not fields:
            return []
        tokenizer = TextTokenizer(self._tokenizer)
        found = [self._prediction(logits) for logits in self._logits([_line(tokenizer, parts) for parts in fields])]
        return found[0] if is_one(texts) else found

    def _prediction(self, logits: np.ndarray) -> Prediction:
        classes = self._task.classes
        if not classes:
            return Prediction(float(logits[0]), {})
        shares = torch.from_numpy(logits).softmax(-1).tolist()
        return Prediction(classes[int(logits.argmax())], dict(zip(classes, shares, strict=True)))


class Reader(_Model):
    """A model that finds the answer to a question in a passage.

    Examples:
        With a model that learned what each letter asks for:

        >>> reader("b b", "A b c d, e f g h a c  e g b d f h.", max_positions=16, stride=4, max_query=2).text
        'e'
    """

    task_class = UnilmQuestionAnsweringTask

    def __call__(
        self,
        question: str,
        passage: str,
        *,
        max_answer: int = 30,
        null_threshold: float = float("inf"),
        max_positions: int = 384,
        stride: int = 128,
        max_query: int = 64,
    ) -> FoundAnswer:
        """Return the best answer.

        Args:
            question: the question.
            passage: a text of any length; it is read in windows.
            max_answer: maximum number of tokens of an answer.
            null_threshold: value of ``null_odds`` above which there is no answer; inf: there always is one, as in
                SQuAD v1.1.
            max_positions: positions of a window, at most those of the model.
            stride: tokens from the beginning of a window to the beginning of the next.
            max_query: maximum number of tokens of a question; longer questions are cut at the end.

        Raises:
            UserError: naming every argument that is wrong.
        """
        wrong = [
            f"{name} must be text that UTF-8 can hold, but is {text!r:.60}"
            for name, text in {"question": question, "passage": passage}.items()
            if not isinstance(text, str) or not is_unicode(text)
        ]
        numbers = {"max_answer": max_answer, "max_positions": max_positions, "stride": stride, "max_query": max_query}
        for name, number in numbers.items():
            if type(number) is not int or number < 1:
                wrong.append(f"{name} must be a whole number of at least 1, but is {number!r:.60}")
        if isinstance(null_threshold, bool) or not isinstance(null_threshold, int | float):
            wrong.append(f"null_threshold must be a number, but is {null_threshold!r:.60}")
        if wrong:
            raise UserError.of(wrong)
        windows = WindowMaker(self._tokenizer, min(max_positions, self._task.form.max_source), stride, max_query)
        if problems := windows.problems():
            raise UserError.of(problem.replace("--", "").replace("max-", "max_") for problem in problems)
        asked, lines = windows.make(SquadQuestion(Path("-"), "-", "-", question, passage, ()))
        found = find_answers(asked, self._logits(lines), max_answer)
        if not found.best or found.null_odds > null_threshold:
            return FoundAnswer("", found.null, 0, 0, found.null_odds)
        best = found.best[0]
        return FoundAnswer(best.text, best.score, best.start, best.end, found.null_odds)


def _line(tokenizer: TextTokenizer, fields: Sequence[str]) -> str:
    return tokenizer.join(tokenizer.encode(fields))
