"""The baseline of `train.py`: BERT of `transformers` trained as in the original s2s-ft program.

Every example is padded to the maximum, every query scores every key before a mask is added, and the loss materializes
its target distribution. The package is not imported, so that its changes to a process have no effect here.

Letters: B examples, S and T the most positions of a source and a target, L all positions (S + T, with placeholders
S + 2T), P predicted slots of an example, V vocabulary, h heads.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from training_grid import FULL_LOGITS, FURTHEST_DISTANCE, RELATIVE_BINS, SDPA, Cell
from training_pairs import (
    BETAS,
    CLIP_NORM,
    CLS,
    DROPOUT,
    EPSILON,
    LABEL_SMOOTHING,
    LEARNING_RATE,
    MASK,
    PAD,
    SEP,
    WEIGHT_DECAY,
    Outcome,
    Pair,
    System,
)

transformers.logging.set_verbosity_error()

HIDDEN = -10000.0
"""The mask of the original: added to the scores of keys that a query does not see."""


class PaddedBatch(NamedTuple):
    """A batch as in the original."""

    tokens: Tensor
    """(B, L), like the next three."""
    positions: Tensor
    segments: Tensor
    real: Tensor
    """1.0 at real positions, 0.0 at padding."""
    predicted: Tensor
    """Indices of the positions that go through the head (B, P)."""
    labels: Tensor
    """(B, P)."""
    weights: Tensor
    """1.0 at labels, 0.0 at unused slots (B, P)."""


def pad_batch(cell: Cell, pairs: Sequence[Pair]) -> PaddedBatch:
    """Lay the pairs out, mask, and pad: source, target and placeholders each to their maximum."""
    most_source, most = cell.shape.max_source, cell.shape.max_target
    objective = cell.objective
    length = most_source + (2 if objective == "pseudo_masked" else 1) * most
    slots = cell.labels(most)
    first = length - most  # of the section that is predicted: placeholders, or targets

    tokens, positions, segments = (np.zeros((len(pairs), length), dtype=np.int64) for _ in range(3))
    tokens[:] = PAD
    segments[:, most_source:] = 1
    real = np.zeros((len(pairs), length), dtype=np.float32)
    predicted, labels = (np.zeros((len(pairs), slots), dtype=np.int64) for _ in range(2))
    weights = np.zeros((len(pairs), slots), dtype=np.float32)

    for row, pair in enumerate(pairs):
        clean = np.append(pair.target, SEP)
        source = np.concatenate([[CLS], pair.source, [] if objective == "causal" else [SEP]])
        chosen, content = np.arange(len(clean)), clean
        if objective == "causal":
            content = np.append(SEP, pair.target)
        elif objective == "masked":
            chosen, content = pair.masked, clean.copy()
            content[chosen] = MASK
        parts = [(0, source, 0), (most_source, content, len(source))]
        if objective == "pseudo_masked":
            parts.append((first, np.full_like(clean, MASK), len(source)))
        for start, part, position in parts:
            stop = start + len(part)
            tokens[row, start:stop] = part
            positions[row, start:stop] = np.arange(position, position + len(part))
            real[row, start:stop] = 1
        predicted[row, : len(chosen)] = first + chosen
        labels[row, : len(chosen)] = clean[chosen]
        weights[row, : len(chosen)] = 1
    arrays = (tokens, positions, segments, real, predicted, labels, weights)
    return PaddedBatch(*(torch.from_numpy(array).to(cell.device) for array in arrays))


class PlainModel(nn.Module):
    """BERT with a dense mask, and with a relative position bias if the cell has one."""

    def __init__(self, cell: Cell, dropout: float = DROPOUT) -> None:
        super().__init__()
        self.cell = cell
        layers, width, ffn_width, heads = cell.encoder
        config = transformers.BertConfig(
            vocab_size=cell.vocab,
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            intermediate_size=ffn_width,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
            max_position_embeddings=cell.positions,
            pad_token_id=PAD,
            attn_implementation="sdpa" if cell.system == SDPA else "eager",
        )
        self.bert = transformers.BertForMaskedLM(config)
        self.relative = nn.Linear(RELATIVE_BINS, heads, bias=False) if cell.relative else None
        self.register_buffer("structure", _structure(cell), persistent=False)

    def forward(self, batch: PaddedBatch) -> Tensor:
        """Return the logits of the predicted slots (B, P, V)."""
        # (L, L), (B, L) -> (B, L, L) -> (B, 1, L, L)
        mask = ((1.0 - self.structure * batch.real.unsqueeze(1)) * HIDDEN).unsqueeze(1)
        if self.relative is not None:
            distance = batch.positions.unsqueeze(1) - batch.positions.unsqueeze(2)
            one_hot = nn.functional.one_hot(_buckets(distance), RELATIVE_BINS).float()
            # (B, L, L, bins) -> (B, L, L, h) -> (B, h, L, L)
            mask = mask + self.relative(one_hot).permute(0, 3, 1, 2)
        states = self.bert.bert(
            batch.tokens, attention_mask=mask, token_type_ids=batch.segments, position_ids=batch.positions
        ).last_hidden_state
        if self.cell.system == FULL_LOGITS:
            states = self.bert.cls(states)
        if self.cell.objective == "masked":
            states = states.gather(1, batch.predicted.unsqueeze(2).expand(-1, -1, states.size(2)))
        else:
            states = states[:, -batch.predicted.size(1) :]
        return states if self.cell.system == FULL_LOGITS else self.bert.cls(states)


def _structure(cell: Cell) -> Tensor:
    """Return the visibility between positions, padding ignored: 1.0 or 0.0 (L, L)."""
    source, target = cell.shape.max_source, cell.shape.max_target
    content = source + target
    length = content + (target if cell.objective == "pseudo_masked" else 0)
    seen = torch.zeros(length, length)
    seen[:, :source] = 1
    seen[source:content, source:content] = torch.ones(target, target).tril()
    if length > content:
        seen[content:, source:content] = torch.ones(target, target).tril(-1)
        seen[content:, content:] = torch.eye(target)
    return seen


def _buckets(distance: Tensor) -> Tensor:
    """Return T5's bins of the distance (key position minus query position); each direction has half of the bins."""
    half, exact = RELATIVE_BINS // 2, RELATIVE_BINS // 4
    size = distance.abs()
    share = torch.log(size.clamp(min=1) / exact) / np.log(FURTHEST_DISTANCE / exact)
    far = (exact + (half - exact) * share).long().clamp(max=half - 1)
    return torch.where(size < exact, size, far) + half * (distance > 0)


