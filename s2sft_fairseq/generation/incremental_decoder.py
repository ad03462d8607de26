"""A model that reads a source once and then gives the next token's scores, step by step."""

import torch
from torch import Tensor

from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.objectives.packing import PADDING_GROUP
from s2sft_fairseq.objectives.sequence_form import SequenceForm


class IncrementalDecoder:
    """One model, one batch of sources and the incremental state between them.

    N: sentences, K: beams, S: source positions, V: vocabulary.
    """

    def __init__(self, model: UnilmModel, form: SequenceForm, source: Tensor, *, beams: int, max_tokens: int) -> None:
        """Encode the sources.

        Args:
            model: the model.
            form: the layout that it was trained with.
            source: laid-out sources, padded on the right (N, S).
            beams: hypotheses of each sentence.
            max_tokens: most tokens that a hypothesis may have.
        """
        self.model, self.form = model, form
        padding = source == form.pad
        positions = torch.arange(source.size(1), device=source.device).expand_as(source).masked_fill(padding, 0)
        segments = torch.from_numpy(form.source_segments(source.cpu().numpy())).to(source.device)
        groups = torch.zeros_like(source).masked_fill(padding, PADDING_GROUP)
        self.state = model.prefill(source, positions, segments, groups)
        self.state.allocate(beams, max_tokens + 1)
        # What no step has read yet: the start symbol of a causal model, nothing otherwise.
        rows = len(source) * beams
        self.pending = source.new_full((rows, 1), form.sep) if form.shifted else source.new_empty((rows, 0))

    def next_logits(self) -> Tensor:
        """Return the scores (N * K, V) of the next token.

        A causal model reads its last token; the others read the last token and a placeholder, whose keys and values are
        dropped again (s2s-ft, section 2.4).
        """
        num_kept = self.pending.size(1)
        tokens = self.pending
        if not self.form.shifted:
            placeholder = tokens.new_full((len(tokens), 1), self.form.placeholder)
            tokens = torch.cat([tokens, placeholder], dim=1)
        return self.model.step(self.state, tokens, self.form.target_segment, num_kept)

    def append(self, tokens: Tensor, rows: Tensor) -> None:
        """Go on: hypothesis ``i`` becomes hypothesis ``rows[i]`` with ``tokens[i]`` behind it, both (N * K,)."""
        self.state.reorder(rows)
        self.pending = tokens.unsqueeze(1)

    def keep_sentences(self, sentences: Tensor, rows: Tensor) -> None:
        """Go on with the given sentences only, and with their hypotheses ``rows``."""
        self.state.keep_sentences(sentences, rows)
        self.pending = self.pending[rows]
