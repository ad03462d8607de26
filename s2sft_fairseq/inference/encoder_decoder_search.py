"""fairseq's search of encoder-decoders, with other rules for when a sentence is done and for random samples."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from fairseq.search import Sampling
from fairseq.sequence_generator import SequenceGenerator
from torch import Tensor
from torch.nn import Module

from s2sft_fairseq.inference.draws import SampleDraws
from s2sft_fairseq.inference.ngram_blocking import forbid_repeats
from s2sft_fairseq.inference.options import SearchOptions
from s2sft_fairseq.inference.rules import Candidates, sampled_candidates

Hypotheses = list[dict[str, Tensor]]


class EncoderDecoderSearch(SequenceGenerator):
    """Keeps the best ended hypotheses, where fairseq keeps the first, and continues while open ones may be better.

    See `early_stop`. N: sentences still in the search, K: hypotheses of each, C: candidates.
    """

    candidates: tuple[Tensor, Tensor, Tensor]
    """Scores, tokens and origins of the candidates of the latest step (N, C)."""

    def __init__(self, *args: Any, nbest: int, exact: bool, **options: Any) -> None:
        """Begin as fairseq does.

        Args:
            args: models and dictionary.
            nbest: number of best hypotheses to return for each sentence.
            exact: stop when no open hypothesis can be among them; otherwise only at the maximum length.
            options: options of fairseq's generator.
        """
        super().__init__(*args, **options)
        self.nbest = nbest
        # The bound holds only if the summed scores never rise.
        falling = self.unk_penalty >= 0 and (self.lm_model is None or self.lm_weight >= 0)
        self.exact = exact and falling
        # Disable fairseq's assertion that all sentences are done at the maximum length: the last hypotheses may have
        # ended before.
        self.search.stop_on_max_len = True
        step = self.search.step

        def remembered_step(*args: Any) -> tuple[Tensor, Tensor, Tensor]:
            self.candidates = step(*args)
            return self.candidates

        self.search.step = remembered_step

    def finalize_hypos(
        self,
        step: int,
        bbsz_idx: Tensor,
        eos_scores: Tensor,
        tokens: Tensor,
        scores: Tensor,
        finalized: list[Hypotheses],
        finished: list[bool],
        *others: Any,
    ) -> list[int]:
        """Add the hypotheses that have ended, and return which of the N sentences are done now.

        The arguments are fairseq's. ``finalized``, the ended hypotheses of each sentence of the batch, and
        ``finished``, whether each sentence is done, change in place.
        """
        left = [sentence for sentence, done in enumerate(finished) if not done]
        before = {sentence: finalized[sentence] for sentence in left}
        for sentence in left:
            finalized[sentence] = []  # fairseq adds no hypothesis to a full list
        super().finalize_hypos(step, bbsz_idx, eos_scores, tokens, scores, finalized, finished, *others)
        bounds = self._bounds(step, max_len=others[-1])
        done = []
        for row, sentence in enumerate(left):
            found = sorted(before[sentence] + finalized[sentence], key=lambda h: float(h["score"]), reverse=True)
            finalized[sentence] = found[: self.nbest]
            if len(found) >= self.nbest and float(found[self.nbest - 1]["score"]) > bounds[row]:
                finished[sentence] = True
                done.append(row)
        return done

    def is_finished(self, *_: Any) -> bool:
        """Return False: `finalize_hypos` decides, because it knows the scores."""
        return False

    def _bounds(self, step: int, max_len: int) -> Sequence[float]:
        """Return the highest score that an open hypothesis of each of the N sentences may still reach."""
        scores, tokens, _ = self.candidates
        if not self.exact:
            return [torch.inf] * len(scores)
        highest = scores.masked_fill(tokens == self.eos, -torch.inf).max(dim=1).values
        # At best a hypothesis keeps its sum, and ends one token later or at the maximum length: see `BeamSearch`.
        if self.normalize_scores:
            highest = highest / max(length**self.len_penalty for length in (step + 2, max_len + 1))
        bounds: list[float] = highest.tolist()
        return bounds


class RepeatBlocker(Module):
    """Forbids repeated n-grams. fairseq's own, in whose place this is, forbids nothing with n = 1."""

    def __init__(self, size: int) -> None:
        """Take n."""
        super().__init__()
        self.size = size

    def forward(self, tokens: Tensor, lprobs: Tensor, bsz: int, beam_size: int, step: int) -> Tensor:
        """Forbid tokens in place.

        Args:
            tokens: the start symbol and the tokens so far (N * K, T).
            lprobs: log-probabilities of the next token (N * K, V).
            bsz: not used.
            beam_size: not used.
            step: number of tokens so far.
        """
        forbid_repeats(lprobs, tokens[:, 1 : step + 1], self.size, tokens.new_empty(0))
        return lprobs


class SeededSampling(Sampling):
    """fairseq's sampling, with random numbers that depend on the source and not on its batch."""

    def __init__(self, dictionary: Any, options: SearchOptions) -> None:
        """Take fairseq's dictionary, and the options of the samples."""
        super().__init__(dictionary, options.sampling_topk, options.sampling_topp)
        self.options = options

    def step(
        self,
        step: int,
        lprobs: Tensor,
        scores: Tensor,
        prev_output_tokens: Tensor | None = None,
        original_batch_idxs: Tensor | None = None,
    ) -> Candidates:
        """Draw a token for each hypothesis.

        Args:
            step: number of tokens before this one.
            lprobs: log-probabilities (N, K, V).
            scores: summed log-probabilities after each step so far (N, K, T).
            prev_output_tokens: not used.
            original_batch_idxs: the number of each source, ``id`` in fairseq's batch (N,).

        Returns:
            Summed log-probabilities, tokens and continued hypotheses (N, K).
        """
        count = len(lprobs)
        numbers = np.arange(count) if original_batch_idxs is None else original_batch_idxs.cpu().numpy()
        draws = SampleDraws(self.options.seed, numbers)
        keys = draws.keys(np.arange(count)[:, np.newaxis], step, np.arange(self.options.beam))
        if step == 0:  # all hypotheses are empty
            lprobs, before = lprobs[:, :1], lprobs.new_zeros(len(lprobs), 1)
        else:
            before = scores[:, :, step - 1]
        return sampled_candidates(lprobs, before, self.options, keys)
