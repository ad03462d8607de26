"""The language model head, tied to the token embedding, and its loss: label-smoothed cross-entropy.

The loss does not compute the scores of all labels at once: with 250,002 symbols the scores of 4,000 labels take 4 GB,
and so does their gradient. It scores one chunk of labels at a time. The scores of the first chunks are kept for the
backward pass, up to a limit; the others are recomputed.

N: labels, E: width of the features, V: vocabulary.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from s2sft_fairseq.modules.cpu_linear import pack_weight
from s2sft_fairseq.modules.embeddings import TiedGradient
from s2sft_fairseq.modules.matmul import linear, multiply, operand_type

LARGEST_PACKED = 1 << 30
"""Largest output matrix that is packed, in bytes. The token embedding of XLM-RoBERTa large has 0.95 GiB."""
CHUNK_BYTES = {"cpu": 64 << 20, "cuda": 1 << 30}
"""Bytes of the float32 scores of a chunk."""
KEPT_BYTES = {"cpu": 128 << 20, "cuda": 1 << 30}
"""Bytes of the float32 scores that are kept for the backward pass."""


class LMHead(nn.Module):
    """Hidden layers, then the output matrix: the token embedding or a separate matrix. E: width of the matrix."""

    def __init__(
        self,
        hidden: Mapping[str, nn.Module],
        *,
        vocab_size: int,
        matrix_dim: int = 0,
        bias: bool = True,
    ) -> None:
        """Build the head.

        Args:
            hidden: successive layers by name, (..., H) -> (..., E). H: width of the layers.
            vocab_size: number of symbols, V.
            matrix_dim: E of a separate output matrix; 0: the output matrix is the token embedding.
            bias: whether scores have a bias.
        """
        super().__init__()
        self.hidden = list(hidden)
        for name, module in hidden.items():
            self.add_module(name, module)
        self.weight = nn.Parameter(torch.empty(vocab_size, matrix_dim)) if matrix_dim else None
        if bias:
            self.bias = nn.Parameter(torch.zeros(vocab_size))
        else:
            self.register_buffer("bias", torch.zeros(vocab_size), persistent=False)
        self.output: nn.Module | None = None

    def matrix(self, token_embedding: Tensor) -> Tensor:
        """Return the output matrix (V, E)."""
        return token_embedding if self.weight is None else self.weight

    def pack(self, token_embedding: Tensor, *, quantize: bool = False) -> None:
        """Multiply from now on with a packed copy of the output matrix, for inference.

        A token embedding is still needed for the look-up, so the copy takes as much memory again, or a quarter with
        ``quantize``. If the matrix is too large or there are no packed kernels, nothing changes.
        """
        matrix = self.matrix(token_embedding)
        if matrix.nbytes <= LARGEST_PACKED:
            self.output = pack_weight(matrix, self.bias, quantize=quantize)

    def features(self, x: Tensor) -> Tensor:
        """Return the input of the output matrix, (..., H) -> (..., E)."""
        for name in self.hidden:
            x = getattr(self, name)(x)
        return x

    def forward(self, x: Tensor, token_embedding: Tensor) -> Tensor:
        """Score the vocabulary.

        Shape:
            x (..., H), token_embedding (V, E) -> logits (..., V).
        """
        x = self.features(x)
        return linear(x, self.matrix(token_embedding), self.bias) if self.output is None else self.output(x)


class Activation(nn.Module):
    """An activation function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Apply the function, (...) -> (...)."""
        return self.function(x)


class Targets(NamedTuple):
    """The labels, and how they are scored."""

    labels: Tensor
    """The labels (N,), never the excluded class."""
    excluded: int
    """The class that is never a label: padding."""
    smoothing: float = 0.0
    """Label smoothing, in [0, 1)."""
    weights: Tensor | None = None
    """Weights of the labels (N,); None: all have the weight 1."""
    rank: bool = False
    """Whether to find the labels that rank first."""


class Losses(NamedTuple):
    """Losses of labels, in nats."""

    loss: Tensor
    """The smoothed loss, a weighted sum over all labels, with a gradient."""
    nll: Tensor
    """Negative log-likelihood of each label (N,), neither smoothed nor weighted, without a gradient."""
    correct: Tensor
    """Whether each label ranks first, bool (N,); all false unless ``rank`` is set."""


def linear_cross_entropy(
    features: Tensor, weight: Tensor, bias: Tensor, targets: Targets, tied: TiedGradient | None = None
) -> Losses:
    """Return the divergence KL(q || p) between smoothed labels and scores, as s2s-ft computes it.

    ``q`` is ``1 - smoothing`` at the label, 0 at the excluded class, and ``smoothing / (V - 2)`` elsewhere. Without
    smoothing this is the cross-entropy. The entropy of ``q`` is subtracted, so that the loss of a perfect model is 0.

    Args:
        features: input of the output matrix (N, E).
        weight: output matrix (V, E).
        bias: bias of the scores (V,).
        targets: the labels, and how they are scored.
        tied: receives the gradient of ``weight``, which then gets none here.
    """
    keep_bytes = _bytes(KEPT_BYTES, features.device) if torch.is_grad_enabled() else 0
    return Losses(*_LinearCrossEntropy.apply(features, weight, bias, targets, keep_bytes, tied))


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        features: Tensor,
        weight: Tensor,
        bias: Tensor,
        targets: Targets,
        keep_bytes: int,
        tied: TiedGradient | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        labels, excluded, smoothing, weights, rank = targets
        dtype = operand_type(features)
        features, weight = features.to(dtype), weight.to(dtype)
        vocab = len(weight)
        share = smoothing / (vocab - 2)
        correct = torch.zeros_like(labels, dtype=torch.bool)
        precision = torch.promote_types(features.dtype, torch.float32)
        losses, nll, normalizers = (features.new_empty(len(labels), dtype=precision) for _ in range(3))
        kept = []
        for rows in _chunks(labels, vocab):
            scores = _scores(features[rows], weight, bias)
            at_labels = scores.gather(1, labels[rows, None]).squeeze(1)
            normalizer = torch.logsumexp(scores, dim=1)
            chunk_nll = normalizer - at_labels
            nll[rows] = chunk_nll
            if smoothing:
                # Negative log-probabilities of all classes except the label and the excluded class, summed.
                others = vocab * normalizer - scores.sum(dim=1) - chunk_nll - (normalizer - scores[:, excluded])
                chunk_nll = (1 - smoothing) * chunk_nll + share * others
            losses[rows] = chunk_nll
            if rank:
                correct[rows] = scores.argmax(dim=1) == labels[rows]
            normalizers[rows] = normalizer
            if 4 * vocab * rows.stop <= keep_bytes:
                kept.append(scores)
        if smoothing:
            losses += (1 - smoothing) * math.log(1 - smoothing) + smoothing * math.log(share)
        # A dot product, not a matrix product: autocast would round the factors of the latter.
        loss = losses.sum() if weights is None else losses.dot(weights.to(precision))
        ctx.save_for_backward(features, weight, bias, labels, weights, normalizers, *kept)
        ctx.smoothing, ctx.share, ctx.excluded, ctx.tied = smoothing, share, excluded, tied
        ctx.mark_non_differentiable(nll, correct)
        return loss, nll, correct

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor, *_: Any) -> tuple[Tensor | None, ...]:
        features, weight, bias, labels, weights, normalizers, *kept = ctx.saved_tensors
        needs_features, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        features_gradient = torch.empty_like(features, dtype=bias.dtype) if needs_features else None
        weight_gradient: Tensor | None = None
        bias_gradient = torch.zeros_like(bias) if needs_bias else None
        for index, rows in enumerate(_chunks(labels, len(weight))):
            scores = kept[index] if index < len(kept) else _scores(features[rows], weight, bias)
            # The gradient of the scores is p - q.
            difference = (scores - normalizers[rows, None]).exp_()
            if ctx.share:
                difference.sub_(ctx.share)
                difference[:, ctx.excluded] += ctx.share
            at_labels = labels[rows, None]
            wanted = 1 - ctx.smoothing - ctx.share
            difference.scatter_add_(1, at_labels, difference.new_full((1, 1), -wanted).expand_as(at_labels))
            if weights is not None:
                difference.mul_(weights[rows, None])
            difference = difference.mul_(gradient).to(bias.dtype)
            if bias_gradient is not None:
                bias_gradient += difference.sum(dim=0)
            difference = difference.to(features.dtype)
            if features_gradient is not None:
                features_gradient[rows] = multiply(difference, weight)
            if needs_weight:
                weight_gradient = _add_product(weight_gradient, difference.t(), features[rows], bias.dtype)
        if needs_weight and weight_gradient is None:  # no labels
            weight_gradient = torch.zeros_like(weight, dtype=bias.dtype)
        if ctx.tied is not None and weight_gradient is not None:
            ctx.tied.leave(weight_gradient)
            weight_gradient = None
        return features_gradient, weight_gradient, bias_gradient, *[None] * 3


def _bytes(limits: dict[str, int], device: torch.device) -> int:
    return limits["cpu" if device.type == "cpu" else "cuda"]


def _chunks(labels: Tensor, vocab: int) -> Iterator[slice]:
    size = max(1, _bytes(CHUNK_BYTES, labels.device) // (4 * vocab))
    for start in range(0, len(labels), size):
        yield slice(start, min(start + size, len(labels)))


def _add_product(total: Tensor | None, a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    """Add ``a b`` to the total in place and return it; without a total, return ``a b``."""
    if total is None:
        return multiply(a, b).to(dtype)
    if a.dtype == dtype:
        return total.addmm_(a, b)  # needs no memory for the product
    return total.add_(multiply(a, b))


def _scores(features: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Return scores (n, V) of some features (n, E), in float32 or wider."""
    scores = multiply(features, weight.t(), bias)
    return scores.to(torch.promote_types(scores.dtype, torch.float32))
