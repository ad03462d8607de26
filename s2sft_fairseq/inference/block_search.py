"""Decoding in blocks: some placeholders of a block get their tokens in each pass, until the block is full.

A pass reads the tokens of the last block, once it is full, and a block of placeholders after it. Tokens whose
probability reaches a threshold are fixed, and the most probable one in any case; the next pass sees them in the block.
When a full block is read as content, the incremental state keeps its keys and values. Sentences of a batch are at
different places of their text and their block.

The threshold rule comes from Fast-dLLM (Wu et al., 2025, section 3.3).
"""

from typing import NamedTuple

import torch
from torch import Tensor

from s2sft_fairseq.inference.growing_search import GrowingSearch
from s2sft_fairseq.inference.ngram_blocking import MINUS_INFINITY, forbid_repeats_at
from s2sft_fairseq.inference.rules import draw_tokens, next_log_probs, rows_with_nan


class _Scored(NamedTuple):
    """Places of blocks and the scores of their tokens. M: places."""

    sentence: Tensor
    """Index of the sentence of each place (M,)."""
    place: Tensor
    """Index of each place in the block (M,)."""
    log_probs: Tensor
    """Log-probabilities of the tokens (M, V)."""

    def spread(self, values: Tensor, block: Tensor) -> Tensor:
        """Return a tensor like the block (N, B), with the values (M,) at their places and 0 elsewhere."""
        return values.new_zeros(block.shape).index_put_((self.sentence, self.place), values)


