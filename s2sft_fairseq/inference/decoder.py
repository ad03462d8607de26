"""A decoder reads a batch of sources once, and then scores the next tokens of their hypotheses step by step."""

import torch
from torch import Tensor

from s2sft_fairseq.inference.step_graphs import StepGraphs
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.modules.incremental_state import STEPS_BETWEEN_COMPACTIONS
from s2sft_fairseq.modules.step_layout import StepLayout, block_layout, drafted_layout, next_token_layout
from s2sft_fairseq.objectives.sequence_form import SequenceForm


def spare_slots(beams: int) -> int:
    """Return the initial number of slots of a sentence for tokens that its hypotheses do not share."""
    return (2 * STEPS_BETWEEN_COMPACTIONS + 2) * beams


class IncrementalDecoder:
    """A model with the incremental state of one batch of sources and their hypotheses.

    N: sentences, K: hypotheses of each, S: source positions, Q: tokens that no step has read yet, V: vocabulary.
    """

    def __init__(
        self,
        model: UnilmModel,
        form: SequenceForm,
        source: Tensor,
        *,
        max_tokens: int,
        beams: int,
        graphs: StepGraphs | None = None,
    ) -> None:
        """Encode the sources. Each has one empty hypothesis at first.

        Args:
            model: the model.
            form: the layout that it was trained with.
            source: laid-out sources, padded on the right (N, S).
            max_tokens: most tokens that a hypothesis may have.
            beams: hypotheses that a sentence will have.
            graphs: the CUDA graphs of the model; None: steps run kernel by kernel.
        """
        self.form = form
        self._step_of_model = model.step if graphs is None else graphs.step
        if graphs is not None:
            graphs.begin()
        real = source != form.pad
        positions = torch.arange(source.size(1), device=source.device).expand_as(source)
        segments = torch.from_numpy(form.source_segments(source.cpu().numpy())).to(source.device)
        # Hypotheses of one sentence share most of their tokens, so a few slots more than one hypothesis needs will do.
        num_tokens = max_tokens + spare_slots(beams)
        self.state = model.prefill(
            source[real],
            positions[real],
            segments[real],
            real.sum(dim=1).tolist(),
            num_tokens=num_tokens,
            hypotheses=beams,
            allocate=None if graphs is None else graphs.allocate,
        )
        # Tokens that no step has read yet (N, K, Q): at first the symbol that targets begin with, if there is one.
        self.pending = source.new_tensor(form.start).expand(len(source), 1, -1)
        self.counts: Tensor | None = None
        """How many of the pending tokens each sentence has (N,); None: all."""

    def next_logits(self) -> Tensor:
        """Return the scores (N, K, V) of the next token.

        A causal model reads the last token. Other models read the last token and a placeholder, whose keys and values
        are then dropped (s2s-ft, section 2.4).
        """
        hypotheses, new = self.pending.shape[1:]
        # (N, K, Q) -> (N, Q, K) -> (N, Q * K)
        content = self.pending.transpose(1, 2).flatten(1)
        layout = next_token_layout(hypotheses, new, placeholder=self.form.has_placeholders, device=content.device)
        return self._step(content, layout)

    def verify(
        self, drafts: Tensor, ahead: int = 0, behind: tuple[int, ...] | None = None, *, in_block: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Score the token after each prefix of the drafts. Each sentence has one hypothesis, which the drafts continue.

        Args:
            drafts: tokens that may be wrong (N, D). D: drafts of a sentence.
            ahead: number of positions beyond the next one that are scored, too.
            behind: the prefixes after which these are scored, given by their number of drafts; None: all prefixes.
            in_block: whether the placeholders of these positions, and one for the next token, see each other.

        Returns:
            Scores of the token after each prefix (N, D + 1, V), equal to those of :meth:`next_logits`, and scores of
            the positions beyond (N, P, ahead, V). P: prefixes ``behind``.
        """
        drafted, pending = drafts.size(1), self.pending.size(2)
        has_placeholders = self.form.has_placeholders
        behind = tuple(range(drafted + 1)) if behind is None else behind
        layout = drafted_layout(
            pending, drafted, ahead, behind, placeholder=has_placeholders, in_block=in_block, device=drafts.device
        )
        logits = self._step(torch.cat([self.pending.squeeze(1), drafts], dim=1), layout)
        following, further = logits[:, : drafted + 1], logits[:, drafted + 1 :]
        return following, further.unflatten(1, (len(behind), ahead))

    def _step(self, content: Tensor, layout: StepLayout) -> Tensor:
        """Read content (N, A) and, unless the model is causal, a placeholder for each token to predict."""
        placeholders = content.new_full((len(content), len(layout.hypotheses) - content.size(1)), self.form.placeholder)
        return self._read(content, placeholders, layout)

    def _read(self, content: Tensor, placeholders: Tensor, layout: StepLayout) -> Tensor:
        """Read content (N, A) and placeholders (N, B). A placeholder may hold the token already chosen for it."""
        segments = content.new_full((len(layout.hypotheses),), self.form.target_segment)
        segments[content.size(1) :] = self.form.placeholder_segment
        return self._step_of_model(self.state, torch.cat([content, placeholders], dim=1), segments, layout)

    def accept(self, drafted: int, right: Tensor, tokens: Tensor) -> None:
        """Keep the first ``right`` (N,) of the drafts that were verified last; ``tokens`` (N,) follow them."""
        self.state.forget(drafted, right)
        self.pending = tokens[:, None, None]

    def fill(self, block: Tensor, room: Tensor, wanted: Tensor) -> Tensor:
        """Score places of a block of placeholders that follows the only hypothesis of each sentence.

        Args:
            block: the token of each placeholder, or the placeholder itself if it has no token yet (N, B).
                B: placeholders.
            room: how many placeholders of the block each sentence has room for (N,); these do not see the others.
            wanted: which placeholders are scored (N, B).

        Returns:
            Scores (M, V), sentence by sentence. M: placeholders that are wanted.
        """
        pending = self.pending.squeeze(1)
        counts = self.counts if self.counts is not None else torch.full_like(block[:, 0], pending.size(1))
        layout = block_layout(counts, pending.size(1), room, wanted)
        logits = self._read(pending, block, layout)
        self.state.forget(pending.size(1), counts)
        self.extend(pending[:, :0], torch.zeros_like(counts))
        return logits

    def extend(self, tokens: Tensor, counts: Tensor) -> None:
        """Continue each hypothesis with the first ``counts`` (N,) of its tokens (N, T)."""
        self.pending, self.counts = tokens.unsqueeze(1), counts

    def append(self, tokens: Tensor, parents: Tensor) -> None:
        """Make hypothesis k the hypothesis ``parents[n, k]`` followed by ``tokens[n, k]``, both (N, K)."""
        self.state.follow(parents)
        self.pending = tokens.unsqueeze(-1)

    def keep_sentences(self, left: Tensor) -> None:
        """Keep only the given sentences; see :meth:`IncrementalState.keep_sentences`."""
        self.state.keep_sentences(left)
        left = left.to(self.pending.device)
        self.pending = self.pending[left]
        self.counts = None if self.counts is None else self.counts[left]
