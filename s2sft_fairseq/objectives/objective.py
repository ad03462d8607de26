"""The fine-tuning objectives. Each has a record of everything in which it differs from the others.

``--finetune-method`` takes their names. To add one, write its function and its record; a plugin of your own registers
it with `register_objective`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.objectives.blocks import Blocks, blocks
from s2sft_fairseq.objectives.ernie_gen import infilling
from s2sft_fairseq.objectives.finetuning import (
    NO_CORRUPTION,
    Corruption,
    Pack,
    SpanSearch,
    causal,
    masked,
    pseudo_masked,
)
from s2sft_fairseq.objectives.packing import PackedExamples
from s2sft_fairseq.objectives.ragged import Draws, Ragged
from s2sft_fairseq.objectives.sequence_form import SequenceForm, Start


class Flow(NamedTuple):
    """The labels of one section. Its loss is a term of the total loss."""

    name: str
    section: int
    """Index of the section, from 0."""
    weight: float = 1.0
    """Weight of its loss in the total loss."""


@dataclass(frozen=True, kw_only=True)
class Objective:
    """A fine-tuning objective."""

    pack: Pack
    """Maps laid-out sources and targets to the sections to train on."""
    decoded_as: Pack
    """Maps laid-out sources and targets to sections in which each prediction sees what it sees in decoding."""
    flows: tuple[Flow, ...]
    """The flows of labels, in order. Each has one label for every token of a target, except that of sources."""
    positions_per_target: int
    """Positions of the packed sequence that one target token takes; see also `target_positions`."""
    corruption: Mapping[str, Corruption]
    """The presets of ``--corruption``."""
    options: Mapping[str, Any]
    """Options that this objective reads and others may not, each with the value that disables it."""
    starts_with: Start = None
    """The symbol that the content of a target begins with; see `SequenceForm`."""
    placeholder: str | None = None
    """The placeholder, if the dictionary has this symbol; otherwise the mask symbol is the placeholder."""
    learns_in_place: bool = False
    """Whether only corrupted tokens are predicted, so that held-out targets must be corrupted, too."""
    takes_spans: bool = False
    """Whether targets can be predicted span by span."""
    span_flow: str | None = None
    """Name of the flow that spans add; None: spans change what the placeholders of the only flow see."""
    cut: Blocks | None = None
    """How targets are cut into blocks; None: they are not."""

    @property
    def own_start(self) -> bool:
        """Whether the content of a target begins with its own start symbol, which takes one more position."""
        return self.starts_with == "cls"

    def with_spans(self, spans: SpanSearch, word_weight: float | None = None) -> "Objective":
        """Return the objective with targets that are predicted span by span.

        Args:
            spans: finds the spans.
            word_weight: weight of the word flow if there is also a span flow, lambda in ERNIE-GEN's equation 7;
                None: 0.5.
        """
        pack = partial(self.pack, spans=spans)
        if self.span_flow is None:
            return replace(self, pack=pack)
        (word,) = self.flows
        word_weight = 0.5 if word_weight is None else word_weight
        flows = (word._replace(weight=word_weight), Flow(self.span_flow, word.section + 1, 1 - word_weight))
        return replace(self, pack=pack, flows=flows, positions_per_target=self.positions_per_target + 1)

    def with_blocks(self, cut: Blocks) -> "Objective":
        """Return the objective with targets that are cut into blocks in this way."""
        (word,) = self.flows
        flows = (word._replace(weight=cut.word_weight), Flow("block", word.section + 1, 1 - cut.word_weight))
        return replace(self, pack=partial(blocks, cut=cut), cut=cut, flows=flows if cut.word_weight else self.flows)

    def with_source_loss(self, weight: float) -> "Objective":
        """Return causal fine-tuning in which source tokens are predicted too, with this weight of a label."""
        pack = partial(self.pack, predicts_sources=True)
        return replace(self, pack=pack, flows=(*self.flows, Flow("source", 0, weight)))

    def target_positions(self, lengths: np.ndarray, max_target: int) -> np.ndarray:
        """Return the most packed positions that targets take, from their laid-out lengths (B,)."""
        if self.cut is not None:
            return self.cut.positions(lengths, max_target)
        return self.positions_per_target * lengths

    def reference(self, source: Ragged, target: Ragged, form: SequenceForm) -> PackedExamples:
        """Return uncorrupted sections that give each target token the same probability as in decoding.

        Args:
            source: laid-out sources.
            target: laid-out targets.
            form: the layout that the model was trained with.
        """
        return self.decoded_as(source, target, form, NO_CORRUPTION, Draws(0, 0, np.arange(len(source.lengths))))

    def held_out(self, corruption: Corruption) -> Corruption:
        """Return the corruption of held-out data: sources are corrupted; targets are clean, as in decoding.

        If only corrupted tokens are predicted, targets are still masked, but get no noise.
        """
        clean = replace(corruption, noise_prob=0.0, only_noised=False)
        return clean if self.learns_in_place else replace(clean, target_mask_prob=0.0)


# In all objectives, the s2s-ft program corrupts half of the target by the 80/10/10 rule, and its pseudo tokens, too.
_PROGRAM = Corruption(target_mask_prob=0.5, random_prob=0.1, keep_prob=0.1)
# In the paper, corrupted tokens become [M], in 40 to 70 % of the target, tuned for each task (Appendix A).
_HALF_MASKED = replace(NO_CORRUPTION, target_mask_prob=0.5)
_MASKING = {"target_mask_prob": 0, "max_masked_tokens": 0}
_NOISE = {"noise_prob": 0, "noise_symbol": None}

OBJECTIVES: dict[str, Objective] = {
    "causal": Objective(
        pack=causal,
        decoded_as=causal,
        flows=(Flow("word", 1),),
        positions_per_target=1,
        starts_with="sep",
        # In section 2.1 of the paper, nothing is corrupted.
        corruption={"paper": NO_CORRUPTION, "original": _PROGRAM},
        options={**_MASKING, **_NOISE, "source_loss_weight": 0},
    ),
    "masked": Objective(
        pack=masked,
        # Decoding appends an [M] in each step, as for pseudo-masked models (section 2.4).
        decoded_as=pseudo_masked,
        flows=(Flow("word", 1),),
        positions_per_target=1,
        learns_in_place=True,
        corruption={"paper": _HALF_MASKED, "original": replace(_PROGRAM, exact_count=True)},
        options=_MASKING,
    ),
    "pseudo_masked": Objective(
        pack=pseudo_masked,
        decoded_as=pseudo_masked,
        flows=(Flow("word", 2),),
        positions_per_target=2,
        # All tokens are predicted; corrupted tokens are hidden from later ones.
        corruption={"paper": _HALF_MASKED, "original": _PROGRAM},
        options=_MASKING,
        takes_spans=True,
    ),
    "infilling": Objective(
        pack=infilling,
        decoded_as=infilling,
        flows=(Flow("word", 2),),
        positions_per_target=2,
        starts_with="cls",
        placeholder="[ATTN]",
        # ERNIE-GEN uses noise in place of masks, with a probability that depends on the task.
        corruption={"paper": NO_CORRUPTION, "original": NO_CORRUPTION},
        options={**_NOISE, "loss_tokens": "all", "word_flow_weight": None},
        takes_spans=True,
        span_flow="span",
    ),
    "blocks": Objective(
        pack=partial(blocks, cut=Blocks()),
        # Decoding token by token; see `s2sft_fairseq.inference.block_search` for decoding in blocks.
        decoded_as=pseudo_masked,
        flows=(Flow("word", 2),),
        positions_per_target=2,
        # No corruption in "paper", unlike pseudo-masked fine-tuning: the blocks themselves are masked.
        corruption={"paper": NO_CORRUPTION, "original": _PROGRAM},
        options={
            **_MASKING,
            **dict.fromkeys(("block_length", "noise_schedule", "block_loss_weight", "word_flow_weight")),
        },
        cut=Blocks(),
    ),
}
CORRUPTIONS = ("original", "paper")
"""The presets of ``--corruption``: the s2s-ft program and its paper differ."""


def register_objective(name: str, objective: Objective) -> None:
    """Make an objective known as ``--finetune-method NAME``.

    Args:
        name: its name; checkpoints hold it, so that generation finds the objective.
        objective: its record.

    Raises:
        UserError: another objective has the name.
    """
    if OBJECTIVES.setdefault(name, objective) is not objective:
        raise UserError(f"there is an objective {name} already: register yours under another name")
