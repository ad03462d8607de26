"""The training sequence of an example and who sees whom in it, as a picture and as numbers.

The columns come from the functions that make training examples. For an encoder-decoder, the input of the decoder
follows that of the encoder, and becomes known one token in each step: by the rule of visibility a token of the decoder
sees the encoder (cross-attention) and the decoder's input up to itself (self-attention).
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from s2sft_fairseq.data.packed_dataset import model_input
from s2sft_fairseq.modules.visibility import PackedColumns, visible
from s2sft_fairseq.objectives.blocks import WHOLE, Blocks
from s2sft_fairseq.objectives.finetuning import Corruption
from s2sft_fairseq.objectives.objective import OBJECTIVES
from s2sft_fairseq.objectives.packing import PackedBatch, PackedExamples, Section, collate
from s2sft_fairseq.objectives.pseudo_masked_lm import (
    LANGUAGE_MODELS,
    REPLACEMENT,
    BlockwiseMasking,
    pseudo_masked_lm,
)
from s2sft_fairseq.objectives.ragged import Draws, Ragged
from s2sft_fairseq.objectives.sequence_form import EncoderDecoderForm, SequenceForm, SourceFields, decoder_input
from s2sft_fairseq.objectives.span_corruption import SpanCorruption, sentinel_symbols
from s2sft_fairseq.plots.drawing import name_tokens, save, token_axes, write_table
from s2sft_fairseq.spans.vocabulary import SpanVocabulary
from s2sft_fairseq.spans.words import WordRule

SPECIAL = ("[CLS]", "[SEP]", "[PAD]")
GREYS = {"source": 0.85, "target": 0.6, "placeholder": 0.25}
"""How bright a cell is, by what its key is."""


class PackedExample(NamedTuple):
    """A packed example, in words. T: its tokens."""

    batch: PackedBatch
    """Its columns."""
    tokens: tuple[str, ...]
    """(T,)."""
    labels: tuple[str, ...]
    """What is predicted at each token, "" where nothing is (T,)."""
    sees: np.ndarray
    """Whether a query, the row, sees a key, the column (T, T)."""
    sections: tuple[str, ...]
    """The names of its sections, in order."""

    def kinds(self) -> list[str]:
        """Return what each token is, one of `GREYS`: a source is what is given, a target becomes known in a step."""
        columns = zip(self.batch.group.tolist(), self.batch.step.tolist(), strict=True)
        return ["placeholder" if group else "target" if step > 0 else "source" for group, step in columns]


class Symbols:
    """The symbols of an example and their ids."""

    def __init__(self, *symbols: str) -> None:
        """Number the symbols; the same symbol has one id."""
        self.of_id = list(dict.fromkeys(symbols))
        self._ids = {symbol: number for number, symbol in enumerate(self.of_id)}

    def ids(self, words: Sequence[str]) -> np.ndarray:
        """Return the ids of words (n,)."""
        return np.array([self._ids[word] for word in words], dtype=np.int64)

    def example(
        self, packed: PackedExamples, pad: int, sections: Sequence[str], *, causal_source: bool = False
    ) -> PackedExample:
        """Return one packed example in words.

        Args:
            packed: the example.
            pad: the label where nothing is predicted.
            sections: the names of its sections, in order.
            causal_source: whether a token of the source sees only what is before it, and itself.
        """
        batch = collate([packed])
        columns = PackedColumns(**model_input(batch))
        step, group = (columns.with_causal_context() if causal_source else columns)[3:5]
        batch = replace(batch, step=step.numpy())
        return PackedExample(
            batch,
            tuple(self.of_id[number] for number in batch.token),
            tuple("" if number == pad else self.of_id[number] for number in batch.label),
            visible(step, group, step, group).numpy(),
            tuple(sections),
        )


def pack_pair(
    method: str,
    source: Sequence[str],
    target: Sequence[str],
    *,
    cut: Blocks,
    corruption: Corruption,
    spans: Sequence[Sequence[str]] = (),
    causal_source: bool = False,
    seed: int = 1,
) -> PackedExample:
    """Pack a source and a target, in words, as the objective of that name does in training.

    Args:
        method: one of `OBJECTIVES`.
        source: its words; ``[SEP]`` stands between fields.
        target: its words.
        cut: how the target is cut into blocks, where the objective does so.
        corruption: of source and target.
        spans: words that are predicted as one span, two or three each, where the objective takes spans; none: all words
            are spans by themselves, and there is no span flow.
        causal_source: whether a token of the source sees only what is before it, and itself.
        seed: of what is drawn.
    """
    objective = OBJECTIVES[method]
    placeholder = objective.placeholder or "[M]"
    symbols = Symbols(*SPECIAL, placeholder, *source, *target)
    cls, sep, pad, of_placeholder = symbols.ids([*SPECIAL, placeholder]).tolist()
    form = SequenceForm(
        cls=cls,
        sep=sep,
        pad=pad,
        placeholder=of_placeholder,
        vocab_size=len(symbols.of_id),
        starts_with=objective.starts_with,
        max_source=len(source) + 2,
        # The last block goes on behind the end of the target, unless it is the target.
        max_target=len(target) + (1 if cut.greatest == WHOLE else cut.greatest),
    )
    if objective.cut is not None:
        objective = objective.with_blocks(cut)
    if spans:
        special = np.zeros(len(symbols.of_id), dtype=bool)
        special[[cls, sep, pad]] = True
        rule = WordRule(continues=np.zeros_like(special), special=special)
        ngrams = Ragged.of([symbols.ids(span) for span in spans])
        objective = objective.with_spans(SpanVocabulary(rule, ngrams).boundaries)
    rows = Ragged.of([form.source(symbols.ids(source))]), Ragged.of([form.target(symbols.ids(target))])
    packed = objective.pack(*rows, form, corruption, Draws(seed, 0, np.array([0])))
    flows = ("word flow", "span flow" if objective.cut is None else "blocks")
    sections = ("source", "target", *(("placeholders",) if len(packed) < 4 else flows))
    return symbols.example(packed, pad, sections, causal_source=causal_source)


def pack_text(text: Sequence[str], language_model: str, masking: BlockwiseMasking, seed: int = 1) -> PackedExample:
    """Pack a text, in words, as the pre-training of UniLMv2 does.

    Args:
        text: its words; ``[SEP]`` stands between its halves.
        language_model: one of `LANGUAGE_MODELS`.
        masking: how tokens are masked.
        seed: of what is drawn.
    """
    masks = ("[M]", "[P]")
    symbols = Symbols(*SPECIAL, *masks, *text)
    cls, sep, pad, mask, placeholder = symbols.ids([*SPECIAL, *masks]).tolist()
    form = SequenceForm(
        cls=cls,
        sep=sep,
        pad=pad,
        placeholder=placeholder,
        vocab_size=len(symbols.of_id),
        fields=SourceFields(segments=(0, 1)),
    )
    packed = pseudo_masked_lm(
        Ragged.of([symbols.ids(["[CLS]", *text, "[SEP]"])]),
        LANGUAGE_MODELS[language_model],
        masking,
        form,
        REPLACEMENT,
        Draws(seed, 0, np.array([0])),
        mask=mask,
    )
    return symbols.example(packed, pad, ("context", "originals", "placeholders"))


def corrupt_text(
    text: Sequence[str], corruption: SpanCorruption, seed: int = 1
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the source and the target, in words, that span corruption makes of a text of at least two words."""
    sentinels = sentinel_symbols(len(text))
    symbols = Symbols(*sentinels, *text)
    row = Ragged.of([symbols.ids(text)])
    sides = corruption.corrupt(row, symbols.ids(sentinels), Draws(seed, 0, np.array([0])))
    source, target = (tuple(symbols.of_id[number] for number in side.values) for side in sides)
    return source, target