class BlockSearch(GrowingSearch):
    """The search in blocks of one batch.

    N: sentences, B: tokens of a block, T: tokens so far, V: vocabulary.
    """

    def begin(self, source: Tensor) -> None:
        """See :meth:`Search.begin`."""
        super().begin(source)
        length = min(self.options.decode_blocks, self.form.max_target)
        self.block = source.new_full((len(source), length), self.form.placeholder)
        """Tokens of the block of each sentence, or the placeholder where a token is not yet fixed (N, B)."""
        self.scores = torch.zeros(self.block.shape, device=source.device)
        """Log-probabilities of these tokens in the pass that chose them (N, B)."""
        self.passes = torch.zeros_like(self.rules.max_len)
        """Number of passes over the block of each sentence (N,)."""
        self.revised = torch.zeros_like(self.block, dtype=torch.bool)
        """Places whose token was taken back (N, B); each at most once."""
        self._open(torch.ones_like(self.done))

    def grow(self) -> None:
        """Fix the tokens that are probable enough, and append full blocks; see :meth:`Search.grow`."""
        room = self.form.max_target - self.lengths
        # Scoring the vocabulary takes most of the time. Skip it for fixed tokens, unless they may be revised.
        wanted = (self.block == self.form.placeholder) | (self.options.revise > 0)
        logits = [decoder.fill(self.block, room, wanted) for decoder in self.decoders]
        sentence, place = wanted.nonzero(as_tuple=True)
        scored = _Scored(sentence, place, next_log_probs(logits, self.options.temperature))
        self.dtype = logits[0].dtype
        self.broken[sentence[rows_with_nan(scored.log_probs)]] = True
        self._forbid(scored)
        self._revise(scored)
        possible = self._fix(scored)
        full = (self.block != self.form.placeholder).all(dim=1) & possible
        # A text ends with its first [SEP].
        is_end = self.block == self.form.sep
        ended = is_end.any(dim=1)
        kept = torch.where(ended, is_end.int().argmax(dim=1) + 1, self.block.size(1))
        grown = kept.masked_fill(~full | self.done, 0)
        block, scores = self.block.clone(), self.scores.clone()
        self._append(block, scores, grown)
        for decoder in self.decoders:
            decoder.extend(block[:, : int(grown.max())], grown)
        self.done |= ~possible | (full & ended)
        self._open(full)

    def _open(self, sentences: Tensor) -> None:
        """Begin a block in the chosen sentences (N,). Places beyond the maximum length are [SEP] at once."""
        chosen = sentences.unsqueeze(1)
        beyond = self._places() > self.rules.max_len.unsqueeze(1)
        fresh = torch.where(beyond, self.form.sep, self.form.placeholder)
        self.block = torch.where(chosen, fresh, self.block)
        self.revised &= ~chosen
        self.passes.masked_fill_(sentences, 0)

    def _places(self) -> Tensor:
        """Return the number of tokens before each place of the block (N, B)."""
        return self.lengths.unsqueeze(1) + torch.arange(self.block.size(1), device=self.lengths.device)

    def _forbid(self, scored: _Scored) -> None:
        """Set the log-probabilities of tokens that a place must not have to -inf, in place."""
        text, rules = torch.cat([self.tokens, self.block], dim=1)[scored.sentence], self.rules.of(scored.sentence)
        lengths, gap = self.lengths[scored.sentence] + scored.place, self.tokens.size(1) + scored.place
        rules.apply(scored.log_probs.unsqueeze(1), text.unsqueeze(1), lengths, gap)
        required = rules.forced(text.size(1), lengths)
        forced = torch.zeros_like(scored.place, dtype=torch.bool) if required is None else required[1]
        self.forced = scored.spread(forced, self.block)

    def _revise(self, scored: _Scored) -> None:
        """Take back tokens of the block that have become improbable since others were fixed."""
        if self.options.revise <= 0:
            return
        now = scored.log_probs.view(*self.block.shape, -1).gather(2, self.block.unsqueeze(2)).squeeze(2)
        fixed = (self.block != self.form.placeholder) & (self.block != self.form.sep) & ~self.forced & ~self.revised
        doubtful = fixed & (now.exp() < self.options.revise)
        self.revised |= doubtful
        self.block = self.block.masked_fill(doubtful, self.form.placeholder)

    def _fix(self, scored: _Scored) -> Tensor:
        """Fix tokens of the block, and return which sentences can continue (N,): in others every token is forbidden."""
        limit = self.options.max_passes
        keys = self.draws.keys(
            self.sentences.numpy()[scored.sentence.cpu()], 2 * self.steps, scored.place.cpu().numpy()
        )
        drawn = draw_tokens(scored.log_probs, self.options, keys)
        tokens, scores = (scored.spread(each, self.block) for each in drawn)
        is_open = self.block == self.form.placeholder
        least = torch.ones_like(self.passes)
        if limit:  # spread the open places evenly over the remaining passes
            least = -(-is_open.sum(dim=1) // (limit - self.passes).clamp(min=1))
        # Forced tokens first, then by falling probability. (N, B)
        order = scores.masked_fill(self.forced, 0.0).masked_fill(~is_open, MINUS_INFINITY).argsort(1, descending=True)
        needed = order.argsort(dim=1) < least.unsqueeze(1)
        wanted = is_open & (needed | self.forced | (scores.exp() >= self.options.confidence))
        self.passes += 1
        if not self.options.no_repeat_ngram_size:
            return self._set(wanted, tokens, scores)
        possible = torch.ones_like(self.done)
        for place in order.unbind(dim=1):
            is_place = torch.arange(order.size(1), device=order.device) == place.unsqueeze(1)
            if not bool((wanted & is_place).any()):
                break
            # Fix a replacement for a repeated token only if the place must be fixed in this pass.
            repeats = self._without_repeats(scored, place, tokens, scores) & is_place
            possible &= self._set(wanted & is_place & (needed | ~repeats), tokens, scores)
        return possible

    def _without_repeats(self, scored: _Scored, place: Tensor, tokens: Tensor, scores: Tensor) -> Tensor:
        """Replace the token for a place (N,) of each sentence if it would now repeat an n-gram.

        ``tokens`` and ``scores`` (N, B) change in place.

        Returns:
            Which sentences got another token (N, 1).
        """
        row = scored.spread(torch.arange(len(scored.place), device=place.device), self.block)
        log_probs = scored.log_probs[row.gather(1, place.unsqueeze(1)).squeeze(1)]
        text, gap = torch.cat([self.tokens, self.block], dim=1), self.tokens.size(1) + place
        forbid_repeats_at(log_probs, text, gap, self.options.no_repeat_ngram_size, self.rules.never_blocked)
        at = place.unsqueeze(1)
        forbidden = log_probs.gather(1, tokens.gather(1, at)) == MINUS_INFINITY
        repeats = forbidden & ~self.forced.gather(1, at)
        keys = self.draws.keys(self.sentences.numpy(), 2 * self.steps + 1, place.cpu().numpy())
        others = (each.unsqueeze(1) for each in draw_tokens(log_probs, self.options, keys))
        for mine, other in zip((tokens, scores), others, strict=True):
            mine.scatter_(1, at, torch.where(repeats, other, mine.gather(1, at)))
        return repeats

    def _set(self, wanted: Tensor, tokens: Tensor, scores: Tensor) -> Tensor:
        """Fix the tokens that are wanted; all three arguments are (N, B). All tokens after a [SEP] become [SEP].

        Returns:
            Which sentences can continue (N,): in the others a forbidden token was fixed.
        """
        wanted = wanted & (self.block == self.form.placeholder)
        block = torch.where(wanted, tokens, self.block)
        self.scores = torch.where(wanted, scores, self.scores)
        is_end = block == self.form.sep
        self.block = block.masked_fill(is_end.cumsum(dim=1) > 0, self.form.sep)
        behind = is_end.cumsum(dim=1) > is_end.int()
        return ~(wanted & ~behind & (scores == MINUS_INFINITY)).any(dim=1)

    def keep_sentences(self, left: Tensor) -> None:
        """See :meth:`Search.keep_sentences`."""
        super().keep_sentences(left)
        left = self._uploaded(left)
        self.block, self.scores, self.revised = self.block[left], self.scores[left], self.revised[left]
        self.passes = self.passes[left]
