"""Hypotheses, their references and sources, read from line-aligned files."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from s2sft_fairseq.data.text_files import check_texts, is_json_lines, line_problems, open_bytes
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.evaluation.lead import Lead
from s2sft_fairseq.evaluation.normalisation import normalise_hypothesis, normalise_reference, normalise_source
from s2sft_fairseq.evaluation.settings import Settings


@dataclass(frozen=True)
class Example:
    """What a system wrote, and what people wrote; sentences have a line end between them."""

    hypothesis: str
    references: tuple[str, ...]
    source: str = ""
    null_odds: float | None = None
    """SQuAD v2.0: how much likelier it is that there is no answer."""


def read_examples(
    hypotheses: Path | Lead, references: Sequence[Path], source: Path | None, settings: Settings
) -> list[Example]:
    """Read and normalise the examples of one system.

    Args:
        hypotheses: a text a line; or the beginning of each source.
        references: line-aligned with it, one file for each reference, which may be empty where an example has fewer of
            them; in ``.jsonl`` files, objects with a list of texts as "refs", or one text as "tgt".
        source: line-aligned as well, or None.
        settings: what is done to the texts, and whether examples with the same source are one.

    Raises:
        UserError: a file is missing, empty or malformed, line counts differ, or an example has no reference.
    """
    read = [hypotheses] if isinstance(hypotheses, Path) else []
    check_texts([[*read, *references, *([source] if source else [])]], allow_crlf=True)
    sources = _lines(source) if source else None
    if isinstance(hypotheses, Path):
        lines = _lines(hypotheses)
    else:
        lines = [hypotheses.of(text, settings.hyp_separator) for text in sources or []]
    sources = sources or [""] * len(lines)
    columns = zip(*map(_references, references), strict=True)
    examples, lacking = [], []
    for number, (line, origin, of_files) in enumerate(zip(lines, sources, columns, strict=True), 1):
        texts = tuple(normalise_reference(text, settings) for of_file in of_files for text in of_file if text.strip())
        if not texts:
            lacking.append(number)
        examples.append(Example(normalise_hypothesis(line, settings), texts, normalise_source(origin, settings)))
    if lacking:
        raise UserError.of(line_problems(references[0], {"have no reference": lacking}))
    return group_by_source(examples) if settings.group_by_source else examples


def group_by_source(examples: Sequence[Example]) -> list[Example]:
    """Make one example of those with the same source, with the references of all and the hypothesis of the last.

    So does qgevalcap, the evaluation of Du et al. (2017) that is used for question generation since.
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
    """The references of each line."""
    if not is_json_lines(path):
        return [(line,) for line in _lines(path)]
    found, wrong = [], {}
    for number, line in enumerate(_lines(path), 1):
        texts = _json_references(line)
        if texts is None:
            what = 'are no JSON object with a list of texts as "refs", or a text as "tgt"'
            wrong.setdefault(what, []).append(number)
        else:
            found.append(texts)
    if wrong:
        raise UserError.of(line_problems(path, wrong))
    return found


def _json_references(line: str) -> tuple[str, ...] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    texts = value.get("refs", [value.get("tgt")])
    return tuple(texts) if isinstance(texts, list) and all(isinstance(text, str) for text in texts) else None
