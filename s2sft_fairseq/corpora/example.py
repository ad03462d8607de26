"""One record of a corpus, whatever its raw format."""

from dataclasses import dataclass
from pathlib import Path

from s2sft_fairseq.corpora.malformed import MalformedRecordError

# Between the fields of a source: ``s2sft tokenize --separator`` makes the separator symbol of a vocabulary of it.
FIELD_SEPARATOR = "[SEP]"
# Between the sentences of a summary, as UniLM and s2s-ft write them: a token of its own.
SENTENCE_SEPARATOR = "[X_SEP]"


@dataclass(frozen=True, slots=True)
class Example:
    """A source of one or more fields and what may be written for it, as they are in the raw file.

    `path` and `where`, a line or the name of a record, are for messages; so are `paths`, of line-aligned files that
    hold a field of the source or the reference each.
    """

    path: Path
    where: int | str
    source: tuple[str, ...]
    references: tuple[str, ...]
    paths: tuple[Path, ...] = ()

    def source_line(self) -> str:
        """The fields on one line, with `FIELD_SEPARATOR` between them.

        Raises:
            MalformedRecordError: if all fields are empty, or one holds the separator.
        """
        fields = [one_line(field) for field in self.source]
        if not any(fields):
            raise MalformedRecordError("the source is empty")
        for number, field in enumerate(fields):
            if FIELD_SEPARATOR in field:
                path = self.paths[number] if self.paths else None
                raise MalformedRecordError(f"the source holds {FIELD_SEPARATOR}, which separates fields", path)
        return f" {FIELD_SEPARATOR} ".join(fields)

    def reference_lines(self) -> list[str]:
        """The references, a line each.

        Raises:
            MalformedRecordError: if there is none, or one is empty.
        """
        lines = [one_line(reference) for reference in self.references]
        if not lines or not all(lines):
            path = self.paths[-1] if self.paths else None
            raise MalformedRecordError("has no target" if not lines else "the target is empty", path)
        return lines


def one_line(text: str) -> str:
    """Every run of white space, line ends included, as one space."""
    return " ".join(text.split())
