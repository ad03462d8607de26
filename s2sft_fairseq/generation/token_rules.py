"""What may come next: forbidden tokens, forced ones, and the length of a hypothesis."""

import torch
from torch import Tensor

from s2sft_fairseq.generation.ngram_blocking import NGramBlocker
from s2sft_fairseq.generation.search_options import SearchOptions
from s2sft_fairseq.objectives.sequence_form import SequenceForm

MINUS_INFINITY = float("-inf")


class TokenRules:
    """The rules for a batch of sentences.

    N: sentences, K: hypotheses of each, T: tokens so far, V: vocabulary.
    """

    def __init__(
        self,
        form: SequenceForm,
        options: SearchOptions,
        ngram_blocker: NGramBlocker | None,
        source: Tensor,
        prefix_tokens: Tensor | None,
    ) -> None:
        """Make the rules for laid-out sources (N, S), with what their hypotheses must begin with (N, P)."""
        self.form, self.options, self.ngram_blocker = form, options, ngram_blocker
        self.prefix_tokens = prefix_tokens
        self.never_generated = torch.tensor(options.never_generated, dtype=torch.int64, device=source.device)
        lengths = (source != form.pad).sum(dim=1)
        limit = (options.max_len_a * lengths + options.max_len_b).long()
        # Nothing is generated from nothing, such as a source whose fields are all empty.
        nothing = torch.tensor([form.pad, form.cls, form.sep], device=source.device)
        self.empty = torch.isin(source, nothing).all(dim=1)
        # Most tokens before eos (N,).
        self.max_len = limit.clamp(max=form.max_target - 1).masked_fill(self.empty, 0)
        self.shortest_limit, self.longest_limit = int(self.max_len.min()), int(self.max_len.max())

    def apply(self, log_probs: Tensor, tokens: Tensor, lengths: Tensor) -> None:
        """Set the log-probabilities of what must not come next to -inf, in place.

        What is forced keeps its log-probability, also where it would be forbidden.

        Shape:
            log_probs (N, K, V), tokens (N, K, T), their number (N,) in each hypothesis, fewer than T where it is padded
            on the left.
        """
        forced, where = self._forced(tokens.size(2), lengths)
        if where is not None:
            # (N,) -> (N, K, 1)
            column = forced[:, None, None].expand(-1, log_probs.size(1), 1)
            plain = log_probs.gather(2, column)
        log_probs.index_fill_(-1, self.never_generated, MINUS_INFINITY)
        if self.options.min_len:
            log_probs[..., self.form.sep].masked_fill_((lengths < self.options.min_len).unsqueeze(1), MINUS_INFINITY)
        if self.ngram_blocker is not None:
            self.ngram_blocker.forbid(tokens, log_probs)
        if where is not None:
            where = where[:, None, None]
            log_probs.masked_fill_(where, MINUS_INFINITY)
            log_probs.scatter_(2, column, torch.where(where, plain, log_probs.gather(2, column)))

    def _forced(self, longest: int, lengths: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Return tokens (N,), and where they must come next (N,): those of the prefix, or eos at the maximum length."""
        if self.prefix_tokens is None and longest < self.shortest_limit:
            return None, None
        # The limit counts more, so that a prefix longer than it ends there too, and that of an empty source at once.
        at_limit = self.max_len <= lengths
        if self.options.keep_unfinished:
            at_limit = at_limit & self.empty
        forced = torch.full_like(self.max_len, self.form.sep)
        if self.prefix_tokens is None:
            return forced, at_limit
        last = self.prefix_tokens.size(1) - 1
        prefix = self.prefix_tokens.gather(1, lengths.clamp(max=last).unsqueeze(1)).squeeze(1)
        prefixed = (prefix != self.form.pad) & (lengths <= last)
        return torch.where(at_limit, forced, prefix), at_limit | prefixed

    def keep_sentences(self, left: Tensor) -> None:
        """Go on with some sentences only, the indices ``left`` (n,)."""
        self.max_len, self.empty = self.max_len[left], self.empty[left]
        if self.prefix_tokens is not None:
            self.prefix_tokens = self.prefix_tokens[left]
        if len(left):
            self.shortest_limit = int(self.max_len.min())
