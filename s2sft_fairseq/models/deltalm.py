"""The encoder-decoder DeltaLM: fairseq's Transformer, with a decoder whose layers are those of an encoder."""

from argparse import ArgumentParser, Namespace
from functools import partial
from typing import Any

from fairseq.data import Dictionary
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.distributed import fsdp_wrap
from fairseq.models import register_model, register_model_architecture
from fairseq.models.transformer import (
    TransformerConfig,
    TransformerDecoderBase,
    TransformerEncoderBase,
    TransformerModelBase,
)
from fairseq.modules.checkpoint_activations import checkpoint_wrapper
from fairseq.tasks import FairseqTask
from torch import Tensor, nn

from s2sft_fairseq.checkpoints.deltalm import TOKENS
from s2sft_fairseq.checkpoints.finite_weights import check_half_precision
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.checkpoint_fit import check_fit
from s2sft_fairseq.models.deltalm_config import SIZES, DeltaLMConfig, complete_sizes
from s2sft_fairseq.models.deltalm_start import open_start
from s2sft_fairseq.modules.interleaved_decoder_layer import InterleavedDecoderLayer
from s2sft_fairseq.optim.fused_adamw import exempt_from_decay

_FAIRSEQ_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_accurate", "relu": "relu"}


class DeltaLMDecoder(TransformerDecoderBase):
    """fairseq's decoder with interleaved layers."""

    def build_decoder_layer(self, cfg: TransformerConfig, no_encoder_attn: bool = False) -> nn.Module:
        """Make a layer."""
        layer: nn.Module = InterleavedDecoderLayer(cfg)
        if cfg.checkpoint_activations:
            layer = checkpoint_wrapper(layer)
        return fsdp_wrap(layer, min_num_params=0 if cfg.checkpoint_activations else cfg.min_params_to_wrap)


@register_model("deltalm", dataclass=DeltaLMConfig)
class DeltaLMModel(TransformerModelBase):
    """An encoder as XLM-R's, and the interleaved decoder; one embedding for source, target and output."""

    def __init__(self, cfg: TransformerConfig, encoder: TransformerEncoderBase, decoder: DeltaLMDecoder) -> None:
        super().__init__(cfg, encoder, decoder)
        # As in the training of the encoder: no decay of biases and layer norms.
        exempt_from_decay(parameter for parameter in self.parameters() if parameter.ndim == 1)

    @classmethod
    def add_args(cls, parser: ArgumentParser) -> None:
        """Add the options of this model, in place of those of fairseq's Transformer."""
        gen_parser_from_dataclass(parser, DeltaLMConfig())

    @classmethod
    def build_model(cls, cfg: DeltaLMConfig, task: FairseqTask) -> "DeltaLMModel":
        """Build the model, from ``--pretrained`` if that is given.

        The sizes are written into ``cfg`` and ``--pretrained`` is taken out of it, so that the checkpoints of this run
        need what it names no more.

        Raises:
            UserError: if sizes, dictionaries and what the model starts from do not fit each other.
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
                f"--decoder-layers must be at most half of the encoder's layers ({cfg.encoder_layers}), of which each "
                f"starts from two, but is {cfg.decoder_layers}"
            )
        model = super().build_model(transformer_config(cfg), task)
        for module in model.modules():
            if type(module).__name__.endswith("LayerNorm"):  # PyTorch's, or NVIDIA's
                module.eps = cfg.layer_norm_eps
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
        """Make the encoder."""
        return TransformerEncoderBase(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, cfg: TransformerConfig, tgt_dict: Dictionary, embed_tokens: nn.Embedding) -> DeltaLMDecoder:
        """Make the decoder."""
        return DeltaLMDecoder(cfg, tgt_dict, embed_tokens)

    def prepare_for_inference_(self, cfg: Any) -> None:
        """Make the model ready to decode, as fairseq asks for when it has loaded it.

        Raises:
            UserError: if weights overflowed in float16.
        """
        check_half_precision(self)
        super().prepare_for_inference_(cfg)

    def share_source_keys(self, beam_size: int) -> None:
        """Attend to the source in a search by keys and values that all hypotheses of a sentence share.

        Args:
            beam_size: hypotheses of a sentence, consecutive in the batch; 1 outside of a search.
        """
        self.decoder.set_beam_size(beam_size)

    def load_state_dict(
        self, state_dict: dict[str, Tensor], strict: bool = True, model_cfg: Any = None, args: Any = None
    ) -> Any:
        """Load weights.

        Raises:
            UserError: naming the dictionary and the checkpoint's vocabulary where they differ, and otherwise every
                parameter that is missing, unknown or of another shape.
        """
        if strict:
            self.upgrade_state_dict(state_dict)
            check_fit({name: value.shape for name, value in self.state_dict().items()}, state_dict, TOKENS)
        return super().load_state_dict(state_dict, strict=strict, model_cfg=model_cfg, args=args)


def transformer_config(cfg: DeltaLMConfig) -> TransformerConfig:
    """Return the options of fairseq's Transformer, with all sizes known."""
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


def _sizes(layers: int, width: int, heads: int, layernorm_embedding: str = "yes") -> dict[str, Any]:
    return {
        "encoder_layers": layers,
        "decoder_layers": layers // 2,
        "encoder_embed_dim": width,
        "encoder_ffn_embed_dim": 4 * width,
        "encoder_attention_heads": heads,
        "layernorm_embedding": layernorm_embedding,
    }


ARCHITECTURES = {
    "deltalm_tiny": _sizes(4, 128, 2),
    "deltalm_base": _sizes(12, 768, 12),
    "deltalm_large": _sizes(24, 1024, 16, "no"),
}


def _set_sizes(args: Namespace, sizes: dict[str, Any]) -> None:
    for name, size in sizes.items():
        if getattr(args, name, None) is None:
            setattr(args, name, size)


for _name, _preset in ARCHITECTURES.items():
    register_model_architecture("deltalm", _name)(partial(_set_sizes, sizes=_preset))
