"""Attention over a packed batch: block by block, or in one call of FlexAttention.

Block by block, no scores are computed between examples or for padding. FlexAttention (Dong et al., 2024, arXiv
2412.05496), for CUDA, takes the visibility rule as its ``mask_mod`` and skips each tile of scores in which nothing is
visible, so that packed examples cost no more than separate ones. It has no dropout.

T: tokens of the batch, h: heads, d: width of a head, Q, K: queries and keys of a tile.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from s2sft_fairseq.modules.dropout import draw_kept, kept_again
from s2sft_fairseq.modules.matmul import operand_type
from s2sft_fairseq.modules.upload import upload
from s2sft_fairseq.modules.visibility import AttentionBlock, PackedColumns, is_near, sees

softmax_gradient = torch.ops.aten._softmax_backward_data.out

TILE = 1 << 22
"""Number of scores in a tile, over all heads, so that they fit into the cache."""


def packed_attention(
    qkv: Tensor, blocks: Sequence[AttentionBlock], dropout: float = 0.0, *, at: Tensor | None = None
) -> Tensor:
    """Attend within the blocks.

    Args:
        qkv: queries, keys and values (T, 3, h, d).
        blocks: blocks that have each query once.
        dropout: dropout of the attention weights.
        at: indices of the tokens that attend (N,); the queries of the blocks are slices of these. None: all T.

    Returns:
        (N, h, d).
    """
    if torch.is_grad_enabled() and qkv.device.type == "cpu":
        biases = [block.bias for block in blocks]
        if qkv.requires_grad or any(bias is not None and bias.requires_grad for bias in biases):
            in_tiles: Tensor = _TiledAttention.apply(qkv, blocks, dropout, at, *biases)
            return in_tiles
    if not blocks:
        return qkv[:0, 0]
    query, key, value = _by_head(qkv).unsqueeze(1).unbind(0)
    if at is not None:
        query = query[:, :, at]
    attended = [
        scaled_dot_product_attention(
            query[:, :, block.queries],
            key[:, :, block.keys],
            value[:, :, block.keys],
            attn_mask=None if block.bias is None else block.bias.unsqueeze(0),
            dropout_p=dropout,
        )
        for block in blocks
    ]
    # (1, h, N, d) -> (N, h, d)
    return torch.cat(attended, dim=2).squeeze(0).transpose(0, 1)


def _by_head(qkv: Tensor) -> Tensor:
    # (T, 3, h, d) -> (3, h, T, d)
    return qkv.permute(1, 2, 0, 3)


class _TiledAttention(torch.autograd.Function):
    """The same attention tile by tile, for training on CPUs, with a backward pass of its own.

    On CPUs PyTorch has no fast attention with dropout or with the gradient of a bias, and autograd would allocate a
    gradient of the whole batch for each slice. The backward pass recomputes the weights (FlashAttention, section 3.1);
    only one bit for each is kept, which tells whether it was dropped.
    """

    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        blocks: Sequence[AttentionBlock],
        dropout: float,
        at: Tensor | None,
        *biases: Tensor | None,
    ) -> Tensor:
        dtype = operand_type(qkv)
        query, key, value = _factors(qkv, dtype, at)
        attended = qkv.new_empty(query.size(1), *qkv.shape[2:])
        by_head = attended.transpose(0, 1)
        tiles, bits = _Tiles(query, key, blocks, biases, qkv.dtype), []
        for tile, weights in tiles:
            if dropout:
                kept, of_tile = draw_kept(weights.shape, dropout, dtype)
                weights = weights.to(dtype).mul_(kept)
                bits.append(of_tile)
            _multiply(weights, value[:, tile.keys], out=by_head[:, tile.queries])
        if dropout:
            # Scale here, where there are fewer numbers: d for each query, not K.
            attended.mul_(1 / (1 - dropout))
        ctx.blocks, ctx.dropout, ctx.dtype = blocks, dropout, dtype
        ctx.save_for_backward(qkv, at, *biases, *bits)
        return attended

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        qkv, at, *others = ctx.saved_tensors
        biases, bits = others[: len(ctx.blocks)], others[len(ctx.blocks) :]
        query, key, value = _factors(qkv, ctx.dtype, at)
        qkv_gradient = torch.zeros_like(qkv)
        query_gradient, key_gradient, value_gradient = _by_head(qkv_gradient)
        if at is not None:
            query_gradient = torch.empty_like(query, dtype=qkv.dtype)
        bias_gradients = [
            torch.empty_like(bias) if needed else None
            for bias, needed in zip(biases, ctx.needs_input_grad[4:], strict=True)
        ]
        gradient = (gradient / (1 - ctx.dropout)).transpose(0, 1).to(ctx.dtype)
        tiles = _Tiles(query, key, ctx.blocks, biases, qkv.dtype)
        for number, (tile, weights) in enumerate(tiles):
            queries, keys, outer = tile.queries, tile.keys, gradient[:, tile.queries]
            scores = tiles.scratch(weights.shape)
            product = torch.bmm(
                outer, value[:, keys].transpose(1, 2), out=scores if ctx.dtype == scores.dtype else None
            )
            dropped = weights.to(ctx.dtype)
            if bits:
                kept = kept_again(bits[number], weights.shape, ctx.dtype)
                product.mul_(kept)
                dropped = kept.mul_(dropped)
            value_gradient[:, keys] += torch.bmm(dropped.transpose(1, 2), outer)
            if product is not scores:
                scores.copy_(product)
            softmax_gradient(scores, weights, -1, scores.dtype, grad_input=scores)
            bias_gradient = bias_gradients[tile.block]
            if bias_gradient is not None:
                # The gradient of a bias that all heads share is the sum over heads.
                bias_gradient[:, tile.rows] = scores.sum_to_size(len(bias_gradient), *scores.shape[1:])
            factor = scores.to(ctx.dtype)
            _multiply(factor, key[:, keys], out=query_gradient[:, queries])
            key_gradient[:, keys] += torch.bmm(factor.transpose(1, 2), query[:, queries])
        # Scale here, where there are fewer numbers than in the tiles.
        query_gradient.mul_(tiles.scale)
        key_gradient.mul_(tiles.scale)
        if at is not None:
            qkv_gradient[at, 0] = query_gradient.transpose(0, 1)
        return qkv_gradient, None, None, None, *bias_gradients


def _factors(qkv: Tensor, dtype: torch.dtype, at: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries (h, N, d), keys and values (h, T, d), in the data type that they are multiplied in."""
    by_head = _by_head(qkv)
    if dtype != qkv.dtype:
        by_head = by_head.to(dtype, memory_format=torch.contiguous_format)
    query, key, value = by_head
    return query if at is None else query[:, at], key, value


