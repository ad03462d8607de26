"""From windows of sources to their hypotheses: sorted by length, in batches."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from fairseq.data.data_utils import collate_tokens
from torch import Tensor

from s2sft_fairseq.generation.not_a_number import NotANumberError
from s2sft_fairseq.objectives.encoder_decoder_form import EncoderDecoderForm
from s2sft_fairseq.objectives.sequence_form import SequenceForm
from s2sft_fairseq.text_generation.raw_text import Window

PlanBatches = Callable[[np.ndarray], list[np.ndarray]]


class Hypothesis(NamedTuple):
    """What the search gives, as plain numbers."""

    tokens: list[int]
    """Ids, eos among them."""
    score: float
    """Summed log-probability, normalised by length; natural logarithm, as are the following."""
    positional_scores: list[float]
    """Log-probability of each token."""


class TextGenerator:
    """Generates for one window after another and counts what it did."""

    def __init__(
        self,
        generate: Callable[[dict[str, Any]], list[list[dict[str, Any]]]],
        form: SequenceForm | EncoderDecoderForm,
        plan_batches: PlanBatches,
        *,
        nbest: int = 1,
        seed: int = 1,
        device: torch.device | str = "cpu",
    ) -> None:
        """Take a generator.

        Args:
            generate: from a batch, as fairseq's generators take it, to the hypotheses of each sentence.
            form: the layout of the sources.
            plan_batches: from the lengths of laid-out sources to the indices of each batch.
            nbest: hypotheses to keep of each sentence.
            seed: what is drawn in a window depends on this and on the number of its first line alone, so that a run
                that was stopped and goes on draws the same.
            device: where the batches are needed.
        """
        self.generate, self.form, self.plan_batches = generate, form, plan_batches
        self.nbest, self.seed, self.device = nbest, seed, device
        self.sentences = self.tokens = self.cut_sources = 0

    def __call__(self, window: Window, report: Callable[[int], object] = lambda done: None) -> list[list[Hypothesis]]:
        """Return the best hypotheses of each source of a window, in its order.

        Args:
            window: the sources.
            report: called with the number of sentences of each batch that is done.

        Raises:
            UserError: if the model gives NaN for a source, naming its line.
        """
        torch.manual_seed(int(np.random.SeedSequence((self.seed, window.first)).generate_state(1)[0]))
        room = self.form.max_source - self.form.source_specials
        self.cut_sources += sum(len(source) > room for source in window.sources)
        rows = [torch.from_numpy(self.form.source(source)) for source in window.sources]
        results: list[list[Hypothesis]] = [[] for _ in rows]
        for indices in self.plan_batches(np.array([len(row) for row in rows])):
            sample = self._sample([rows[index] for index in indices])
            try:
                batch = self.generate(sample)
            except NotANumberError as error:
                raise error.at(f"line {window.first + int(indices[error.sentence]) + 1} of the input") from None
            for index, found in zip(indices, batch, strict=True):
                results[index] = list(map(_plain, found[: self.nbest]))
                self.tokens += len(results[index][0].tokens) if results[index] else 0
            self.sentences += len(indices)
            report(len(indices))
        return results

    def _sample(self, rows: list[Tensor]) -> dict[str, Any]:
        """Return a batch: ``src_tokens`` (N, S), padded on the right, and ``src_lengths`` (N,)."""
        source = collate_tokens(rows, self.form.pad).to(self.device)
        lengths = torch.tensor([len(row) for row in rows], device=self.device)
        return {"net_input": {"src_tokens": source, "src_lengths": lengths}, "target": None}

    def summary(self) -> Iterator[str]:
        """Yield what a user should know of the sources, in sentences."""
        if self.cut_sources:
            yield (
                f"{self.cut_sources:,} of {self.sentences:,} sources are cut to {self.form.max_source} positions "
                "(--max-source-positions)"
            )


def _plain(hypothesis: dict[str, Any]) -> Hypothesis:
    return Hypothesis(
        hypothesis["tokens"].tolist(), float(hypothesis["score"]), hypothesis["positional_scores"].tolist()
    )
