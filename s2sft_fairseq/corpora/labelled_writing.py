"""From examples whose reference is a label to the text files that classification is trained on.

===========================  ==========================================================================================
``train.txt``, ...           a text a line, of every split; fields have ``[SEP]`` between them
``train.label``, ...         its label, a class or a number; of splits that have labels
``labels.txt``               the classes, a line each
``stats.json``               how many lines there are of each split, and what was left out
===========================  ==========================================================================================
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from s2sft_fairseq.corpora.example import Example
from s2sft_fairseq.corpora.malformed import Malformed
from s2sft_fairseq.corpora.writing import finish
from s2sft_fairseq.data.labels import CLASSES
from s2sft_fairseq.data.text_files import write_lines
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.files import new_folder


def write_labelled(
    splits: Mapping[str, Iterable[Example]],
    folder: Path,
    malformed: Malformed,
    *,
    classes: Sequence[str],
    skip_malformed: bool = False,
    limit: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Write the files into a new folder, which appears when all are complete; see `write_corpus`.

    Args:
        classes: names; () of numbers.

    Raises:
        UserError: if the folder exists, a split is empty, or without `skip_malformed` a record is malformed; in a test
            set also with it, for the predictions of one are numbered by its rows.
    """
    with new_folder(folder, "--output") as partial:
        lines = {}
        for split, examples in splits.items():
            texts, labels = [], []
            before, shown = malformed.records.total(), len(malformed.shown)
            for text, label in islice(_well_formed(examples, malformed), limit):
                texts.append(text)
                labels += label
            if skip_malformed and split.startswith("test") and malformed.records.total() > before:
                heading = f"--skip-malformed cannot leave rows of the {split} set out, whose predictions are numbered:"
                raise UserError.of(malformed.shown[shown:] or malformed.lines(), heading)
            lines[split] = write_lines(partial / f"{split}.txt", texts)
            if labels:
                write_lines(partial / f"{split}.label", labels)
        if classes:
            write_lines(partial / CLASSES, classes)
        return finish(partial, lines, malformed, skip_malformed=skip_malformed, settings=settings)


def _well_formed(examples: Iterable[Example], malformed: Malformed) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the text and the labels, one or none, of each example that has a text."""
    for example in examples:
        with malformed.record(example.path, example.where):
            yield example.source_line(), example.references
