"""The encoder-decoder DeltaLM: fairseq's Transformer with an interleaved decoder, initialized from encoder layers.

The types of options are written ``Optional[...]``: fairseq builds the command line from them and supports no other
spelling.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

from fairseq.data import Dictionary
from fairseq.dataclass import ChoiceEnum
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import register_model
from fairseq.models.transformer import (
    TransformerConfig,
    TransformerDecoderBase,
    TransformerEncoderBase,
    TransformerModelBase,
)
from fairseq.modules import LayerNorm
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase
from fairseq.tasks import FairseqTask
from torch import Tensor, nn

from s2sft_fairseq.checkpoints.deltalm import TOKENS
from s2sft_fairseq.checkpoints.finite_weights import check_half_precision
from s2sft_fairseq.errors import UserError, as_option
from s2sft_fairseq.models.deltalm_start import open_start
from s2sft_fairseq.models.model_options import TransformerOptions, common_problems, default_sizes, size
from s2sft_fairseq.models.pretrained_checkpoint import check_fit
from s2sft_fairseq.modules.matmul import speed_up, use_matmul
from s2sft_fairseq.optim.fused_adamw import exempt_from_decay
from s2sft_fairseq.runtime.gpu import choose_precision

_FAIRSEQ_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_accurate", "relu": "relu"}


class InterleavedDecoderLayer(TransformerDecoderLayerBase):
    """Self-attention, feed-forward network, cross-attention, feed-forward network.

    The layer corresponds to two encoder layers; the second one attends to the source. A layer norm follows each of the
    four parts, as in BERT. The names are those of the official plugin: ``fc3``, ``fc4`` and ``ffn_layer_norm`` are the
    lower feed-forward network, ``fc1``, ``fc2`` and ``final_layer_norm`` the upper one.

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
        """Run the layer; the arguments are those of fairseq's decoder layers.

        Args:
            x: states of the target (T, B, H).
            encoder_out: states of the source (S, B, H).
            encoder_padding_mask: true at the padding of the source (B, S).
            incremental_state: keys and values of earlier steps; ``x`` then has only the newest position.
            self_attn_mask: added to the scores of the self-attention (T, T).
            self_attn_padding_mask: true at the padding of the target (B, T).
            need_attn: whether to return the weights of the cross-attention. Training never returns them; generation
                needs them only to print alignments.
            need_head_weights: the same as ``need_attn``.

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
        x = self.dropout_module(outer(x))
        return x


@dataclass
class DeltaLMConfig(TransformerOptions):
    """The further options of an encoder-decoder.

    The decoder has the width, heads and feed-forward networks of the encoder: its layers start from encoder layers.
    """

    decoder_layers: Optional[int] = size(None, "layers of the decoder (default: half of those of the encoder)", least=1)
    layernorm_embedding: Optional[ChoiceEnum(["yes", "no"])] = size(  # type: ignore[valid-type]
        "yes", "a layer norm behind the embeddings, as in XLM-R and DeltaLM base (default: yes)"
    )


SIZES = default_sizes(DeltaLMConfig) | {"encoder_attention_heads": None, "layer_norm_eps": 1e-5}


def complete_sizes(cfg: DeltaLMConfig, known: Mapping[str, Any], suggested: Mapping[str, Any]) -> None:
    """Fill every size that is not given.

    Args:
        cfg: the options.
        known: sizes of the checkpoint that the model starts from; options must not contradict them.
        suggested: further sizes of that checkpoint; options may contradict them.

    Raises:
        UserError: naming every size that contradicts the checkpoint or another size.
    """
    problems = [
        f"{as_option(name)} is {given}, but {cfg.pretrained} has {value}"
        for name, value in known.items()
        if (given := getattr(cfg, name)) is not None and given != value
    ]
    for name, default in SIZES.items():
        if getattr(cfg, name) is None:
            setattr(cfg, name, known.get(name, suggested.get(name, default)))
    if cfg.attention_dropout is None:
        cfg.attention_dropout = 0.0
    if cfg.decoder_layers is None:
        cfg.decoder_layers = max(1, cfg.encoder_layers // 2)
    if cfg.encoder_attention_heads is None:
        cfg.encoder_attention_heads = max(1, cfg.encoder_embed_dim // 64)
    problems += common_problems(DeltaLMConfig, cfg)
    if str(cfg.activation_fn) == "silu":
        problems.append(f"--activation-fn must be one of {', '.join(_FAIRSEQ_ACTIVATIONS)} of a deltalm, but is silu")
    if problems:
        raise UserError.of(problems)


class DeltaLMDecoder(TransformerDecoderBase):
    """fairseq's decoder with interleaved layers."""

    def build_decoder_layer(self, cfg: TransformerConfig, no_encoder_attn: bool = False) -> nn.Module:
        """Build a layer."""
        layer: nn.Module = InterleavedDecoderLayer(cfg)
        if cfg.checkpoint_activations:
            layer = checkpoint_wrapper(layer)
        return layer


