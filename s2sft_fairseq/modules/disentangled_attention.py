"""Disentangled attention (DeBERTa: He et al. 2021, arXiv 2006.03654, equation 4; log buckets: arXiv 2111.09543).

A score is a sum of up to three products: content to content, as in other attention; content to position (``c2p``: the
query times the key of the relative position); and position to content (``p2c``: the query of the relative position
times the key). The relative positions are rows of a table that all layers share. Each layer projects the table with its
own matrices, or with those of the content.

Relative positions come from position ids, so that a placeholder has the distances of the token that it stands for.

T: tokens of a packed batch, H: width, h: heads, d: width of a head, R: rows of the table, Q, K: queries and keys of a
block; N: sentences, A: new tokens of each in a step, S: slots that are read.
"""

import functools
import math
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

from s2sft_fairseq.modules.dropout import Dropout
from s2sft_fairseq.modules.incremental_state import IncrementalState
from s2sft_fairseq.modules.matmul import Linear
from s2sft_fairseq.modules.multi_flow_attention import AttentionPattern, MultiFlowAttention, PackedPlan, StepPlan
from s2sft_fairseq.modules.visibility import AttentionBlock, PackedColumns, attention_blocks


def relative_row(distance: int, furthest: int, buckets: int) -> int:
    """Return the row of a distance, position of the query minus position of the key.

    Args:
        distance: any distance.
        furthest: distances of at least this share the last row of their side.
        buckets: number of rows of each side; the nearer half have one distance each, the others grow logarithmically.
            0: every distance has its own row.
    """
    span, exact, magnitude = buckets or furthest, buckets // 2, abs(distance)
    if buckets and magnitude > exact:
        share = math.log(magnitude / exact) / math.log((furthest - 1) / exact)
        magnitude = exact + math.ceil(share * (exact - 1))
    signed = magnitude if distance > 0 else -magnitude
    return min(max(span + signed, 0), 2 * span - 1)


class RelativeEmbeddings(nn.Module):
    """The table of relative positions (R, H) that all layers share, optionally with a layer norm."""

    def __init__(
        self, embed_dim: int, *, furthest: int, buckets: int, layer_norm_eps: float | None, bias: bool = True
    ) -> None:
        """Create the table. It has no layer norm if ``layer_norm_eps`` is None."""
        super().__init__()
        self.furthest, self.buckets = furthest, buckets
        self.embedding = nn.Embedding(2 * (buckets or furthest), embed_dim)
        self.layer_norm = None if layer_norm_eps is None else nn.LayerNorm(embed_dim, eps=layer_norm_eps, bias=bias)
        rows = [relative_row(distance, furthest, buckets) for distance in range(-furthest, furthest + 1)]
        self.row_of_distance: Tensor
        self.register_buffer("row_of_distance", torch.tensor(rows), persistent=False)

    def forward(self) -> Tensor:
        """Return the table (R, H) that the layers project."""
        table: Tensor = self.embedding.weight
        return table if self.layer_norm is None else self.layer_norm(table)

    def rows(self, query_positions: Tensor, key_positions: Tensor) -> Tensor:
        """Return the row of each pair of query and key.

        Shape:
            (..., Q), (..., K) -> (..., Q, K).
        """
        distance = query_positions.unsqueeze(-1) - key_positions.unsqueeze(-2)
        return self.row_of_distance[distance.clamp_(-self.furthest, self.furthest) + self.furthest]

    def fold_layer_norm(self) -> None:
        """Apply the layer norm to the table once, for inference; in place."""
        self.embedding.weight.data = self().detach()
        self.layer_norm = None


class DisentangledPattern(AttentionPattern):
    """The pattern of a layer with disentangled attention, which attends block by block on every device."""

    def packed(self, columns: PackedColumns, *, relative: Any, dtype: torch.dtype, kind: str = "loop") -> PackedPlan:
        """Plan a packed batch as :meth:`AttentionPattern.packed` does; ``relative`` is the table."""
        positions = columns.positions
        blocks = [
            block._replace(rows=relative.rows(positions[block.queries], positions[block.keys]))
            for block in attention_blocks(columns, window=self.window, dtype=dtype)
        ]
        return PackedPlan(blocks, None, table=relative())

    def step(
        self,
        state: IncrementalState,
        seen: Tensor,
        positions: Tensor,
        slots: slice | Tensor,
        *,
        relative: Any,
        dtype: torch.dtype,
    ) -> StepPlan:
        """Plan a step of decoding as :meth:`AttentionPattern.step` does; ``relative`` is the table."""
        plan = super().step(state, seen, positions, slots, relative=None, dtype=dtype)
        # Tokens of different hypotheses at the same position are neighbors: compute their rows once.
        distinct = positions[:, :: state.hypotheses]
        rows = relative.rows(distinct, state.positions[:, : seen.size(-1)])
        return plan._replace(table=relative(), rows=rows)


