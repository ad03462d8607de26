"""Read hypotheses, references and sources from line-aligned files, GLUE tables or SQuAD JSON.

``s2sft predict`` writes the tables and the JSON. A hypothesis may also be the beginning of its source, the usual
baseline of summarization: the first three sentences for CNN/DailyMail (See et al. 2017), the first one for XSum
(Narayan et al. 2018) and about the first eight words for headlines (Rush et al. 2015, who take 75 characters).
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from s2sft_fairseq.corpora.squad import read_right_answers
from s2sft_fairseq.data.bounded_files import open_bytes, parse_json, read_json_object
from s2sft_fairseq.data.text_files import check_texts, is_json_lines, line_problems, read_lines
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.evaluation.normalisation import (
    equality,
    in_unicode_form,
    normalise_hypothesis,
    normalise_reference,
    normalise_source,
)
from s2sft_fairseq.evaluation.settings import Settings
from s2sft_fairseq.progress import bar

UNITS = ("sentences", "words")
_SPECIFICATION = re.compile(rf"([1-9][0-9]*)-({'|'.join(UNITS)})")

# The end of a sentence: a mark, optional closing quotes and brackets, and white space before an upper-case letter or a
# digit, with optional opening quotes and brackets.
_END = re.compile(r"""[.!?]["'\u201d\u2019)\]]*\s+(?=["'\u201c\u2018(\[]*[A-Z0-9])""")
# A full stop after one of these does not end a sentence. Single capitals are initials, or parts of U.S.
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\"'.])(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|Rev|Gen|Col|Lt|Sgt|Capt|Sen|Rep|Gov|St|Jr|Sr|No|vs|Inc|Co|Corp|Ltd|"
    r"Jan|Feb|Aug|Sept|Oct|Nov|Dec|e\.g|i\.e)$"
)
_LONGEST_ABBREVIATION = 5  # with the character before it


@dataclass(frozen=True)
class Lead:
    """The length of a lead, the beginning of a source: a number of sentences or words."""

    count: int
    unit: str

    @classmethod
    def parse(cls, text: str) -> "Lead":
        """Read ``3-sentences`` or ``8-words``.

        Raises:
            ValueError: the text has neither form.
        """
        if (found := _SPECIFICATION.fullmatch(text)) is None:
            raise ValueError(f"must be a number of sentences or words, such as 3-sentences, but is {text}")
        return cls(int(found[1]), found[2])

    def of(self, text: str, separator: str = "") -> str:
        """Return the lead of a text, with `separator` between its sentences."""
        if self.unit == "words":
            return " ".join(text.split()[: self.count])
        return f" {separator} ".join(split_sentences(text)[: self.count]).replace("  ", " ")

    def __str__(self) -> str:
        return f"lead-{self.count}-{self.unit}"


def split_sentences(text: str) -> list[str]:
    """Split English text by rules, with a short list of abbreviations: the full stop of any other ends a sentence."""
    sentences, start = [], 0
    for end in _END.finditer(text):
        stop = end.start()
        if text[stop] == "." and _ABBREVIATION.search(text, max(0, stop - _LONGEST_ABBREVIATION), stop):
            continue
        sentences.append(text[start : end.end()].strip())
        start = end.end()
    return [*sentences, text[start:].strip()]


@dataclass(frozen=True)
class Example:
    """A hypothesis and its references. Line ends separate sentences."""

    hypothesis: str
    references: tuple[str, ...]
    source: str = ""
    null_odds: float | None = None
    """SQuAD v2.0: the odds that the question has no answer."""
    equality: str = ""
    """Whether the hypothesis was read as the same text as a reference, see `normalisation.equality`."""


def read_examples(
    hypotheses: Path | Lead, references: Sequence[Path], source: Path | None, settings: Settings
) -> list[Example]:
    """Read and normalize the examples of one system.

    Args:
        hypotheses: a file with one hypothesis per line, or the lead of each source.
        references: line-aligned files, one for each reference. A line may be empty if the example has fewer references.
            ``.jsonl`` and ``.json`` files have objects with a list of texts as "refs", or one text as "tgt"; those of
            hypotheses are what ``s2sft generate`` writes, and those of sources have a text as "src".
        source: the line-aligned file of sources, or None.
        settings: how to normalize the texts, and whether to group examples by source.

    Raises:
        UserError: a file is missing, empty or malformed, line counts differ, or an example has no reference.
    """
    read = [hypotheses] if isinstance(hypotheses, Path) else []
    check_texts([[*read, *references, *([source] if source else [])]], allow_crlf=True, allow_json=True)
    sources = [text for (text,) in _texts(source, _source, 'with a text as "src"')] if source else None
    if isinstance(hypotheses, Path):
        lines = [text for (text,) in _texts(hypotheses, _best, 'of s2sft generate, with "hypotheses"')]
    else:
        lines = [hypotheses.of(text, settings.hyp_separator) for text in sources or []]
    sources = sources or [""] * len(lines)
    columns = zip(*map(_references, references), strict=True)
    examples, lacking = [], []
    rows = bar(zip(lines, sources, columns, strict=True), f"read {hypotheses}", " lines", total=len(lines))
    for number, (line, origin, of_files) in enumerate(rows, 1):
        texts = tuple(normalise_reference(text, settings) for of_file in of_files for text in of_file if text.strip())
        if not texts:
            lacking.append(number)
        hypothesis, of_source = normalise_hypothesis(line, settings), normalise_source(origin, settings)
        same = equality(line, (text for of_file in of_files for text in of_file))
        examples.append(Example(hypothesis, texts, of_source, equality=same))
    if lacking:
        raise UserError.of(line_problems(references[0], {"have no reference": lacking}))
    return group_by_source(examples) if settings.group_by_source else examples


