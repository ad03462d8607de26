"""Decoding in blocks: some placeholders of a block get their tokens in each pass, until the block is full.

A pass reads what was written in the last block, once it is full, and a block of placeholders behind it. Every token
that is sure enough is kept, and the surest of them in any case; the next pass sees them in the block. The keys and
values of a block stay when it is content. Sentences of a batch are at different places of their text and their block.

The field has the rule of fixing what exceeds a threshold from Fast-dLLM (Wu et al., 2025, section 3.3).
"""

import torch
from torch import Tensor

from s2sft_fairseq.inference.growing_search import GrowingSearch
from s2sft_fairseq.inference.ngram_blocking import MINUS_INFINITY, forbid_repeats_at
from s2sft_fairseq.inference.rules import draw_tokens


class BlockSearch(GrowingSearch):
    """The search of one batch. N: sentences, B: tokens of a block, T: tokens so far, V: vocabulary."""

    def begin(self, source: Tensor) -> None:
        """See :meth:`Search.begin`."""
        super().begin(source)
        length = min(self.options.decode_blocks, self.form.max_target)
        self.block = source.new_full((len(source), length), self.form.placeholder)
        """The tokens of the block of each sentence, the placeholder where there is none yet (N, B)."""
        self.scores = torch.zeros(self.block.shape, device=source.device)
        """Their log-probabilities in the pass that chose them."""
        self.passes = torch.zeros_like(self.rules.max_len)
        """Passes over the block of each sentence (N,)."""
        self.revised = torch.zeros_like(self.block, dtype=torch.bool)
        """Which tokens were taken back already: each is once at most."""
        self._open(torch.ones_like(self.done))

    def grow(self) -> None:
        """Fix the tokens that are sure enough, and add blocks that are full; see :meth:`Search.grow`."""
        room = self.form.max_target - self.lengths
        log_probs = self.next_log_probs([decoder.fill(self.block, room) for decoder in self.decoders])
        self._forbid(log_probs)
        self._revise(log_probs)
        possible = self._fix(log_probs)
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
        """Begin a block of the sentences that are chosen (N,). Behind the longest text there is [SEP] at once."""
        chosen = sentences.unsqueeze(1)
        beyond = self._places() > self.rules.max_len.unsqueeze(1)
        fresh = torch.where(beyond, self.form.sep, self.form.placeholder)
        self.block = torch.where(chosen, fresh, self.block)
        self.revised &= ~chosen
        self.passes.masked_fill_(sentences, 0)

    def _places(self) -> Tensor:
        """Return the number of tokens in front of each one of the block (N, B)."""
        return self.lengths.unsqueeze(1) + torch.arange(self.block.size(1), device=self.lengths.device)

    def _forbid(self, log_probs: Tensor) -> None:
        """Set the log-probabilities (N, B, V) of what must not stand in a place of the block to -inf, in place."""
        self.forced = torch.zeros_like(self.revised)
        size, text = self.options.no_repeat_ngram_size, torch.cat([self.tokens, self.block], dim=1)
        for place in range(self.block.size(1)):
            lengths = self.lengths + place
            history = text[:, : self.tokens.size(1) + place]  # n-grams with a placeholder are left alone
            self.rules.apply(log_probs[:, place : place + 1], history.unsqueeze(1), lengths)
            required = self.rules.forced(history.size(1), lengths)
            if required is not None:
                self.forced[:, place] = required[1]
            if size:
                row = log_probs[:, place]
                plain = row.clone()
                gap = torch.full_like(lengths, history.size(1))
                forbid_repeats_at(row, text, gap, size, self.rules.never_blocked)
                row.copy_(torch.where(self.forced[:, place, None], plain, row))

    def _revise(self, log_probs: Tensor) -> None:
        """Take back tokens of the block that have become improbable, now that others are known."""
        if self.options.revise <= 0:
            return
        now = log_probs.gather(2, self.block.unsqueeze(2)).squeeze(2)
        fixed = (self.block != self.form.placeholder) & (self.block != self.form.sep) & ~self.forced & ~self.revised
        doubtful = fixed & (now.exp() < self.options.revise)
        self.revised |= doubtful
        self.block = self.block.masked_fill(doubtful, self.form.placeholder)

    def _fix(self, log_probs: Tensor) -> Tensor:
        """Fix tokens of the block, and return which sentences can go on (N,): for others every token is forbidden."""
        size, limit = self.options.no_repeat_ngram_size, self.options.max_passes
        tokens, scores = draw_tokens(log_probs, self.options)
        is_open = self.block == self.form.placeholder
        open_count = is_open.sum(dim=1)
        least = torch.ones_like(open_count)
        if limit:  # what is left is spread evenly over the passes that are left
            least = -(-open_count // (limit - self.passes).clamp(min=1))
        # Forced tokens first, then the surest. (N, B)
        order = scores.masked_fill(self.forced, 0.0).masked_fill(~is_open, MINUS_INFINITY).argsort(1, descending=True)
        sure = self.forced | (scores.exp() >= self.options.confidence)
        sentence = torch.arange(len(order), device=order.device)
        possible = torch.ones_like(self.done)
        for rank, place in enumerate(order.unbind(dim=1)):
            wanted = is_open[sentence, place] & (sure[sentence, place] | (rank < least))
            if not bool(wanted.any()):
                break
            token, score = tokens[sentence, place], scores[sentence, place]
            if size:
                row = log_probs[sentence, place]
                text = torch.cat([self.tokens, self.block], dim=1)
                forbid_repeats_at(row, text, self.tokens.size(1) + place, size, self.rules.never_blocked)
                other, other_score = draw_tokens(row, self.options)
                # Another token than the one that was sure is kept only where it has to be.
                forbidden = row.gather(1, token.unsqueeze(1)).squeeze(1) == MINUS_INFINITY
                repeats = forbidden & ~self.forced[sentence, place]
                token, score = torch.where(repeats, other, token), torch.where(repeats, other_score, score)
                wanted &= ~repeats | (rank < least)
            possible &= ~(wanted & (score == MINUS_INFINITY))
            self._set(wanted, place, token, score)
        self.passes += 1
        return possible

    def _set(self, wanted: Tensor, place: Tensor, token: Tensor, score: Tensor) -> None:
        """Fix one token of each sentence that is wanted (N,). What stands behind a [SEP] is [SEP] too."""
        is_place = torch.arange(self.block.size(1), device=place.device) == place.unsqueeze(1)
        chosen = is_place & wanted.unsqueeze(1)
        self.block = torch.where(chosen, token.unsqueeze(1), self.block)
        self.scores = torch.where(chosen, score.unsqueeze(1), self.scores)
        behind = (self.block == self.form.sep).cumsum(dim=1) > 0
        self.block = self.block.masked_fill(behind, self.form.sep)

    def keep_sentences(self, left: Tensor) -> None:
        """See :meth:`Search.keep_sentences`."""
        super().keep_sentences(left)
        left = self._uploaded(left)
        self.block, self.scores, self.revised = self.block[left], self.scores[left], self.revised[left]
        self.passes = self.passes[left]