class DisentangledAttention(MultiFlowAttention):
    """Multi-head self-attention that adds products with relative positions to the scores.

    All scores are divided by the square root of ``d`` times the number of products.
    """

    def __init__(
        self,
        *,
        embed_dim: int,
        num_heads: int,
        dropout: float,
        bias: bool,
        terms: Collection[str],
        shared: bool,
        table_dropout: float,
    ) -> None:
        """Build the layer.

        Args:
            embed_dim: width, H.
            num_heads: number of heads, h.
            dropout: dropout of the attention weights.
            bias: whether projections have biases.
            terms: ``c2p``, ``p2c`` or both.
            shared: whether the matrices of the content's keys and queries also project the table.
            table_dropout: dropout of the table.
        """
        super().__init__(embed_dim=embed_dim, num_heads=num_heads, dropout=dropout, bias=bias)
        self.terms, self.shared = frozenset(terms), shared
        # Attention divides scores by the square root of d. This factor of the queries, also the table's, is the rest.
        self.query_scale = (1 + len(self.terms)) ** -0.5
        own = frozenset() if shared else self.terms
        self.position_key = Linear(embed_dim, embed_dim, bias=bias) if "c2p" in own else None
        self.position_query = Linear(embed_dim, embed_dim, bias=bias) if "p2c" in own else None
        self.table_dropout = Dropout(table_dropout)
        self.kept: tuple[Tensor | None, Tensor | None] | None = None

    def project(self, x: Tensor, rotation: Any) -> Tensor:
        """Project (..., H) to queries, divided by the square root of the number of products, keys and values."""
        query, others = super().project(x, rotation).split((1, 2), dim=-3)
        return torch.cat([query * self.query_scale, others], dim=-3)

    def keep_projected(self, table: Tensor) -> None:
        """Project the table (R, H) once, and keep the result for inference."""
        self.kept = self._projected(table.detach())

    def biased_blocks(self, projected: Tensor, plan: PackedPlan) -> list[AttentionBlock]:
        """Return the blocks of a plan, and add the products with relative positions to their biases."""
        # (T, 3, h, d) -> three times (h, T, d)
        query, key, _ = projected.permute(1, 2, 0, 3).unbind(0)
        query = query if plan.at is None else query[:, plan.at]
        position_key, position_query = self._of_table(plan.table)
        blocks = []
        for block in super().biased_blocks(projected, plan):
            assert block.rows is not None
            terms = []
            if position_key is not None:
                # (h, Q, R), looked up -> (h, Q, K)
                terms.append(_at_rows(query[:, block.queries] @ _by_head(position_key), block.rows))
            if position_query is not None:
                # (h, K, R), looked up -> (h, K, Q) -> (h, Q, K)
                terms.append(_at_rows(key[:, block.keys] @ _by_head(position_query), block.rows.mT).mT)
            bias = functools.reduce(torch.add, terms) / math.sqrt(query.size(-1))
            blocks.append(block._replace(bias=bias if block.bias is None else bias + block.bias))
        return blocks

    def step_bias(self, query: Tensor, key: Tensor, plan: StepPlan) -> Tensor:
        """Return the bias that is added to the scores of a step; see :meth:`MultiFlowAttention.step_bias`."""
        assert plan.rows is not None
        position_key, position_query = self._of_table(plan.table)
        rows, queries = plan.rows, query.size(2)
        hypotheses = plan.bias.size(2) // rows.size(1)
        terms = []
        if position_key is not None:
            # (N, h, A, R), looked up -> (N, h, A, S)
            of_all = rows.repeat_interleave(hypotheses, dim=1)[:, -queries:]
            terms.append(_at_rows(torch.einsum("nhad,rhd->nhar", query, position_key), of_all))
        if position_query is not None:
            # One position at a time, because there are fewer positions than rows: (N, S, H) -> (N, h, S, d), times the
            # keys, summed -> (N, h, S); for all positions (N, h, positions, S)
            looked_up = (nn.functional.embedding(each, position_query.flatten(1)) for each in rows.unbind(1))
            products = [(key * each.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)).sum(-1) for each in looked_up]
            of_positions = torch.stack(products, dim=2)
            terms.append(of_positions.repeat_interleave(hypotheses, dim=2)[:, :, -queries:])
        return functools.reduce(torch.add, terms) / math.sqrt(query.size(-1)) + super().step_bias(query, key, plan)

    def _of_table(self, table: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Return keys and queries of the relative positions (R, h, d); None for a product that is not used."""
        return self.kept or self._projected(table)

    def _projected(self, table: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        assert table is not None
        table = self.table_dropout(table)
        if self.shared:
            query, key, _ = self.project(table, None).unbind(-3)
            return key if "c2p" in self.terms else None, query if "p2c" in self.terms else None
        # (R, H) -> (R, h, d)
        of_keys = None if self.position_key is None else self.position_key(table).unflatten(-1, (self.num_heads, -1))
        if self.position_query is None:
            return of_keys, None
        return of_keys, self.position_query(table).unflatten(-1, (self.num_heads, -1)) * self.query_scale


def _by_head(of_table: Tensor) -> Tensor:
    # (R, h, d) -> (h, d, R)
    return of_table.permute(1, 2, 0)


def _at_rows(products: Tensor, rows: Tensor) -> Tensor:
    """Select from products with all rows (..., h, Q, R) the row of each pair (..., Q, K), -> (..., h, Q, K)."""
    return products.gather(-1, rows.unsqueeze(-3).expand(*products.shape[:-1], rows.size(-1)))
