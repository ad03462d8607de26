"""The fine-tuning methods by name, as the task needs to know them."""

from functools import partial
from typing import NamedTuple

import numpy as np

from s2sft_fairseq.objectives.corruption import NO_CORRUPTION
from s2sft_fairseq.objectives.draws import Draws
from s2sft_fairseq.objectives.finetuning import Objective, SpanSearch, causal, masked, pseudo_masked
from s2sft_fairseq.objectives.infilling import infilling
from s2sft_fairseq.objectives.packing import PackedExamples
from s2sft_fairseq.objectives.ragged import Ragged
from s2sft_fairseq.objectives.sequence_form import SequenceForm


class Flow(NamedTuple):
    """The labels of one block, whose loss is a term of the whole."""

    name: str
    block: int
    """Number of the block, from 0."""
    weight: float = 1.0
    """Of its loss in the whole."""


class Method(NamedTuple):
    """A fine-tuning method."""

    pack: Objective
    flows: tuple[Flow, ...]
    """What is predicted, in order; every flow has a label for each token of a target, or none."""
    positions_per_target: int
    """Positions of the packed sequence that one target token takes."""
    shifted: bool = False
    """The next token is read at the last one (causal), not at a placeholder."""
    own_start: bool = False
    """The content of a target begins with a ``[CLS]`` of its own."""

    def with_spans(self, spans: SpanSearch, word_weight: float | None = None) -> "Method":
        """Return the method with targets that are predicted span by span too.

        Args:
            spans: finds the spans.
            word_weight: weight of the word flow where there are two, the lambda of ERNIE-GEN's equation 7; None: 0.5.
        """
        pack = partial(self.pack, spans=spans)
        if self.pack is not infilling:
            return self._replace(pack=pack)
        (word,) = self.flows
        word_weight = 0.5 if word_weight is None else word_weight
        flows = (word._replace(weight=word_weight), Flow("span", word.block + 1, 1 - word_weight))
        return self._replace(pack=pack, flows=flows, positions_per_target=self.positions_per_target + 1)


METHODS: dict[str, Method] = {
    "causal": Method(causal, (Flow("word", 1),), positions_per_target=1, shifted=True),
    "masked": Method(masked, (Flow("word", 1),), positions_per_target=1),
    "pseudo_masked": Method(pseudo_masked, (Flow("word", 2),), positions_per_target=2),
    "infilling": Method(infilling, (Flow("word", 2),), positions_per_target=2, own_start=True),
}
SPAN_METHODS = ("pseudo_masked", "infilling")
"""Those that can predict span by span."""


def reference(source: Ragged, target: Ragged, form: SequenceForm) -> PackedExamples:
    """Return the pass that gives each target token the probability that decoding gives it: nothing is corrupted.

    Masked and pseudo-masked models decode alike, token after token at a placeholder (s2s-ft, section 2.4).

    Args:
        source: laid-out sources.
        target: laid-out targets.
        form: the layout that the model was trained with.
    """
    objective = causal if form.shifted else infilling if form.own_start else pseudo_masked
    return objective(source, target, form, NO_CORRUPTION, Draws(0, 0, np.arange(len(source.lengths))))
