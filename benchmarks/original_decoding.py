"""Decoding as in the original s2s-ft program, on BERT of `transformers`: the baseline of `generate.py`.

The original caches the inputs of the layers, not their keys and values: each step projects the whole history to keys
and values again, in every layer. After the first step everything, including the source, is copied once for each beam.
Each further step reorders the copies, whether a beam moved or not. Attention has one dense mask, and both tokens of a
step go through every layer. One thing is left out in its favor: the original also keeps the outputs of the last layer,
which nothing reads.

Letters: N sentences, K beams, R rows (N, then N * K), S source positions padding included, T steps, H width, h heads,
V vocabulary.
"""

from collections.abc import Callable, Collection

import torch
from torch import Tensor, nn
from transformers import BertForMaskedLM

from s2sft_fairseq.objectives.sequence_form import SequenceForm

HIDDEN = -10000.0


class OriginalDecoder:
    """Beam search for exactly T tokens; eos never comes."""

    def __init__(
        self,
        model: BertForMaskedLM,
        form: SequenceForm,
        *,
        beam: int,
        steps: int,
        measured: Collection[int] | None = None,
    ) -> None:
        """Create a decoder.

        Args:
            model: the model, in evaluation mode.
            form: the layout that it was trained with.
            beam: K.
            steps: T.
            measured: the steps to run, or None for all. Step 0, which encodes the source, is always run. Steps
                that are not run only add states of zeros to the history.
        """
        self.model, self.form, self.beam, self.steps = model, form, beam, steps
        self.measured = range(steps) if measured is None else measured

    @torch.no_grad()
    def __call__(self, source: Tensor, tick: Callable[[], None]) -> tuple[Tensor, Tensor]:
        """Decode sources (N, S), padded on the right.

        ``tick`` is called when a step begins, except for the first, which is in the same pass as the encoding.

        Returns:
            The tokens (N, T) of the best hypothesis of each sentence, and its summed log-probability (N,).
        """
        bias = self._dense_bias(source)
        lengths = (source != self.form.pad).sum(dim=1)
        positions = torch.arange(source.size(1), device=source.device).expand_as(source)
        log_probs, histories = self._pass(
            source, positions.masked_fill(source == self.form.pad, 0), torch.zeros_like(source), [], lengths, bias, 0
        )
        scores, tokens = log_probs.topk(self.beam, dim=1)
        # (N, ...) -> (N * K, ...): the source is copied for each beam.
        copies = (history.repeat_interleave(self.beam, dim=0) for history in histories)
        histories, bias = list(copies), bias.repeat_interleave(self.beam, dim=0)
        lengths = lengths.repeat_interleave(self.beam)
        trace = [(tokens, torch.zeros_like(tokens))]
        for step in range(1, self.steps):
            tick()
            if step not in self.measured:
                empty = histories[0].new_zeros(len(lengths), 1, histories[0].size(2))
                histories = [torch.cat([history, empty], dim=1) for history in histories]
                trace.append((tokens, torch.zeros_like(tokens)))
                continue
            last = tokens.view(-1, 1)
            position = (lengths + step - 1).unsqueeze(1)
            segment = torch.full_like(last, self.form.target_segment)
            log_probs, histories = self._pass(last, position, segment, histories, lengths, bias, step)
            if self.beam == 1:
                tokens = log_probs.argmax(dim=1, keepdim=True)
                scores = scores + log_probs.gather(1, tokens)
                trace.append((tokens, torch.zeros_like(tokens)))
                continue
            scores, tokens, origins = self._best(log_probs, scores)
            trace.append((tokens, origins))
            rows = (origins + torch.arange(len(source), device=source.device).unsqueeze(1) * self.beam).flatten()
            histories = [history[rows] for history in histories]
        return _backtrace(trace), scores[:, 0]

    def _dense_bias(self, source: Tensor) -> Tensor:
        """Return the attention bias (N, 1, S + T, S + T): all see the source, targets also targets up to themselves."""
        length = source.size(1) + self.steps
        seen = torch.ones(length, length, dtype=torch.bool, device=source.device).tril()
        seen[:, : source.size(1)] = True
        real = nn.functional.pad(source != self.form.pad, (0, self.steps), value=True)
        # (N, S + T, S + T) -> (N, 1, S + T, S + T)
        return torch.where(seen & real.unsqueeze(1), 0.0, HIDDEN).unsqueeze(1)

    def _pass(
        self,
        tokens: Tensor,
        positions: Tensor,
        segments: Tensor,
        histories: list[Tensor],
        lengths: Tensor,
        bias: Tensor,
        step: int,
    ) -> tuple[Tensor, list[Tensor]]:
        """Read new tokens and a placeholder; the returned histories leave the placeholder out.

        Args:
            tokens: new tokens (R, Q). Q: number of new tokens.
            positions: their positions (R, Q).
            segments: their segments (R, Q).
            histories: inputs of each layer so far (R, P, H); an empty list at first. P: positions so far.
            lengths: real source lengths (R,).
            bias: the dense mask (R, 1, S + T, S + T).
            step: the number of the step, from 0.

        Returns:
            Log-probabilities (R, V) of the next token, and the histories with the new tokens (R, P + Q, H).
        """

        def with_placeholder(column: Tensor, last: Tensor) -> Tensor:
            return torch.cat([column, last.to(column).expand(len(column)).unsqueeze(1)], dim=1)

        x = self.model.bert.embeddings(
            input_ids=with_placeholder(tokens, torch.tensor(self.form.placeholder)),
            position_ids=with_placeholder(positions, lengths + step),
            token_type_ids=with_placeholder(segments, torch.tensor(self.form.target_segment)),
        )
        layers = self.model.bert.encoder.layer
        histories = histories or [x[:, :0] for _ in layers]
        start = histories[0].size(1)
        end = start + x.size(1)
        kept = []
        for layer, history in zip(layers, histories, strict=True):
            kept.append(torch.cat([history, x[:, :-1]], dim=1))
            x = _layer(layer, x, torch.cat([history, x], dim=1), bias[:, :, start:end, :end])
        logits = self.model.cls(x[:, -1:]).squeeze(1)
        logits[:, self.form.sep] = HIDDEN
        return logits.log_softmax(dim=-1), kept

    def _best(self, log_probs: Tensor, scores: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Take the best K tokens of each hypothesis, then the best K of all; return scores, tokens, origins (N, K)."""
        # (N * K, V) -> (N * K, K) -> (N, K, K) -> (N, K * K)
        each, tokens = log_probs.topk(self.beam, dim=1)
        totals = (each.unflatten(0, scores.shape) + scores.unsqueeze(2)).flatten(1)
        scores, index = totals.topk(self.beam, dim=1)
        return scores, tokens.view_as(totals).gather(1, index), index // self.beam


def _layer(layer: nn.Module, x: Tensor, states: Tensor, bias: Tensor) -> Tensor:
    """Run a layer whose keys and values are projected from the states of all positions.

    Shape:
        x (R, Q, H), states (R, P + Q, H), bias (R, 1, Q, P + Q) -> (R, Q, H).
    """
    attention = layer.attention.self

    def heads(projected: Tensor) -> Tensor:
        # (R, Q, H) -> (R, Q, h, d) -> (R, h, Q, d)
        return projected.unflatten(-1, (attention.num_attention_heads, -1)).transpose(1, 2)

    query, key, value = heads(attention.query(x)), heads(attention.key(states)), heads(attention.value(states))
    scores = query @ key.transpose(-1, -2) * query.size(-1) ** -0.5 + bias
    context = (scores.softmax(dim=-1) @ value).transpose(1, 2).flatten(2)
    return layer.feed_forward_chunk(layer.attention.output(context, x))


def _backtrace(trace: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Follow the best hypothesis back through (tokens, origins) of each step, both (N, K); return its tokens (N, T)."""
    beam = torch.zeros_like(trace[0][0][:, :1])
    tokens = []
    for step_tokens, origins in reversed(trace):
        tokens.append(step_tokens.gather(1, beam))
        beam = origins.gather(1, beam)
    return torch.cat(tokens[::-1], dim=1)