def pack_encoder_decoder(source: Sequence[str], target: Sequence[str]) -> PackedExample:
    """Return the input of an encoder, that of the decoder after it, and the labels of the decoder, in words.

    Args:
        source: its words.
        target: its words.
    """
    symbols = Symbols("<pad>", "</s>", *source, *target)
    pad, eos = symbols.ids(["<pad>", "</s>"]).tolist()
    form = EncoderDecoderForm((), eos, pad, max_source=len(source) + 1, max_target=len(target) + 1)
    labels = Ragged.of([form.target(symbols.ids(target))])
    encoder = Section.of(Ragged.of([form.source(symbols.ids(source))]), first_position=0, segment=0, label=pad)
    decoder = Section.of(
        decoder_input(labels, eos), first_position=0, segment=0, step=labels.place + 1, label=labels.values
    )
    return symbols.example((encoder, decoder), pad, ("encoder", "decoder"))


def write_csv(example: PackedExample, file: Path) -> None:
    """Write a row for each token: its columns, then 1 for each token that it sees and 0 for the others."""
    batch = example.batch
    columns = (column.tolist() for column in (batch.position, batch.segment, batch.step, batch.group))
    section = (example.sections[number] for number in batch.section())
    rows = zip(example.tokens, *columns, example.labels, section, example.sees.astype(int).tolist(), strict=True)
    heading = ["token", "position", "segment", "step", "group", "label", "section", *example.tokens]
    write_table(file, heading, ([*columns, *seen] for *columns, seen in rows))


def draw(example: PackedExample, file: Path) -> None:
    """Draw the matrix: a row is a query, a column a key, and a grey cell a key that is seen.

    Args:
        example: what is drawn.
        file: of the picture; its ending is the format, such as .png or .svg.
    """
    batch, kinds, section = example.batch, example.kinds(), example.batch.section()
    figure, axes = token_axes(len(example.tokens))
    brightness = np.array([GREYS[kind] for kind in kinds])
    axes.imshow(np.where(example.sees, brightness, 1.0), cmap="gray", vmin=0, vmax=1)
    name_tokens(axes, example.tokens, batch.position.tolist(), example.labels, section)
    steps = axes.secondary_yaxis("right")
    steps.set_yticks(range(len(kinds)), batch.step.tolist(), fontsize=8)
    steps.tick_params(length=0)
    steps.set_ylabel("factorization step", fontsize=8)
    below = axes.secondary_xaxis("bottom")
    used = np.unique(section)
    middles = [float(np.flatnonzero(section == number).mean()) for number in used]
    below.set_xticks(middles, [example.sections[number] for number in used], fontsize=8)
    below.tick_params(length=0)
    below.set_xlabel("key; grey: the query sees it", fontsize=8)
    save(figure, file)