def _multiply(a: Tensor, b: Tensor, *, out: Tensor) -> None:
    """Multiply (h, M, K) with (h, K, N), in the data type of ``b``."""
    if b.dtype == out.dtype:
        torch.bmm(a, b, out=out)
    else:
        out.copy_(torch.bmm(a.to(b.dtype), b))


class _Tile(NamedTuple):
    queries: slice
    keys: slice | Tensor
    block: int
    rows: slice
    """Rows of the block's bias."""


class _Tiles:
    """The attention weights of a batch, tile by tile, in buffers that all tiles share."""

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        blocks: Sequence[AttentionBlock],
        biases: Sequence[Tensor | None],
        dtype: torch.dtype,
    ) -> None:
        """Take queries (h, N, d) and keys (h, T, d), and the data type of the weights, which may be wider."""
        self.query, self.key, self.biases = query, key, biases
        self.scale = 1 / math.sqrt(query.size(-1))
        heads = len(query)
        self.tiles = list(_cut(blocks, max(1, TILE // heads)))
        sizes = [heads * (tile.queries.stop - tile.queries.start) * blocks[tile.block].num_keys for tile in self.tiles]
        self._no_bias = query.new_zeros(1, dtype=dtype)
        self._buffers = query.new_empty(2, max(sizes, default=0), dtype=dtype)

    def __iter__(self) -> Iterator[tuple[_Tile, Tensor]]:
        """Yield each tile with its weights (h, Q, K), which the next tile overwrites."""
        for tile in self.tiles:
            query, key = self.query[:, tile.queries], self.key[:, tile.keys].transpose(1, 2)
            shape = (len(query), query.size(1), key.size(2))
            scores, weights = self.scratch(shape), self._view(1, shape)
            bias = self.biases[tile.block]
            bias = self._no_bias if bias is None else bias[:, tile.rows]
            if query.dtype != scores.dtype:
                # Two steps: torch.add of two data types is not vectorized.
                scores.copy_(torch.bmm(query, key))
                torch.add(bias, scores, alpha=self.scale, out=scores)
            else:
                # beta=0 ignores the contents of the buffer.
                torch.baddbmm(scores, query, key, beta=0, alpha=self.scale, out=scores)
                if bias is not self._no_bias:
                    scores.add_(bias)
            torch.softmax(scores, dim=-1, out=weights)
            yield tile, weights

    def scratch(self, shape: Sequence[int]) -> Tensor:
        """Return a buffer that is free to use until the next tile."""
        return self._view(0, shape)

    def _view(self, buffer: int, shape: Sequence[int]) -> Tensor:
        return self._buffers[buffer, : math.prod(shape)].view(*shape)


def _cut(blocks: Sequence[AttentionBlock], scores: int) -> Iterator[_Tile]:
    """Cut the queries of each block into tiles of at most ``scores`` scores of one head, or of one query."""
    for index, block in enumerate(blocks):
        queries = block.queries
        count = queries.stop - queries.start
        most = max(1, scores // block.num_keys)
        size = -(-count // -(-count // most))
        for start in range(queries.start, queries.stop, size):
            stop = min(start + size, queries.stop)
            yield _Tile(slice(start, stop), block.keys, index, slice(start - queries.start, stop - queries.start))


def flex_mask(columns: PackedColumns, *, window: int = 0) -> BlockMask:
    """Compute the mask of FlexAttention, once for all layers with the same pattern.

    Args:
        columns: the columns of the batch.
        window: window of local attention; 0: no window.
    """
    positions, steps, groups = columns.positions, columns.steps, columns.groups
    lengths = upload([sum(blocks) for blocks in columns.lengths], positions.device)
    examples = torch.arange(len(lengths), device=positions.device)
    examples = examples.repeat_interleave(lengths, output_size=len(positions))

    def is_seen(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        seen = sees(steps[query], groups[query], steps[key], groups[key])
        if window:
            seen = seen & is_near(positions[query], positions[key], window)
        return seen & (examples[query] == examples[key])

    make = _on(positions.device, create_block_mask)
    mask: BlockMask = make(is_seen, None, None, len(positions), len(positions), positions.device)
    return mask


def flexible_attention(qkv: Tensor, mask: BlockMask) -> Tensor:
    """Attend from every token to what it sees.

    Shape:
        qkv (T, 3, h, d) -> (T, h, d).
    """
    # (T, 3, h, d) -> three times (1, h, T, d)
    query, key, value = qkv.permute(1, 2, 0, 3).unsqueeze(1).unbind(0)
    attended: Tensor = _on(qkv.device, flex_attention)(query, key, value, block_mask=mask)
    # (1, h, T, d) -> (T, h, d)
    return attended.squeeze(0).transpose(0, 1)


def _on(device: torch.device, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of FlexAttention, compiled on GPUs: otherwise it would compute all scores."""
    return _compiled(function) if device.type == "cuda" else function


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=True)
