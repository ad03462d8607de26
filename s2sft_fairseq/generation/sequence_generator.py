"""The generator that fairseq's commands and ours call."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from s2sft_fairseq.generation.beam_search import BeamSearch
from s2sft_fairseq.generation.candidates import CandidateSelection, beam_candidates
from s2sft_fairseq.generation.drafted_search import DraftedSearch
from s2sft_fairseq.generation.drafts import PlaceholderDrafts, SourceDrafts
from s2sft_fairseq.generation.ngram_blocking import NGramBlocker
from s2sft_fairseq.generation.not_a_number import NotANumberError, named_by_id
from s2sft_fairseq.generation.out_of_memory import generate_in_halves
from s2sft_fairseq.generation.search_options import SearchOptions
from s2sft_fairseq.generation.token_rules import TokenRules
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.objectives.sequence_form import SequenceForm


class SequenceGenerator:
    """Generates for a batch, with one model or with an ensemble whose probabilities are averaged.

    N: sentences, S: source positions, P: tokens of a prefix.
    """

    def __init__(
        self,
        models: Sequence[UnilmModel],
        form: SequenceForm,
        options: SearchOptions,
        select: CandidateSelection = beam_candidates,
        ngram_blocker: NGramBlocker | None = None,
    ) -> None:
        self.models, self.form, self.options = list(models), form, options
        self.select, self.ngram_blocker = select, ngram_blocker
        self.symbols_to_strip_from_output = {form.sep, form.cls, form.pad}

    def generate(
        self,
        models: Sequence[UnilmModel],
        sample: dict[str, Any],
        prefix_tokens: Tensor | None = None,
        constraints: Tensor | None = None,
    ) -> list[list[dict[str, Any]]]:
        """Generate, as fairseq's generators do.

        Args:
            models: not used, those given at construction are.
            sample: a batch with ``src_tokens`` (N, S) in its ``net_input``: laid-out sources, padded on the right.
            prefix_tokens: what every hypothesis begins with (N, P), padded on the right.
            constraints: not supported.

        Returns:
            For each sentence its hypotheses, the best first: ``tokens`` with eos, normalised ``score`` and
            ``positional_scores``, both natural logarithms.

        Raises:
            UserError: if the models give NaN, naming the sentence, or a single sentence does not fit into memory.
        """
        for model in self.models:
            model.eval()
        try:
            return generate_in_halves(self._search, sample["net_input"]["src_tokens"], prefix_tokens, pad=self.form.pad)
        except NotANumberError as error:
            raise named_by_id(error, sample) from None

    def _search(self, source: Tensor, prefix_tokens: Tensor | None) -> list[list[dict[str, Any]]]:
        # Sentences of similar length side by side: see `similar_lengths`.
        order = (source != self.form.pad).sum(dim=1).argsort(descending=True, stable=True)
        source, prefix_tokens = source[order], None if prefix_tokens is None else prefix_tokens[order]
        with torch.inference_mode():
            rules = TokenRules(self.form, self.options, self.ngram_blocker, source, prefix_tokens)
            search = self._begin(source, rules)
            try:
                while search.step():
                    pass
            except NotANumberError as error:
                raise NotANumberError(int(order[error.sentence]), error.dtype) from None
        return [search.results[place].export() for place in order.argsort().tolist()]

    def _begin(self, source: Tensor, rules: TokenRules) -> BeamSearch | DraftedSearch:
        options = self.options
        if options.draft_placeholders:
            drafts = PlaceholderDrafts(options.draft_placeholders, options.never_generated)
        elif options.draft_source:
            drafts = SourceDrafts(options.draft_source, source, self.form.pad)
        else:
            return BeamSearch(self.models, self.form, options, rules, self.select, source)
        return DraftedSearch(self.models, self.form, options, rules, drafts, source)