def group_by_source(examples: Sequence[Example]) -> list[Example]:
    """Merge the examples of each source into one, with the references of all and the hypothesis of the last.

    qgevalcap does so, the usual evaluation of question generation since Du et al. (2017).
    """
    groups: dict[str, Example] = {}
    for example in examples:
        before = groups[example.source].references if example.source in groups else ()
        groups[example.source] = replace(example, references=(*before, *example.references))
    return list(groups.values())


def _lines(path: Path) -> list[str]:
    with open_bytes(path) as file:
        text = file.read().decode("utf-8").removesuffix("\n")
    return [line.removesuffix("\r") for line in text.split("\n")]


def _references(path: Path) -> list[tuple[str, ...]]:
    """Return the references of each line."""
    return _texts(path, _json_references, 'with a list of texts as "refs" or a text as "tgt"')


def _texts(path: Path, read: Callable[[Mapping[str, Any]], tuple[str, ...] | None], what: str) -> list[tuple[str, ...]]:
    """Return the texts of each line: of plain text the line itself, of a JSON object what `read` finds.

    Raises:
        UserError: naming the lines that are no objects, or in which `read` finds nothing; `what` says what is needed.
    """
    if not is_json_lines(path):
        return [(line,) for line in _lines(path)]
    found: list[tuple[str, ...]] = []
    wrong = []
    for number, line in enumerate(_lines(path), 1):
        value = _json(line)
        texts = read(value) if isinstance(value, dict) else None
        if texts is None:
            wrong.append(number)
        else:
            found.append(texts)
    if wrong:
        raise UserError.of(line_problems(path, {f"are not a JSON object {what}": wrong}))
    return found


def _json(line: str) -> Any:
    try:
        return parse_json(line)
    except ValueError:
        return None


def _source(value: Mapping[str, Any]) -> tuple[str] | None:
    text = value.get("src")
    return (text,) if isinstance(text, str) else None


def _best(value: Mapping[str, Any]) -> tuple[str] | None:
    """Return the text of the best hypothesis; "" for an empty list."""
    found = value.get("hypotheses")
    if not isinstance(found, list):
        return None
    best = found[0] if found else {"text": ""}
    text = best.get("text") if isinstance(best, dict) else None
    return (text,) if isinstance(text, str) else None


def _json_references(value: Mapping[str, Any]) -> tuple[str, ...] | None:
    texts = value.get("refs", [value.get("tgt")])
    return tuple(texts) if isinstance(texts, list) and all(isinstance(text, str) for text in texts) else None


DEFAULT = Settings()
HEADER = "index\tprediction"
_SHOWN = 5


def read_table(predictions: Path, labels: Path, settings: Settings = DEFAULT) -> list[Example]:
    """Read predictions in the format of GLUE's server, and a file with one label per line.

    Raises:
        UserError: a file is missing or malformed, or the numbers of predictions and labels differ.
    """
    check_texts([[predictions], [labels]], allow_crlf=True)
    head, *rows = (line.removesuffix("\r") for line in read_lines(predictions))
    right = [line.removesuffix("\r") for line in read_lines(labels)]
    if head != HEADER:
        raise UserError(f"{predictions} must begin with the line {HEADER!r}, but begins with {head!r:.60}")
    cells = [row.split("\t") for row in rows]
    wrong = [n for n, row in enumerate(cells, 2) if len(row) != 2 or row[0] != str(n - 2)]
    if wrong:
        raise UserError.of(line_problems(predictions, {"are not the next index and a prediction": wrong}))
    if len(rows) != len(right):
        raise UserError(f"each label needs a prediction: {labels} has {len(right)}, {predictions} {len(rows)}")
    return [_as_given(prediction, (label,), settings) for (_, prediction), label in zip(cells, right, strict=True)]


def _as_given(text: str, references: Sequence[str], settings: Settings, null_odds: float | None = None) -> Example:
    """Return an example whose texts change nothing but their Unicode form."""
    right = tuple(in_unicode_form(reference, settings) for reference in references)
    same = equality(text, references)
    return Example(in_unicode_form(text, settings), right, null_odds=null_odds, equality=same)


def read_answers(
    predictions: Path, data: Path, null_odds: Path | None = None, settings: Settings = DEFAULT
) -> list[Example]:
    """Read answers ``{id: text}``, SQuAD's own file, and optionally the odds of no answer, ``{id: number}``.

    Raises:
        UserError: a file is missing or malformed, or a question lacks an answer or odds.
    """
    answers = _values(predictions, str, "a text")
    odds = None if null_odds is None else _values(null_odds, (int, float), "a number")
    right = read_right_answers(data)
    problems = []
    for path, values in ((predictions, answers), (null_odds, odds)):
        lacking = [] if values is None else [name for name in right if name not in values]
        if lacking:
            more = ", ..." if len(lacking) > _SHOWN else ""
            problems.append(f"{path} lacks {len(lacking):,} question(s) of {data}: {', '.join(lacking[:_SHOWN])}{more}")
    if problems:
        raise UserError.of(problems)
    return [
        _as_given(answers[name], texts or ("",), settings, None if odds is None else float(odds[name]))
        for name, texts in right.items()
    ]


def _values(path: Path, kind: Any, what: str) -> dict[str, Any]:
    values = read_json_object(path)
    if wrong := [name for name, value in values.items() if not isinstance(value, kind)]:
        raise UserError(f"{path} must give {what} for each question, but for {len(wrong)} it does not: {wrong[0]}")
    return values
