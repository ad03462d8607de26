"""Data-to-text generation: the E2E NLG challenge and WebNLG 3.0.

E2E: from a meaning representation to a sentence about a restaurant. Raw files: ``trainset.csv``, ``devset.csv`` and
``testset_w_refs.csv`` (Novikova et al., 2017; https://github.com/tuetschek/e2e-dataset), CSV with the columns ``mr``
and ``ref``. A meaning representation has a row for each of its references. For scoring, rows with the same meaning
representation are merged, as in the challenge's own script.

WebNLG: from triples of DBpedia to a text about them, in English or Russian. Raw files, in the folder of a language:
``train/Ntriples/*.xml``, ``dev/Ntriples/*.xml`` and ``test/rdf-to-text-generation-test-data-with-refs-LANG.xml``
(Gardent et al., 2017; Castro Ferreira et al., 2020; https://gitlab.com/shimorina/webnlg-dataset, ``release_v3.0``).
The fields of a source are its triples, ``subject | property | object`` with spaces for underscores. The references are
the texts in the given language; the Russian files hold the English texts, too.
"""

import csv
import io
import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable, Iterator
from pathlib import Path

from s2sft_fairseq.corpora.reading import Example, Malformed, MalformedRecordError, one_line, require
from s2sft_fairseq.data.bounded_files import read_text
from s2sft_fairseq.errors import UserError

HEADER = ["mr", "ref"]
SLOTS = ("name", "eatType", "food", "priceRange", "customer rating", "area", "familyFriendly", "near")
_SLOT = rf"(?:{'|'.join(SLOTS)})\[[^\[\]]+\]"
_MEANING = re.compile(rf"{_SLOT}(?:, {_SLOT})*")


def read_e2e(folder: Path, malformed: Malformed) -> dict[str, Iterator[Example]]:
    """Return the three splits; ``valid`` and ``test`` have one example per meaning representation, with all references.

    Raises:
        UserError: if a file is missing, is not UTF-8 or has another header.
    """
    train, valid, test = require(folder, "trainset.csv", "devset.csv", "testset_w_refs.csv")
    return {
        "train": read_e2e_file(train, malformed),
        "valid": grouped(read_e2e_file(valid, malformed)),
        "test": grouped(read_e2e_file(test, malformed)),
    }


def read_e2e_file(path: Path, malformed: Malformed) -> Iterator[Example]:
    """Yield an example for each row.

    Raises:
        UserError: if the file is not UTF-8, is not CSV or has another header.
    """
    text = read_text(path, mark=True)
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(rows, [])
        if header != HEADER:
            raise UserError(f"{path} must have the columns {', '.join(HEADER)}, but has {', '.join(header) or 'none'}")
        line = rows.line_num + 1
        for row in rows:
            if len(row) != len(HEADER):
                malformed.add(path, line, f"must have {len(HEADER)} columns, but has {len(row)}")
            elif not _MEANING.fullmatch(one_line(row[0])):
                malformed.add(path, line, f"mr must be slot[value], slot[value] ... of known slots, but is {row[0]!r}")
            else:
                yield Example(path, line, (row[0],), (row[1],))
            line = rows.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}:{rows.line_num} must be CSV: {error}") from None


def grouped(examples: Iterable[Example]) -> Iterator[Example]:
    """Yield one example per source, with all its references, in the order in which the sources first appear."""
    groups: dict[str, list[Example]] = {}
    for example in examples:
        if all(map(one_line, example.references)):
            groups.setdefault(one_line(" ".join(example.source)), []).append(example)
        else:
            yield example  # malformed: kept apart, so that the other examples of its source stay valid
    for group in groups.values():
        first = group[0]
        yield Example(first.path, first.where, first.source, tuple(text for one in group for text in one.references))


LANGUAGES = ("en", "ru")


def read_webnlg(folder: Path, language: str, malformed: Malformed) -> dict[str, Iterator[Example]]:
    """Return the three splits of a language.

    Args:
        folder: the folder that contains the folder ``en`` or ``ru``.
        language: ``en`` or ``ru``.
        malformed: collects malformed records.

    Raises:
        UserError: if a split has no file.
    """
    patterns = {
        "train": "train/*triples/*.xml",
        "valid": "dev/*triples/*.xml",
        "test": f"test/rdf-to-text-generation-test-data-with-refs-{language}.xml",
    }
    paths = {split: sorted((folder / language).glob(pattern)) for split, pattern in patterns.items()}
    if missing := [pattern for split, pattern in patterns.items() if not paths[split]]:
        raise UserError(f"--raw {folder} must hold {', '.join(f'{language}/{pattern}' for pattern in missing)}")
    return {split: _read_all(files, language, malformed) for split, files in paths.items()}


def _read_all(paths: list[Path], language: str, malformed: Malformed) -> Iterator[Example]:
    for path in paths:
        yield from read_webnlg_file(path, language, malformed)


def read_webnlg_file(path: Path, language: str, malformed: Malformed) -> Iterator[Example]:
    """Yield an example for each entry of a file, with all its texts as references."""
    try:
        root = ElementTree.parse(path).getroot()
    except ElementTree.ParseError as error:
        malformed.add(path, error.position[0], f"is no well-formed XML: {error}")
        return
    except (LookupError, ValueError) as error:  # in the encoding that the first line names
        malformed.add(path, 1, f"is no well-formed XML: {error}")
        return
    for number, entry in enumerate(root.iter("entry"), 1):
        where = f"entry {number} ({entry.get('category')}, {entry.get('eid')})"
        with malformed.record(path, where):
            triples = [_triple(element.text or "") for element in entry.iterfind("modifiedtripleset/mtriple")]
            if not triples:
                raise MalformedRecordError("has no mtriple")
            # English files of earlier releases do not name the language.
            texts = [text.text or "" for text in entry.iterfind("lex") if (text.get("lang") or "en") == language]
            yield Example(path, where, tuple(triples), tuple(texts))


def _triple(text: str) -> str:
    parts = text.split(" | ")
    if len(parts) != 3 or not all(map(str.strip, parts)):
        raise MalformedRecordError(f"an mtriple must be subject | property | object, but is {text!r:.80}")
    return " | ".join(part.replace("_", " ").strip() for part in parts)
