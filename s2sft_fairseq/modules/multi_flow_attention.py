"""Self-attention of a packed sequence: context, content and placeholder flows in one pass, and its incremental form."""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from s2sft_fairseq.modules.attention_pattern import PackedPlan, StepPlan
from s2sft_fairseq.modules.incremental_state import LayerCache
from s2sft_fairseq.modules.rotary_position import Rotation, rotate


class MultiFlowAttention(nn.Module):
    """Multi-head self-attention whose flows share all weights.

    B: examples, L: packed positions, H: width, h: heads, d: width of a head (H / h).
    """

    def __init__(self, *, embed_dim: int, num_heads: int, dropout: float, bias: bool = True) -> None:
        super().__init__()
        self.num_heads, self.dropout = num_heads, dropout
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim, bias=bias)
        self.output = nn.Linear(embed_dim, embed_dim, bias=bias)

    def forward(self, x: Tensor, plan: PackedPlan) -> Tensor:
        """Attend block by block, so that no score is computed for a key of a later block.

        Shape:
            x (B, L, H) -> (B, L, H).
        """
        query, key, value = self._project(x, plan.rotation)
        # Cut by split() and merged before they are joined: slicing and joining by hand would copy everything once more.
        queries = query.split([block.end - block.start for block in plan.blocks], dim=2)
        attended = [
            scaled_dot_product_attention(
                block_query,
                _prefix(key, block.end),
                _prefix(value, block.end),
                attn_mask=block.bias,
                dropout_p=self.dropout if self.training else 0.0,
            )
            for block_query, block in zip(queries, plan.blocks, strict=True)
        ]
        return self.output(torch.cat([_merge_heads(states) for states in attended], dim=1))

    def prefill(self, x: Tensor, plan: PackedPlan, cache: LayerCache) -> Tensor:
        """Attend within the context and keep its keys and values.

        Shape:
            x (N, S, H) -> (N, S, H). N: sentences, S: source positions.
        """
        query, key, value = self._project(x, plan.rotation)
        cache.store_source(key, value)
        (block,) = plan.blocks
        return self.output(_merge_heads(scaled_dot_product_attention(query, key, value, attn_mask=block.bias)))

    def step(self, x: Tensor, plan: StepPlan, cache: LayerCache, num_cached: int) -> Tensor:
        """Attend from the newest tokens to the source and to what was generated.

        The keys and values of a placeholder, which comes last, stand in the cache only until the next step writes over
        them.

        Args:
            x: states of the new tokens (N * K, Q, H). N: sentences, K: beams, Q: new tokens.
            plan: what is added to the scores, and the turn of the new tokens.
            cache: keys, turned already, and values of this layer.
            num_cached: generated tokens whose keys and values are kept already.

        Returns:
            (N * K, Q, H).
        """
        query, key, value = self._project(x, plan.rotation)
        rows, _, _, head_dim = query.shape
        generated_key, generated_value = cache.append(key, value, num_cached)
        sentences = cache.source_key.size(0)
        beams = rows // sentences

        # (N*K, h, Q, d) -> (N, h, K*Q, d): all beams of a sentence meet its source in one product
        by_sentence = _regroup(query * head_dim**-0.5, sentences)
        source_scores = by_sentence @ cache.source_key.transpose(-1, -2) + plan.source_bias
        # (N, h, K*Q, S) -> (N*K, h, Q, S)
        source_scores = _ungroup(source_scores, beams)
        generated_scores = (query * head_dim**-0.5) @ generated_key.transpose(-1, -2)
        if plan.generated_bias is not None:
            generated_scores = generated_scores + plan.generated_bias
        scores = torch.cat([source_scores, generated_scores], dim=-1)
        weights = scores.float().softmax(dim=-1).to(scores.dtype)
        num_source = cache.source_key.size(2)
        from_source = _regroup(weights[..., :num_source], sentences) @ cache.source_value
        attended = _ungroup(from_source, beams) + weights[..., num_source:] @ generated_value
        return self.output(_merge_heads(attended))

    def _project(self, x: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        """Project to queries, keys and values, each (B, h, L, d), the first two turned to their positions."""
        # (B, L, 3H) -> (B, L, 3, h, d) -> (3, B, h, L, d)
        projected = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = projected.unbind(0)
        if rotation is not None:
            query, key = rotate(projected[:2], rotation).unbind(0)
        return query, key, value


def _prefix(x: Tensor, length: int) -> Tensor:
    """Return the first positions (B, h, length, d); all of them as they are, for even a whole slice costs a copy."""
    return x if length == x.size(2) else x[:, :, :length]


def _merge_heads(x: Tensor) -> Tensor:
    # (B, h, L, d) -> (B, L, h, d) -> (B, L, H)
    return x.transpose(1, 2).flatten(2)


def _regroup(x: Tensor, sentences: int) -> Tensor:
    # (N*K, h, Q, x) -> (N, K, h, Q, x) -> (N, h, K, Q, x) -> (N, h, K*Q, x)
    return x.unflatten(0, (sentences, -1)).transpose(1, 2).flatten(2, 3)


def _ungroup(x: Tensor, beams: int) -> Tensor:
    # (N, h, K*Q, x) -> (N, h, K, Q, x) -> (N, K, h, Q, x) -> (N*K, h, Q, x)
    return x.unflatten(2, (beams, -1)).transpose(1, 2).flatten(0, 1)
