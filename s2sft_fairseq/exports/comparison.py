"""Compare an exported model with the original on texts, and write the result into the model card."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from s2sft_fairseq.checkpoints.model_folder import CARD
from s2sft_fairseq.data.text_files import read_lines
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.progress import bar

TEXTS = (
    "The committee will meet again on Tuesday to discuss the results of the survey.",
    "A man in a blue shirt is standing on a ladder and cleaning the window of a shop.",
    "Why do some birds fly south in winter, while others stay where they are?",
    "Prices rose by 3.5 % in March 2019, the bank said, but wages did not follow.",
    "Zwei Kinder spielen im Garten hinter dem Haus mit einem kleinen Hund.",
    "yes",
    # other scripts, odd blanks, names of special symbols, characters that vocabularies lack, nothing
    "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3002 \u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440!",
    "  Two  blanks\tor\u00a0more  ",
    "A <unk> and a <pad>, </s> [SEP] [MASK] <mask>.",
    "caf\u00e9 cafe\u0301 \U0001f600 \ue000",
    "",
)
"""The texts for the comparison, unless others are given."""
SHOWN = 5
"""Maximum number of texts with differing hypotheses to show."""
CLOSE = 1e-3
"""Logits in float32 may differ by as much; all exports that were measured differ by less than a fifth of it."""

Search = Callable[[Sequence[str]], Sequence[Sequence[int]]]
"""A function from texts to the ids of the best hypothesis of each, without eos."""
Logits = Callable[[str, Sequence[int]], Tensor]
"""A function from a text and T - 1 target ids without eos to the logits (T, V) of these ids and eos, in float32.

V: the number of symbols. If one side has more columns, the additional ones are not compared."""


@dataclass(frozen=True)
class Comparison:
    """The result of comparing two models on the same texts."""

    program: str
    """The program that runs the exported model, such as ``transformers 5.23.0``."""
    texts: int
    """Number of texts."""
    equal: int
    """Number of hypotheses that are equal token by token."""
    largest_difference: float | None
    """Largest difference of logits along the original's hypotheses; None if the program does not return logits."""
    differing: Sequence[str] = ()
    """The first texts whose hypotheses differ."""
    misread: Sequence[str] = ()
    """The texts that the exported tokenizer gives other ids."""

    def problems(self, *, is_exact: bool) -> list[str]:
        """Return how the exported model differs from the original.

        Args:
            is_exact: the weights are the original's; rounded ones give other logits, and now and then other hypotheses.
        """
        found = [f"the exported tokenizer reads {text!a} differently" for text in self.misread[:SHOWN]]
        if is_exact and self.equal < self.texts:
            found.append(f"{self.texts - self.equal:,} of {self.texts:,} hypotheses differ")
        # NaN is no number that is small enough.
        if is_exact and self.largest_difference is not None and not self.largest_difference <= CLOSE:
            found.append(f"logits differ by {self.largest_difference:.1e}, but may differ by {CLOSE:.0e}")
        return found

    def __str__(self) -> str:
        """Return a sentence for a terminal."""
        told = f"{self.program}: {self.equal:,} of {self.texts:,} hypotheses are equal"
        return told if self.largest_difference is None else f"{told}, logits within {self.largest_difference:.1e}"


def read_texts(path: Path | None) -> Sequence[str]:
    """Return the texts of the file of ``--verify``, one per line, or the built-in ones.

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
    misread: Sequence[str] = (),
) -> Comparison:
    """Generate with both models, and compare the hypotheses, and the logits along the original's hypotheses.

    Args:
        program: the program that runs the exported model, with its version.
        texts: the texts to generate from.
        ours: the search of the original.
        theirs: the search of the exported model.
        our_logits: the logits of the original; None: do not compare logits.
        their_logits: the logits of the exported model; None if its program does not return them.
        misread: the texts that the exported tokenizer gives other ids.
    """
    our_hypotheses = [list(map(int, ids)) for ids in ours(texts)]
    their_hypotheses = [list(map(int, ids)) for ids in theirs(texts)]
    pairs = list(zip(texts, our_hypotheses, their_hypotheses, strict=True))
    differing = [text for text, our, their in pairs if our != their]
    largest = None
    if our_logits is not None and their_logits is not None:
        differences = [
            _difference(our_logits(text, ids), their_logits(text, ids))
            for text, ids, _ in bar(pairs, "compare logits", " texts")
        ]
        largest = math.nan if any(map(math.isnan, differences)) else max(differences, default=0.0)
    return Comparison(program, len(texts), len(texts) - len(differing), largest, differing[:SHOWN], list(misread))


def write_comparison(folder: Path, comparison: Comparison, source_bytes: int) -> None:
    """Append a comparison and the sizes of both models to the ``README.md`` of a folder.

    Args:
        folder: the exported model, with its README.
        comparison: the result of the comparison.
        source_bytes: size of the original's weights.
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
    if comparison.misread:
        lines += ["The exported tokenizer gives other ids to", ""]
        lines += [*(f"* `{text[:200]!a}`" for text in comparison.misread[:SHOWN]), ""]
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
