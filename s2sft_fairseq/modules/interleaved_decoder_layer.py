"""The decoder layer of DeltaLM (section 2.2 of the paper, Figure 2b)."""

from fairseq.models.transformer import TransformerConfig
from fairseq.modules import LayerNorm
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase
from torch import Tensor, nn


class InterleavedDecoderLayer(TransformerDecoderLayerBase):
    """Self-attention, feed-forward network, cross-attention, feed-forward network: two encoder layers, one behind the
    other, of which the second one attends to the source.

    A layer norm follows each of the four, as in BERT. The names are those of the official plugin: ``fc3``, ``fc4`` and
    ``ffn_layer_norm`` are the lower feed-forward network, ``fc1``, ``fc2`` and ``final_layer_norm`` the upper one.

    Shape:
        B: sentences, S: source positions, T: target positions, H: width.
    """

    def __init__(self, cfg: TransformerConfig) -> None:
        super().__init__(cfg)
        width, ffn_width = cfg.decoder.embed_dim, cfg.decoder.ffn_embed_dim
        self.fc3 = self.build_fc1(width, ffn_width, self.quant_noise, self.quant_noise_block_size)
        self.fc4 = self.build_fc2(ffn_width, width, self.quant_noise, self.quant_noise_block_size)
        self.ffn_layer_norm = LayerNorm(width, export=cfg.export)

    def forward(
        self,
        x: Tensor,
        encoder_out: Tensor | None = None,
        encoder_padding_mask: Tensor | None = None,
        incremental_state: dict[str, dict[str, Tensor | None]] | None = None,
        self_attn_mask: Tensor | None = None,
        self_attn_padding_mask: Tensor | None = None,
        need_attn: bool = False,
        need_head_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None, None]:
        """Run the layer; fairseq's decoder calls it as it calls its own.

        Args:
            x: the target's states (T, B, H).
            encoder_out: the source's states (S, B, H).
            encoder_padding_mask: true at its padding (B, S).
            incremental_state: keys and values of the steps before; ``x`` is then the newest position alone.
            self_attn_mask: added to the scores of the self-attention (T, T).
            self_attn_padding_mask: true at the target's padding (B, T).
            need_attn: and ``need_head_weights``: whether to return the weights of the cross-attention; a training needs
                them in no case, and a generation when it prints alignments only.

        Returns:
            States (T, B, H); the weights of each head (heads, B, T, S), or None; and None.
        """
        attended, _ = self.self_attn(
            query=x,
            key=x,
            value=x,
            key_padding_mask=self_attn_padding_mask,
            incremental_state=incremental_state,
            need_weights=False,
            attn_mask=self_attn_mask,
        )
        x = self.self_attn_layer_norm(x + self.dropout_module(attended))
        x = self.ffn_layer_norm(x + self._feed_forward(x, self.fc3, self.fc4))
        need_weights = (need_attn or need_head_weights) and self.need_attn and not self.training
        attended, weights = self.encoder_attn(
            query=x,
            key=encoder_out,
            value=encoder_out,
            key_padding_mask=encoder_padding_mask,
            incremental_state=incremental_state,
            static_kv=True,
            need_weights=need_weights,
            need_head_weights=need_weights,
        )
        x = self.encoder_attn_layer_norm(x + self.dropout_module(attended))
        x = self.final_layer_norm(x + self._feed_forward(x, self.fc1, self.fc2))
        return x, weights if need_weights else None, None

    def _feed_forward(self, x: Tensor, inner: nn.Module, outer: nn.Module) -> Tensor:
        x = self.activation_dropout_module(self.activation_fn(inner(x)))
        return self.dropout_module(outer(x))
