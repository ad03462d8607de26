"""Build the parts of a `UnilmModel` from its options."""

from collections.abc import Callable
from functools import partial

from torch import Tensor, nn

from s2sft_fairseq.models.unilm_config import UnilmConfig, biased_parts, is_disentangled, width_of_head
from s2sft_fairseq.modules.disentangled_attention import (
    DisentangledAttention,
    DisentangledPattern,
    RelativeEmbeddings,
)
from s2sft_fairseq.modules.embeddings import PackedEmbeddings
from s2sft_fairseq.modules.encoder_layer import EncoderLayer
from s2sft_fairseq.modules.lm_head import Activation, LMHead
from s2sft_fairseq.modules.matmul import Linear
from s2sft_fairseq.modules.multi_flow_attention import AttentionPattern
from s2sft_fairseq.modules.norms import Norms
from s2sft_fairseq.modules.positions import RelativePositionBias

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": nn.functional.gelu,
    "gelu_tanh": partial(nn.functional.gelu, approximate="tanh"),
    "relu": nn.functional.relu,
    "silu": nn.functional.silu,
}


def make_embeddings(cfg: UnilmConfig, vocab_size: int, pad: int) -> PackedEmbeddings:
    """Build the input embeddings of the encoder; rotary and relative positions need no position embedding."""
    return PackedEmbeddings(
        vocab_size=vocab_size,
        embed_dim=cfg.embedding_dim or cfg.encoder_embed_dim,
        output_dim=cfg.encoder_embed_dim,
        num_positions=0 if cfg.rotary_base or is_disentangled(cfg) else cfg.max_positions,
        num_segments=cfg.num_segments,
        pad=pad,
        norms=make_norms(cfg) if _normalises_embeddings(cfg) else None,
        dropout=cfg.dropout,
        bias=str(cfg.biases) != "none",
        num_roles=cfg.num_roles,
        num_turns=cfg.num_turns,
        scale=cfg.embedding_scale,
    )


def make_relative_position(cfg: UnilmConfig) -> RelativePositionBias | RelativeEmbeddings | None:
    """Build the relative position bias, or the table of relative positions, that all layers share; None: neither."""
    if is_disentangled(cfg):
        return RelativeEmbeddings(
            cfg.encoder_embed_dim,
            furthest=cfg.max_relative_position,
            buckets=cfg.disentangled_buckets,
            layer_norm_eps=cfg.layer_norm_eps if str(cfg.disentangled_norm) == "layer_norm" else None,
            bias="norm" in biased_parts(cfg.biases),
        )
    if not cfg.relative_position_bins:
        return None
    return RelativePositionBias(
        cfg.encoder_attention_heads,
        cfg.relative_position_bins,
        cfg.max_relative_position,
        locality=getattr(cfg, "initial_locality", 0.0),  # a checkpoint may be older than this option
    )


def make_layer(cfg: UnilmConfig, index: int) -> EncoderLayer:
    """Build the layer ``index``."""
    return EncoderLayer(
        embed_dim=cfg.encoder_embed_dim,
        ffn_embed_dim=cfg.encoder_ffn_embed_dim,
        num_heads=cfg.encoder_attention_heads,
        activation=ACTIVATIONS[str(cfg.activation_fn)],
        norms=make_norms(cfg),
        dropout=cfg.dropout,
        attention_dropout=cfg.attention_dropout,
        activation_dropout=cfg.activation_dropout,
        pre_norm=_is_pre_norm(cfg),
        gated=str(cfg.feed_forward) == "gated",
        biased=biased_parts(cfg.biases),
        reads_normalised=index == 0 and _normalises_embeddings(cfg),
        output_norms=str(cfg.layer_norm_position) == "both",
        key_value_heads=cfg.key_value_heads,
        head_dim=cfg.head_dim,
        query_key_norms=_query_key_norms(cfg),
        compiled=cfg.compile,
        attention=_make_disentangled_attention(cfg) if is_disentangled(cfg) else None,
    )


def _query_key_norms(cfg: UnilmConfig) -> Norms | None:
    if str(cfg.query_key_norm) == "none":
        return None
    return Norms(cfg.layer_norm_eps, rms=True)


