"""Histograms of the lengths of sources and targets, with the limits of the layout and the share that they cut."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from s2sft_fairseq import plugin  # noqa: F401  (patches fairseq, and therefore comes first)

# isort: split
from s2sft_fairseq.checkpoints.model_folder import is_model_folder, read_config
from s2sft_fairseq.checkpoints.pretrained import MODEL, PretrainedEncoder
from s2sft_fairseq.data.binarized_text import language_pairs, load_dictionary, load_split
from s2sft_fairseq.data.bounded_files import read_text
from s2sft_fairseq.data.text_files import check_parallel
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.pretrained_checkpoint import is_model_of_folder
from s2sft_fairseq.objectives.objective import OBJECTIVES
from s2sft_fairseq.objectives.sequence_form import SequenceForm
from s2sft_fairseq.plots.drawing import save, write_table
from s2sft_fairseq.tasks.layout import DEFAULTS
from s2sft_fairseq.tokenization.folder import open_tokenizer
from s2sft_fairseq.tokenization.tokenize_files import TextTokenizer

BINS = 40
"""Bars of a histogram, about."""
SHOWN = 0.999
"""Share of the texts whose bars are drawn side by side; the last bar has the longer ones too."""


class Side(NamedTuple):
    """The sources, or the targets."""

    name: str
    positions: np.ndarray
    """Positions of each laid-out text, special symbols counted, before it is cut (N,). N: texts."""
    limit: int
    """Most positions."""

    @property
    def cut(self) -> float:
        """The share of the texts that are cut."""
        return float(np.mean(self.positions > self.limit))

    def __str__(self) -> str:
        """Return a line of figures."""
        middle, most = np.percentile(self.positions, (50, 95))
        return (
            f"{len(self.positions):,} {self.name}: median {middle:.0f}, 95 % at most {most:.0f}, longest "
            f"{self.positions.max():,}; {100 * self.cut:.2f} % are cut to {self.limit}"
        )


def measure(
    data: Sequence[Path], split: str, encoder: Path | None, max_source: int | None, max_target: int | None
) -> list[Side]:
    """Return the lengths of sources and targets, and their limits.

    Args:
        data: a folder of binarized data, or a file of sources and one of targets, line by line.
        split: of binarized data.
        encoder: the tokenizer of text files. A model folder has limits as well.
        max_source: most positions of a source; None: those of `encoder`, else the default of ``s2sft train``.
        max_target: of a target.

    Raises:
        UserError: if data or tokenizer are missing, or do not belong together.
    """
    form = _form(encoder, max_source, max_target)
    sources, targets = _binarized(data[0], split) if len(data) == 1 else _tokenized(data, encoder)
    sides = [Side("sources", sources + form.source_specials, form.max_source)]
    return [*sides, *([] if targets is None else [Side("targets", targets + 1, form.max_target)])]


def _form(encoder: Path | None, max_source: int | None, max_target: int | None) -> SequenceForm:
    layout: dict[str, Any] = dict(DEFAULTS)
    if encoder is not None and not encoder.is_dir():
        raise UserError(f"--encoder must be a folder, but {encoder} is none")
    if encoder is not None and is_model_folder(encoder):
        layout |= read_config(encoder)["task_state"].get("layout", {})
    elif encoder is not None and is_model_of_folder(encoder / MODEL):
        layout |= PretrainedEncoder.open(encoder).layout
    objective = OBJECTIVES.get(layout["finetune_method"])
    if objective is None:
        raise UserError(
            f"--encoder {encoder} has the method {layout['finetune_method']!r:.40}: {', '.join(OBJECTIVES)}"
        )
    limits = (max_source or layout["max_source_positions"], max_target or layout["max_target_positions"])
    return SequenceForm(0, 0, 0, 0, 1, objective.starts_with, max_source=limits[0], max_target=limits[1])


def _binarized(folder: Path, split: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Return the tokens of each source and target, without eos."""
    if not folder.is_dir():
        raise UserError(f"DATA must be a folder of binarized data or two text files, but is {folder} alone")
    pairs = language_pairs(folder)
    if len(pairs) != 1:
        found = ", ".join(sorted("-".join(pair) for pair in pairs)) or "none"
        raise UserError(f"DATA must be a folder with one language pair, but {folder} has: {found}")
    (pair,) = pairs
    texts = load_split(folder, split, *pair, load_dictionary(folder, *pair), None, False)
    sources, targets = (None if each is None else np.asarray(each.sizes) - 1 for each in texts)
    assert sources is not None
    return sources, targets


def _tokenized(files: Sequence[Path], encoder: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the tokens of each line of two text files."""
    if encoder is None:
        raise UserError("--encoder is needed for text files: the folder of the tokenizer")
    check_parallel(files[0], files[1])
    tokenizer = TextTokenizer(open_tokenizer(encoder))
    source, target = (read_text(file).removesuffix("\n").split("\n") for file in files)
    encoded = (tokenizer.encode(source, divided=True), tokenizer.encode(target))
    sources, targets = (np.array([len(line.split()) for line in lines]) for lines in encoded)
    return sources, targets


def write_csv(sides: Sequence[Side], file: Path) -> None:
    """Write a row for each number of positions that a text has: how many texts have it, and whether they are cut."""

    def rows() -> Iterator[tuple[object, ...]]:
        for side in sides:
            for length, count in zip(*np.unique(side.positions, return_counts=True), strict=True):
                yield side.name, int(length), int(count), int(length > side.limit)

    write_table(file, ("side", "positions", "texts", "cut"), rows())


def draw(sides: Sequence[Side], file: Path) -> None:
    """Draw a histogram for each side; bars of what is cut are hatched.

    Args:
        sides: sources and targets.
        file: of the picture; its ending is the format, such as .png or .svg.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.2 * len(sides)), layout="constrained")
    for axes, side in zip(figure.subplots(len(sides), 1, squeeze=False).flatten(), sides, strict=True):
        longest = int(np.quantile(side.positions, SHOWN))
        # A limit that is far beyond all texts would leave them a corner of the picture.
        most = max(longest, side.limit if side.limit <= 2 * longest else 0) + 1
        width = -(-most // BINS)
        # The limit is an edge of bars, so that a bar is cut as a whole or not at all.
        edges = np.arange(side.limit % width - width, most + width, width) + 0.5
        counts, _ = np.histogram(side.positions.clip(max=int(edges[-1])), edges)
        is_cut = edges[:-1] > side.limit
        for chosen, style in ((~is_cut, {"color": "0.7"}), (is_cut, {"color": "white", "hatch": "////"})):
            axes.bar(edges[:-1][chosen], counts[chosen], width, align="edge", edgecolor="black", linewidth=0.6, **style)
        axes.axvline(side.limit + 0.5, color="black", linestyle="--", label=f"limit: {side.limit} positions")
        axes.set(xlabel=f"positions of {side.name}, special symbols counted", ylabel="texts", xlim=(0, edges[-1]))
        axes.set_title(str(side), fontsize=9)
        axes.legend()
    save(figure, file)