def smoothed_loss(logits: Tensor, batch: PaddedBatch) -> Tensor:
    """Return the mean KL divergence from the smoothed labels, which are materialized (B * P, V)."""
    log_probs = nn.functional.log_softmax(logits.float(), dim=-1).flatten(0, 1)
    labels = batch.labels.flatten()
    wanted = torch.full_like(log_probs, LABEL_SMOOTHING / (log_probs.size(1) - 2))
    wanted[:, PAD] = 0
    wanted.scatter_(1, labels.unsqueeze(1), 1 - LABEL_SMOOTHING)
    wanted.masked_fill_((labels == PAD).unsqueeze(1), 0)
    losses = nn.functional.kl_div(log_probs, wanted, reduction="none").sum(dim=1)
    weights = batch.weights.flatten()
    return (losses * weights).sum() / (weights.sum() + 1e-5)


def make_optimizer(model: PlainModel) -> torch.optim.Optimizer:
    """Return PyTorch's AdamW with no decay on biases, layer norms and the relative position bias."""
    decayed, exempt = [], []
    for name, parameter in model.named_parameters():
        (exempt if name.endswith("bias") or "LayerNorm" in name or "relative" in name else decayed).append(parameter)
    groups = [{"params": decayed}, {"params": exempt, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, eps=EPSILON, weight_decay=WEIGHT_DECAY)


def padded_update(cell: Cell) -> Callable[[PaddedBatch], Tensor]:
    """Return a function that updates the baseline on a padded batch and returns the loss, on the device."""
    torch.manual_seed(cell.seed)
    model = PlainModel(cell).to(cell.device).train()
    optimizer = make_optimizer(model)

    def update(batch: PaddedBatch) -> Tensor:
        kind = torch.device(cell.device).type
        with torch.autocast(kind, torch.bfloat16, enabled=cell.precision == "bfloat16"):
            loss = smoothed_loss(model(batch), batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return update


def plain(cell: Cell) -> System:
    """Return the training of the baseline."""
    train = padded_update(cell)

    def update(pairs: Sequence[Pair]) -> Outcome:
        batch = pad_batch(cell, pairs)
        return Outcome(train(batch).item(), batch.tokens.numel())

    return update