@register_model("deltalm", dataclass=DeltaLMConfig)
class DeltaLMModel(TransformerModelBase):
    """An encoder like that of XLM-R, and the interleaved decoder; source, target and output share one embedding."""

    def __init__(self, cfg: TransformerConfig, encoder: TransformerEncoderBase, decoder: DeltaLMDecoder) -> None:
        super().__init__(cfg, encoder, decoder)
        # No decay of biases and layer norms, as in the training of the encoder.
        exempt_from_decay(parameter for parameter in self.parameters() if parameter.ndim == 1)

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add the options of this model in place of the options of fairseq's Transformer."""
        gen_parser_from_dataclass(parser, DeltaLMConfig())

    @classmethod
    def build_model(cls, cfg: DeltaLMConfig, task: FairseqTask) -> "DeltaLMModel":
        """Build the model, from ``--pretrained`` if that is given.

        The sizes are written into ``cfg`` and ``--pretrained`` is removed from it, so that the checkpoints of this run
        do not need the folder or file that it names.

        Raises:
            UserError: if sizes, dictionaries and the checkpoint that the model starts from do not match.
        """
        dictionary = task.target_dictionary
        if task.source_dictionary.symbols != dictionary.symbols:
            raise UserError(
                f"source and target must share one dictionary, but have {len(task.source_dictionary)} and "
                f"{len(dictionary)} symbols: binarize the data with --joined-dictionary"
            )
        start = open_start(cfg.pretrained, dictionary) if cfg.pretrained else None
        complete_sizes(cfg, start.known if start else {}, start.suggested if start else {})
        if start is not None and start.is_encoder and 2 * cfg.decoder_layers > cfg.encoder_layers:
            raise UserError(
                f"--decoder-layers must be at most half of the encoder's layers ({cfg.encoder_layers}), because each "
                f"decoder layer starts from two, but is {cfg.decoder_layers}"
            )
        model: DeltaLMModel = super().build_model(transformer_config(cfg), task)
        for module in model.modules():
            if type(module).__name__.endswith("LayerNorm"):  # PyTorch's, or NVIDIA's
                module.eps = cfg.layer_norm_eps
        use_matmul(str(getattr(cfg, "matmul", "auto")))
        speed_up(model)
        model.has_random_weights = start is None  # until a checkpoint is loaded
        if start is not None:
            start.load_into(model, cfg.decoder_layers)
            cfg.pretrained = None
        model.settled_options = {name: getattr(cfg, name) for name in ("pretrained", "attention_dropout", *SIZES)}
        return model

    @classmethod
    def build_encoder(
        cls, cfg: TransformerConfig, src_dict: Dictionary, embed_tokens: nn.Embedding
    ) -> TransformerEncoderBase:
        """Build the encoder."""
        return TransformerEncoderBase(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, cfg: TransformerConfig, tgt_dict: Dictionary, embed_tokens: nn.Embedding) -> DeltaLMDecoder:
        """Build the decoder."""
        return DeltaLMDecoder(cfg, tgt_dict, embed_tokens)

    def prepare_for_inference_(self, cfg: Any) -> None:
        """Prepare the model for decoding; fairseq calls this after loading.

        Raises:
            UserError: if weights overflowed in float16, or options contradict each other.
        """
        choose_precision(cfg)
        check_half_precision(self)
        if cfg.common.bf16:
            self.bfloat16()
        super().prepare_for_inference_(cfg)

    def share_source_keys(self, beam_size: int) -> None:
        """In a search, share the keys and values of the source between all hypotheses of a sentence.

        Args:
            beam_size: number of hypotheses of a sentence, which are consecutive in the batch; 1 outside of a search.
        """
        self.decoder.set_beam_size(beam_size)

    def load_state_dict(
        self, state_dict: dict[str, Tensor], strict: bool = True, model_cfg: Any = None, args: Any = None
    ) -> Any:
        """Load weights.

        Raises:
            UserError: if dictionary and checkpoint have different numbers of symbols, naming both; otherwise naming
                every parameter that is missing, unknown or of another shape.
        """
        if strict:
            self.upgrade_state_dict(state_dict)
            check_fit({name: value.shape for name, value in self.state_dict().items()}, state_dict, TOKENS)
        return super().load_state_dict(state_dict, strict=strict, model_cfg=model_cfg, args=args)


def transformer_config(cfg: DeltaLMConfig) -> TransformerConfig:
    """Return the options of fairseq's Transformer. All sizes of ``cfg`` must be filled."""
    sides = {
        f"{side}_{name}": value
        for side, layers in (("encoder", cfg.encoder_layers), ("decoder", cfg.decoder_layers))
        for name, value in (
            ("layers", layers),
            ("embed_dim", cfg.encoder_embed_dim),
            ("ffn_embed_dim", cfg.encoder_ffn_embed_dim),
            ("attention_heads", cfg.encoder_attention_heads),
            ("learned_pos", True),
            ("normalize_before", False),
        )
    }
    options = Namespace(
        **sides,
        decoder_input_dim=cfg.encoder_embed_dim,
        decoder_output_dim=cfg.encoder_embed_dim,
        max_source_positions=cfg.max_positions,
        max_target_positions=cfg.max_positions,
        activation_fn=_FAIRSEQ_ACTIVATIONS[str(cfg.activation_fn)],
        layernorm_embedding=str(cfg.layernorm_embedding) == "yes",
        no_scale_embedding=True,
        share_all_embeddings=True,
        dropout=cfg.dropout,
        attention_dropout=cfg.attention_dropout,
        activation_dropout=cfg.activation_dropout,
        checkpoint_activations=cfg.checkpoint_activations,
    )
    return TransformerConfig.from_namespace(options)
