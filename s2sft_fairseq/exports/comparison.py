"""Compare an exported model with the one that it was made from, on texts, and write what was found into its card."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from s2sft_fairseq.checkpoints.model_folder import CARD
from s2sft_fairseq.data.text_files import read_lines
from s2sft_fairseq.errors import UserError

TEXTS = (
    "The committee will meet again on Tuesday to discuss the results of the survey.",
    "A man in a blue shirt is standing on a ladder and cleaning the window of a shop.",
    "Why do some birds fly south in winter, while others stay where they are?",
    "Prices rose by 3.5 % in March 2019, the bank said, but wages did not follow.",
    "Zwei Kinder spielen im Garten hinter dem Haus mit einem kleinen Hund.",
    "yes",
)
"""What is compared where no texts are given."""
SHOWN = 5
"""Differing hypotheses that are shown."""

Search = Callable[[Sequence[str]], Sequence[Sequence[int]]]
"""From texts to the ids of the best hypothesis of each, without eos."""
Logits = Callable[[str, Sequence[int]], Tensor]
"""From a text and the ids of a target without eos to the logits (T, V) that predict its T - 1 ids and eos, in float32.

V: symbols; further columns, of rows that belong to no symbol, are not compared."""


@dataclass(frozen=True)
class Comparison:
    """What two programs make of the same texts."""

    program: str
    """That runs the exported model, such as ``transformers 5.23.0``."""
    texts: int
    equal: int
    """Hypotheses that are the same, token by token."""
    largest_difference: float | None
    """Of two logits, along our hypotheses; None where the program does not tell them."""
    differing: Sequence[str] = ()
    """The texts of some hypotheses that differ."""

    def __str__(self) -> str:
        """Return a sentence for a terminal."""
        told = f"{self.program}: {self.equal:,} of {self.texts:,} hypotheses are equal"
        return told if self.largest_difference is None else f"{told}, logits within {self.largest_difference:.1e}"


def read_texts(path: Path | None) -> Sequence[str]:
    """Return the texts of ``--verify``, one a line, or the built-in ones.

    Raises:
        UserError: if the file cannot be read or is empty.
    """
    if path is None:
        return TEXTS
    try:
        texts = list(read_lines(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--verify {path} must be a text file, one text a line, but cannot be read: {error}") from None
    if not texts:
        raise UserError(f"--verify {path} must hold texts, one a line, but is empty")
    return texts


def compare(
    program: str,
    texts: Sequence[str],
    ours: Search,
    theirs: Search,
    our_logits: Logits | None = None,
    their_logits: Logits | None = None,
) -> Comparison:
    """Search both models, and compare their logits along our hypotheses.

    Args:
        program: that runs the exported model, with its version.
        texts: to generate from.
        ours: the search of the model that was exported.
        theirs: that of the exported one.
        our_logits: of the model that was exported; None, for both, where the program does not tell its own.
        their_logits: of the exported one.
    """
    our_hypotheses = [list(map(int, ids)) for ids in ours(texts)]
    their_hypotheses = [list(map(int, ids)) for ids in theirs(texts)]
    pairs = list(zip(texts, our_hypotheses, their_hypotheses, strict=True))
    differing = [text for text, our, their in pairs if our != their]
    largest = None
    if our_logits is not None and their_logits is not None:
        largest = max(_difference(our_logits(text, ids), their_logits(text, ids)) for text, ids, _ in pairs)
    return Comparison(program, len(texts), len(texts) - len(differing), largest, differing[:SHOWN])


def write_comparison(folder: Path, comparison: Comparison, source_bytes: int) -> None:
    """Append to the ``README.md`` of a folder what was compared, and how large the weights of both models are.

    Args:
        folder: of the exported model, with its README.
        comparison: what was found.
        source_bytes: of the weights of the model that was exported.
    """
    exported = sum(path.stat().st_size for path in folder.iterdir() if path.name != CARD)
    lines = [
        *("", "## Compared with the model that it was made from", "", "| | |", "|---|---|"),
        f"| program | {comparison.program} |",
        f"| equal hypotheses | {comparison.equal:,} of {comparison.texts:,} |",
    ]
    if comparison.largest_difference is not None:
        lines.append(f"| largest difference of logits | {comparison.largest_difference:.1e} |")
    lines += [f"| size | {_megabytes(exported)}; of the original's weights {_megabytes(source_bytes)} |", ""]
    if comparison.differing:
        lines += ["Hypotheses differ for", "", *(f"* {' '.join(text.split())[:200]}" for text in comparison.differing)]
        lines.append("")
    with (folder / CARD).open("a", encoding="utf-8") as file:
        file.write("\n".join(lines))


def _difference(ours: Tensor, theirs: Tensor) -> float:
    columns = min(ours.size(1), theirs.size(1))
    return float((ours[:, :columns].float() - theirs[:, :columns].float()).abs().max())


def _megabytes(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
