"""WebNLG 3.0: from triples of DBpedia to a text about them, in English or Russian.

Raw files: of a language's folder ``train/Ntriples/*.xml``, ``dev/Ntriples/*.xml`` and
``test/rdf-to-text-generation-test-data-with-refs-LANG.xml`` (Gardent et al., 2017; Castro Ferreira et al., 2020;
https://gitlab.com/shimorina/webnlg-dataset, ``release_v3.0``). Fields of a source: its triples, ``subject | property |
object`` with spaces for underscores. References are the texts in the language asked for; the Russian files hold the
English ones too.
"""

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

from s2sft_fairseq.corpora.example import Example
from s2sft_fairseq.corpora.malformed import Malformed, MalformedRecordError
from s2sft_fairseq.errors import UserError

LANGUAGES = ("en", "ru")


def read_webnlg(folder: Path, language: str, malformed: Malformed) -> dict[str, Iterator[Example]]:
    """The three splits of a language.

    Args:
        folder: with the folder ``en`` or ``ru``.

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
        yield from read_entries(path, language, malformed)


def read_entries(path: Path, language: str, malformed: Malformed) -> Iterator[Example]:
    """Yield an example for each entry of a file, with all its texts as references."""
    try:
        root = ElementTree.parse(path).getroot()
    except ElementTree.ParseError as error:
        malformed.add(path, error.position[0], f"is no well-formed XML: {error}")
        return
    for number, entry in enumerate(root.iter("entry"), 1):
        where = f"entry {number} ({entry.get('category')}, {entry.get('eid')})"
        with malformed.record(path, where):
            triples = [_triple(element.text or "") for element in entry.iterfind("modifiedtripleset/mtriple")]
            if not triples:
                raise MalformedRecordError("has no mtriple")
            # English files of earlier releases name no language.
            texts = [text.text or "" for text in entry.iterfind("lex") if (text.get("lang") or "en") == language]
            yield Example(path, where, tuple(triples), tuple(texts))


def _triple(text: str) -> str:
    parts = text.split(" | ")
    if len(parts) != 3 or not all(map(str.strip, parts)):
        raise MalformedRecordError(f"an mtriple must be subject | property | object, but is {text!r:.80}")
    return " | ".join(part.replace("_", " ").strip() for part in parts)
