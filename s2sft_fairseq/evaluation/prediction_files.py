"""What ``s2sft predict`` writes, read together with the right answers: GLUE's tables and SQuAD's JSON."""

from pathlib import Path
from typing import Any

from s2sft_fairseq.corpora.squad_reading import read_right_answers
from s2sft_fairseq.data.text_files import check_texts, line_problems, read_json_object, read_lines
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.evaluation.examples import Example

HEADER = "index\tprediction"
_SHOWN = 5


def read_table(predictions: Path, labels: Path) -> list[Example]:
    """Read a table of GLUE's server, and a label a line.

    Raises:
        UserError: a file is missing or malformed, or they have different numbers of labels.
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
    return [Example(prediction, (label,)) for (_, prediction), label in zip(cells, right, strict=True)]


def read_answers(predictions: Path, data: Path, null_odds: Path | None = None) -> list[Example]:
    """Read answers ``{id: text}``, SQuAD's own file, and maybe the odds that there is no answer, ``{id: number}``.

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
        Example(answers[name], texts or ("",), null_odds=None if odds is None else float(odds[name]))
        for name, texts in right.items()
    ]


def _values(path: Path, kind: Any, what: str) -> dict[str, Any]:
    values = read_json_object(path)
    if wrong := [name for name, value in values.items() if not isinstance(value, kind)]:
        raise UserError(f"{path} must give {what} for each question, but for {len(wrong)} it does not: {wrong[0]}")
    return values
