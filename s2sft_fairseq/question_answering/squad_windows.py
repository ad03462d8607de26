"""Write questions and the windows of their passages as the symbols of a model's vocabulary.

=============================  ========================================================================================
``train.txt``, ``valid.txt``   a tokenized ``question [SEP] window`` per line
``*.questions.jsonl``          the questions, see `s2sft_fairseq.question_answering.questions`
``valid.json``                 the questions in SQuAD's own layout, the references of a score
``stats.json``                 the number of windows of each split, and what was left out
=============================  ========================================================================================
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any

from s2sft_fairseq.corpora.reading import Malformed, MalformedRecordError
from s2sft_fairseq.corpora.squad import SquadQuestion, write_squad_file
from s2sft_fairseq.corpora.writing import finish
from s2sft_fairseq.errors import UserError, as_option
from s2sft_fairseq.files import new_folder
from s2sft_fairseq.progress import bar
from s2sft_fairseq.question_answering.questions import Question, questions_path, slide
from s2sft_fairseq.tokenization.folder import Tokenizer
from s2sft_fairseq.tokenization.symbols import Pieces

_SPECIAL = 3  # [CLS], and [SEP] twice


@dataclass(frozen=True)
class WindowMaker:
    """A tokenizer and the sizes of windows; the defaults are those of BERT's program."""

    tokenizer: Tokenizer
    max_positions: int = 384
    """Maximum length of a laid-out text, special symbols included."""
    stride: int = 128
    """Tokens from the beginning of a window to that of the next."""
    max_query: int = 64
    """Maximum number of tokens of a question; longer ones are cut at the end."""

    def problems(self) -> list[str]:
        """Return the problems of these values, a sentence each."""
        found = [
            f"{as_option(name)} must be at least 1, but is {getattr(self, name)}"
            for name in ("stride", "max_query")
            if getattr(self, name) < 1
        ]
        if self.max_positions <= self.max_query + _SPECIAL:
            found.append(
                f"--max-positions must be more than --max-query and {_SPECIAL} special symbols "
                f"({self.max_query + _SPECIAL}), but is {self.max_positions}"
            )
        return found

    def make(self, question: SquadQuestion) -> tuple[Question, list[str]]:
        """Return a question, and the line of each of its windows.

        Raises:
            MalformedRecordError: no token of the passage belongs to the answer.
        """
        symbols, offsets = self._passage(question.passage)
        query = self._pieces(question.text).symbols[: self.max_query]
        windows = slide(len(symbols), self.max_positions - len(query) - _SPECIAL, self.stride)
        separator = self.tokenizer.dictionary.eos_word
        lines = [" ".join([*query, separator, *symbols[start : start + size]]) for start, size in windows]
        answer = find_answer(offsets, *question.answers[0]) if question.answers else None
        return Question(question.id, len(query), windows, answer, question.passage, offsets), lines

    @lru_cache(maxsize=4)  # the questions on a passage follow each other  # noqa: B019
    def _passage(self, text: str) -> Pieces:
        return self._pieces(text)

    def _pieces(self, text: str) -> Pieces:
        """Encode a text, with offsets that exclude white space."""
        (pieces,) = self.tokenizer.encode_pieces([text])
        return Pieces(pieces.symbols, [_stripped(text, *place) for place in pieces.offsets])


def find_answer(offsets: list[tuple[int, int]], text: str, start: int) -> tuple[int, int]:
    """Return the first and the last token of an answer, which may begin or end within a token.

    Args:
        offsets: the characters of each token of the passage.
        text: the text of the answer.
        start: the index of its first character in the passage.

    Raises:
        MalformedRecordError: there is no such token.
    """
    end = start + len(text)
    tokens = [number for number, (first, last) in enumerate(offsets) if first < end and last > start]
    if not tokens:
        raise MalformedRecordError(f"no token of the passage belongs to the answer {text!r:.60}")
    return tokens[0], tokens[-1]


def write_windows(
    splits: Mapping[str, Iterable[SquadQuestion]],
    folder: Path,
    malformed: Malformed,
    *,
    windows: WindowMaker,
    skip_malformed: bool = False,
    limit: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write the files into a new folder, which appears when all are complete; see `write_corpus`.

    Raises:
        UserError: an option is out of range, the folder exists, a split is empty, or a record is malformed and
            `skip_malformed` is not set.
    """
    if problems := windows.problems():
        raise UserError.of(problems)
    with new_folder(folder, "--output") as partial:
        lines = {}
        for split, questions in splits.items():
            lines[split], kept = 0, []
            with (
                (partial / f"{split}.txt").open("w", encoding="utf-8", newline="\n") as texts,
                questions_path(partial, split).open("w", encoding="utf-8", newline="\n") as described,
            ):
                for question in bar(islice(questions, limit), split, " questions"):
                    with malformed.record(question.path, question.where):
                        made, of_windows = windows.make(question)
                        if split == "train":
                            made = replace(made, passage=None, offsets=None)
                        texts.writelines(f"{line}\n" for line in of_windows)
                        described.write(made.to_json() + "\n")
                        lines[split] += len(of_windows)
                        kept += [question] if split != "train" else []
            if kept:
                write_squad_file(partial / f"{split}.json", kept)
        return finish(partial, lines, malformed, skip_malformed=skip_malformed, settings=settings)


def _stripped(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the range of a text from `start` to `end` without the white space at its ends."""
    inside = text[start:end]
    start += len(inside) - len(inside.lstrip())
    return start, max(start, start + len(inside.strip()))
