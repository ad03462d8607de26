"""The incremental state of decoding: keys and values of the source, once per sentence, and of what was generated."""

from dataclasses import dataclass

import torch
from torch import Tensor


class LayerCache:
    """Keys and values of one layer.

    N: sentences, K: beams, h: heads, S: source positions, T: generated positions, d: width of a head.
    ``source_key`` and ``source_value`` are (N, h, S, d); the generated ones (N * K, h, capacity, d), the beams of a
    sentence side by side.
    """

    source_key: Tensor
    source_value: Tensor
    generated_key: Tensor
    generated_value: Tensor

    def store_source(self, key: Tensor, value: Tensor) -> None:
        """Keep the keys and values of the source, each (N, h, S, d)."""
        self.source_key, self.source_value = key.contiguous(), value.contiguous()

    def allocate(self, rows: int, capacity: int) -> None:
        """Make room for ``capacity`` generated positions of ``rows`` hypotheses."""
        _, heads, _, head_dim = self.source_key.shape
        self.generated_key = self.source_key.new_empty(rows, heads, capacity, head_dim)
        self.generated_value = torch.empty_like(self.generated_key)

    def append(self, key: Tensor, value: Tensor, num_cached: int) -> tuple[Tensor, Tensor]:
        """Write keys and values (N * K, h, Q, d) behind the first ``num_cached``; return all up to there."""
        end = num_cached + key.size(2)
        self.generated_key[:, :, num_cached:end] = key
        self.generated_value[:, :, num_cached:end] = value
        return self.generated_key[:, :, :end], self.generated_value[:, :, :end]

    def reorder(self, rows: Tensor, num_cached: int) -> None:
        """Make row ``i`` go on from what was row ``rows[i]``; a beam never leaves its sentence, so the source stays."""
        for generated in (self.generated_key, self.generated_value):
            generated[:, :, :num_cached] = generated[rows, :, :num_cached]

    def keep_sentences(self, sentences: Tensor, rows: Tensor) -> None:
        """Drop the sentences that are finished, with their hypotheses."""
        self.source_key, self.source_value = self.source_key[sentences], self.source_value[sentences]
        self.generated_key, self.generated_value = self.generated_key[rows], self.generated_value[rows]


@dataclass
class IncrementalState:
    """What decoding remembers of a batch for one model.

    Letters as in :class:`LayerCache`.
    """

    layers: list[LayerCache]
    source_bias: Tensor
    """Added to the scores against the source (N, 1, 1, S): -inf at padding."""
    source_lengths: Tensor
    """Real source positions (N,), from which the target's positions count on."""
    beams: int = 1
    num_cached: int = 0
    """Generated tokens whose keys and values are kept."""

    def allocate(self, beams: int, capacity: int) -> None:
        """Make room for ``capacity`` generated tokens, a placeholder included, in each of ``beams`` hypotheses."""
        self.beams = beams
        for layer in self.layers:
            layer.allocate(len(self.source_lengths) * beams, capacity)

    def reorder(self, rows: Tensor) -> None:
        """Follow the search: hypothesis ``i`` goes on from ``rows[i]`` (N * K,)."""
        for layer in self.layers:
            layer.reorder(rows, self.num_cached)

    def keep_sentences(self, sentences: Tensor, rows: Tensor) -> None:
        """Go on with some of the sentences only (their indices), and with their hypotheses ``rows``."""
        for layer in self.layers:
            layer.keep_sentences(sentences, rows)
        self.source_bias = self.source_bias[sentences]
        self.source_lengths = self.source_lengths[sentences]