def _make_disentangled_attention(cfg: UnilmConfig) -> DisentangledAttention:
    terms = str(cfg.disentangled_attention)
    return DisentangledAttention(
        embed_dim=cfg.encoder_embed_dim,
        num_heads=cfg.encoder_attention_heads,
        dropout=cfg.attention_dropout,
        bias="attention" in biased_parts(cfg.biases),
        terms=("c2p", "p2c") if terms == "both" else (terms,),
        shared=str(cfg.disentangled_projections) == "shared",
        table_dropout=cfg.dropout,
    )


def make_pattern(cfg: UnilmConfig, index: int) -> AttentionPattern:
    """Build the attention pattern of the layer ``index``."""
    base, window, scaling = cfg.rotary_base, 0, str(cfg.rotary_scaling)
    if index % cfg.global_attention_every != cfg.first_global_layer:
        base, window, scaling = cfg.local_rotary_base or base, cfg.local_attention_window, ""
    if cfg.unrotated_layers_every and (index + 1) % cfg.unrotated_layers_every == 0:
        base, scaling = 0.0, ""
    pattern = DisentangledPattern if is_disentangled(cfg) else AttentionPattern
    return pattern(width_of_head(cfg), base, window, scaling)


def make_final_layer_norm(cfg: UnilmConfig) -> nn.Module:
    """Build the norm after the last layer. Only a pre-norm model has one; for others it is the identity."""
    if not _is_pre_norm(cfg):
        return nn.Identity()
    return make_norms(cfg).make(cfg.encoder_embed_dim)


def make_lm_head(cfg: UnilmConfig, vocab_size: int) -> LMHead:
    """Build the language model head."""
    width = cfg.encoder_embed_dim
    token_dim, biased = cfg.embedding_dim or width, "head" in biased_parts(cfg.biases)
    activation = Activation(ACTIVATIONS[str(cfg.lm_head_activation_fn or cfg.activation_fn)])
    hidden: dict[str, nn.Module] = {}
    if str(cfg.lm_head) == "bert":
        hidden = {
            "dense": Linear(width, token_dim, bias=biased),
            "activation": activation,
            "layer_norm": make_norms(cfg).make(token_dim),
        }
    elif str(cfg.lm_head) == "two_layer":
        inner = cfg.lm_head_dim or width
        hidden = {
            "dense": Linear(width, inner, bias=biased),
            "activation": activation,
            "dense2": Linear(inner, token_dim, bias=biased),
            "activation2": activation,
        }
    return LMHead(
        hidden,
        vocab_size=vocab_size,
        matrix_dim=token_dim if str(cfg.output_matrix) == "own" else 0,
        bias=str(cfg.output_bias) == "yes",
    )


def make_norms(cfg: UnilmConfig) -> Norms:
    """Return the factory of the norms."""
    return Norms(cfg.layer_norm_eps, bias="norm" in biased_parts(cfg.biases), rms=str(cfg.norm) == "rms")


INITIAL_STD = 0.02
"""BERT's standard deviation of initial weights."""
_BASE_WIDTH = 768


def initial_std(cfg: UnilmConfig) -> float:
    """Return the standard deviation of weights that begin at random.

    A projection multiplies the spread of its input by this standard deviation times the square root of the width. With
    BERT's 0.02 and a width of 128 the factor is 0.23; BERT base has 0.55. Attention is then almost uniform. The default
    gives narrower models the factor of BERT base. New weights of a pretrained encoder have 0.02.
    """
    given: float | None = getattr(cfg, "initial_std", None)  # a checkpoint may be older than this option
    if given is not None:
        return given
    return INITIAL_STD if cfg.pretrained else INITIAL_STD * max(1.0, _BASE_WIDTH / cfg.encoder_embed_dim) ** 0.5


def initialize(module: nn.Module, std: float = INITIAL_STD) -> None:
    """Initialize as BERT does: weights from N(0, std), biases 0, layer norms the identity."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=std)
    if isinstance(module, LMHead) and module.weight is not None:
        nn.init.normal_(module.weight, std=std)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        nn.init.zeros_(module.weight[module.padding_idx])


def _normalises_embeddings(cfg: UnilmConfig) -> bool:
    return str(cfg.embedding_norm) == "yes"


def _is_pre_norm(cfg: UnilmConfig) -> bool:
    """Return whether norms come before attention and feed-forward network, maybe besides norms of their outputs."""
    return str(cfg.layer_norm_position) != "post"
