"""Options of the encoder-only model.

Types are written ``Optional[...]``: fairseq builds the command line from them and supports no other spelling.
"""

from dataclasses import dataclass, field
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum

from s2sft_fairseq.errors import UserError, as_option
from s2sft_fairseq.models.model_options import (
    TransformerOptions,
    common_problems,
    default_sizes,
    flag,
    number,
    rate,
    size,
)
from s2sft_fairseq.modules.positions import scaling_problem

ATTENTIONS = ("auto", "padded", "flash", "flex", "loop")
FURTHEST = 1_000_000
"""The largest ``--max-relative-position`` of disentangled attention, which has a table of all distances."""
BIASED = ("attention", "qkv", "fc1", "fc2", "norm", "head")
"""Parts that may have biases: the projections of attention, of these only those of query, key and value (qkv), the two
layers of the feed-forward networks, norms, and the hidden layers of the head."""


@dataclass
class UnilmConfig(TransformerOptions):
    """The options in which BERT, RoBERTa, ELECTRA, UniLMv2, ModernBERT and others differ, and what is trained."""

    num_segments: Optional[int] = size(
        2, "rows of the segment embedding; 0: none, as in RoBERTa (default: 2; with --num-roles: 0)", least=0
    )
    num_roles: Optional[int] = size(
        0,
        "dialogues: rows of a role embedding, which with the turn embedding replaces the segment embedding; 0: "
        "none (default: 0; ERNIE-GEN: 3)",
        least=0,
    )
    num_turns: Optional[int] = size(
        0, "rows of the turn embedding, with --num-roles (default: 0; ERNIE-GEN: 16)", least=0
    )
    relative_position_bins: Optional[int] = size(
        0, "bins of the relative position bias; 0: none (default: 0; UniLMv2: 32)"
    )
    max_relative_position: Optional[int] = size(128, "distances from this one on share the last bin (default: 128)")
    disentangled_attention: Optional[ChoiceEnum(["none", "c2p", "p2c", "both"])] = size(  # type: ignore[valid-type]
        "none",
        "DeBERTa's products with relative positions, in the place of a position embedding: content to position (c2p), "
        "position to content (p2c) or both (default: none; DeBERTa v2 and v3: both, with --max-relative-position 512)",
    )
    disentangled_buckets: Optional[int] = size(
        0,
        "buckets for distances to either side, half of them for one distance each; 0: one for each distance up to "
        "--max-relative-position (default: 0; DeBERTa v2 and v3: 256)",
        least=0,
    )
    disentangled_projections: Optional[ChoiceEnum(["shared", "own"])] = size(  # type: ignore[valid-type]
        "shared", "projections of relative positions: shared with content's keys and queries, or own (default: shared)"
    )
    disentangled_norm: Optional[ChoiceEnum(["none", "layer_norm"])] = size(  # type: ignore[valid-type]
        "layer_norm", "of the table of relative positions (default: layer_norm)"
    )
    embedding_dim: Optional[int] = size(
        0, "width of the embeddings if narrower than the layers, as in ELECTRA; 0: equal (default: 0)", least=0
    )
    embedding_scale: Optional[float] = size(
        1.0, "factor of the token embeddings, but not of a tied output matrix; Gemma 3: sqrt(H) (default: 1)", above=0
    )
    source_visibility: Optional[ChoiceEnum(["both", "causal"])] = size(  # type: ignore[valid-type]
        "both",
        "what a token of the source sees of it: both directions, as in encoders, or only what is before it, as in "
        "language models (default: both)",
    )
    layer_norm_position: Optional[ChoiceEnum(["post", "pre", "both"])] = size(  # type: ignore[valid-type]
        "post",
        "layer norms after attention and feed-forward network, before them, as in ModernBERT, or both before them and "
        "of their outputs, as in Gemma 3 (default: post)",
    )
    norm: Optional[ChoiceEnum(["layer", "rms"])] = size(  # type: ignore[valid-type]
        "layer", "layer norms, or RMSNorm, as in EuroBERT (default: layer)"
    )
    embedding_norm: Optional[ChoiceEnum(["yes", "no"])] = size(  # type: ignore[valid-type]
        "yes", "a norm behind the embeddings; no: in the first layer instead, as in EuroBERT (default: yes)"
    )
    feed_forward: Optional[ChoiceEnum(["plain", "gated"])] = size(  # type: ignore[valid-type]
        "plain",
        "feed-forward network; gated: GeGLU, as in ModernBERT, and with --activation-fn silu SwiGLU (default: plain)",
    )
    biases: Optional[str] = size(
        "all",
        f"what has biases: all, none, or some of {','.join(BIASED)} (default: all); the output has --output-bias",
    )
    key_value_heads: Optional[int] = size(
        0,
        "heads of keys and values, which groups of --encoder-attention-heads share (grouped-query attention); 0: one "
        "for each (default: 0)",
        least=0,
    )
    head_dim: Optional[int] = size(
        0, "width of a head, as in Qwen3; 0: --encoder-embed-dim / --encoder-attention-heads (default: 0)", least=0
    )
    query_key_norm: Optional[ChoiceEnum(["none", "rms"])] = size(  # type: ignore[valid-type]
        "none", "RMSNorm of each head's queries and keys, before rotary positions, as in Qwen3 (default: none)"
    )
    lm_head: Optional[ChoiceEnum(["bert", "plain", "two_layer"])] = size(  # type: ignore[valid-type]
        "bert",
        "hidden layers of the language model head: a dense layer and a norm as in BERT, none as in EuroBERT, or two "
        "dense layers as in UltraBERT (default: bert)",
    )
    lm_head_dim: Optional[int] = size(
        0, "width between the two layers of --lm-head two_layer; 0: that of the layers (default: 0)", least=0
    )
    lm_head_activation_fn: Optional[ChoiceEnum(["gelu", "gelu_tanh", "relu", "silu"])] = size(  # type: ignore[valid-type]
        None, "activation of the head (default: --activation-fn)"
    )
    output_matrix: Optional[ChoiceEnum(["tied", "own"])] = size(  # type: ignore[valid-type]
        "tied", "what scores the vocabulary: the token embedding, or a matrix of its own (default: tied)"
    )
    output_bias: Optional[ChoiceEnum(["yes", "no"])] = size(  # type: ignore[valid-type]
        "yes", "a bias of each score (default: yes)"
    )
    rotary_base: Optional[float] = size(
        0.0, "base of rotary positions, instead of a position embedding; 0: none (default: 0)", least=0
    )
    local_rotary_base: Optional[float] = size(
        0.0, "base in local layers; 0: that of the global ones (default: 0)", least=0
    )
    rotary_scaling: Optional[str] = size(
        "",
        "slower rotations of global layers, for long texts: linear:FACTOR or, as in Llama 3.1, "
        "llama3:FACTOR:LOW:HIGH:ORIGINAL (default: none)",
    )
    unrotated_layers_every: Optional[int] = size(
        0, "the last of each this many layers has no rotary positions; SmolLM3: 4; 0: all have (default: 0)", least=0
    )
    local_attention_window: Optional[int] = size(
        0, "local layers see half as many positions to either side; 0: all positions (default: 0)", least=0
    )
    global_attention_every: Optional[int] = size(
        1, "one of this many layers is global, from --first-global-layer on (default: 1, all)", least=1
    )
    first_global_layer: Optional[int] = size(
        0, "the first global layer, below --global-attention-every (default: 0, the first layer)", least=0
    )
    attention: ChoiceEnum(ATTENTIONS) = field(  # type: ignore[valid-type]
        default="auto",
        metadata={
            "help": "of packed batches; padded: one call per layer, with a mask; flash: flash attention, for GPUs, 16 "
            "bits and targets that are predicted from left to right (other batches are padded); flex: PyTorch's "
            "FlexAttention, for GPUs, which has neither --attention-dropout nor a relative position bias; loop: "
            "example by example, as --disentangled-attention always is; auto: flash on GPUs, loop on CPUs"
        },
    )
    compile: bool = flag("fuse the position-wise parts of the layers in training by torch.compile, for GPUs")
    initial_std: Optional[float] = number(
        None,
        "standard deviation of weights that begin at random (default: BERT's 0.02; without --pretrained and with a "
        "width H below 768, 0.02 sqrt(768 / H), so that attention begins as in BERT base)",
        least=1e-6,
    )
    initial_locality: float = number(
        0.0,
        "how much smaller a relative position bias without --pretrained is at first from each bin of distances to the "
        "next; with 1, tokens attend mostly to their neighbours; 0: all bins begin alike",
        least=0,
    )
    freeze_embeddings: bool = flag("freeze token, position and segment embeddings, and with them a tied output matrix")
    freeze_layers: int = number(
        0,
        "freeze this many layers, from the first one on, and the embeddings and relative position biases that they "
        "read; 0: train all",
        least=0,
    )
    lora_rank: int = number(
        0,
        "train adapters of this rank beside the layers of --pretrained, which stay as they are and are not saved "
        "again; 0: none",
        least=0,
    )
    lora_alpha: float = field(
        default=16.0, metadata={"help": "the output of adapters is multiplied by this, divided by --lora-rank"}
    )
    lora_dropout: float = rate(0.0, "dropout of the input of adapters")
    lora_targets: ChoiceEnum(["attention", "all"]) = field(  # type: ignore[valid-type]
        default="attention",
        metadata={"help": "layers with adapters: those of attention, or all, the feed-forward networks too"},
    )


SIZES = default_sizes(UnilmConfig)


def complete_sizes(cfg: UnilmConfig, pretrained: dict[str, Any] | None = None) -> None:
    """Fill every size that is not given, from the pretrained encoder or else from BERT base.

    Options that are newer than the checkpoint or the pretrained encoder have the values of BERT base.

    Raises:
        UserError: naming every size that contradicts the pretrained encoder or another size.
    """
    known = {**SIZES, **{name: value for name, value in (pretrained or {}).items() if value is not None}}
    problems = []
    has_roles = bool(getattr(cfg, "num_roles", None))
    if has_roles and cfg.num_segments is None:
        cfg.num_segments = 0
    for name, value in known.items():
        given = getattr(cfg, name, None)
        if given is None:
            setattr(cfg, name, value)
        elif pretrained and given != value and not (has_roles and name == "num_segments"):
            problems.append(f"{as_option(name)} is {given}, but the pretrained encoder has {value}")
    if cfg.attention_dropout is None:
        cfg.attention_dropout = 0.1
    problems += _problems(cfg)
    if problems:
        raise UserError.of(problems)


def biased_parts(biases: str) -> frozenset[str]:
    """Return the parts that have biases according to ``--biases``. They may include names that `BIASED` lacks."""
    shorthands = {"all": BIASED, "none": ()}
    return frozenset(shorthands.get(str(biases), str(biases).split(",")))


def _problems(cfg: UnilmConfig) -> list[str]:
    """Return messages for options that are out of range or contradict each other."""
    problems = common_problems(UnilmConfig, cfg)
    if bool(cfg.num_roles) != bool(cfg.num_turns):
        problems.append(
            f"--num-roles and --num-turns must both be given or both be 0, but are {cfg.num_roles} and {cfg.num_turns}"
        )
    if cfg.num_roles and cfg.num_segments:
        problems.append(
            f"--num-segments must be 0 with --num-roles, whose embedding takes the place of the segments', "
            f"but is {cfg.num_segments}"
        )
    if unknown := sorted(biased_parts(cfg.biases).difference(BIASED)):
        problems.append(f"--biases must be all, none, or some of {','.join(BIASED)}, but has {','.join(unknown)}")
    if (shared := cfg.key_value_heads) and cfg.encoder_attention_heads % shared:
        problems.append(
            f"--encoder-attention-heads must be a multiple of --key-value-heads ({shared}), but is "
            f"{cfg.encoder_attention_heads}"
        )
    if cfg.first_global_layer >= cfg.global_attention_every > 0:
        problems.append(
            f"--first-global-layer must be below --global-attention-every ({cfg.global_attention_every}), but is "
            f"{cfg.first_global_layer}"
        )
    if cfg.embedding_dim not in (0, cfg.encoder_embed_dim) and str(cfg.lm_head) == "plain":
        problems.append(f"--embedding-dim must be 0 with --lm-head plain, but is {cfg.embedding_dim}")
    bins = cfg.relative_position_bins
    if bins and (bins < 4 or bins % 2):
        problems.append(f"--relative-position-bins must be 0 or an even number from 4 on, but is {bins}")
    elif bins and cfg.max_relative_position <= bins // 4:
        problems.append(
            f"--max-relative-position must exceed a quarter of --relative-position-bins ({bins}), "
            f"but is {cfg.max_relative_position}"
        )
    if locality := getattr(cfg, "initial_locality", 0.0):
        if not bins:
            problems.append(f"--initial-locality must be 0 without --relative-position-bins, but is {locality:g}")
        if cfg.pretrained:
            problems.append(f"--initial-locality must be 0 with --pretrained, which has biases, but is {locality:g}")
    problems += _disentangled_problems(cfg)
    problems += _rotary_problems(cfg)
    if cfg.freeze_layers > cfg.encoder_layers:
        problems.append(
            f"--freeze-layers must be at most --encoder-layers ({cfg.encoder_layers}), but is {cfg.freeze_layers}"
        )
    if str(getattr(cfg, "attention", "auto")) == "flex":
        if cfg.attention_dropout:
            problems.append(
                f"--attention-dropout must be 0 with --attention flex, which has none, but is {cfg.attention_dropout:g}"
            )
        if bins:
            problems.append(
                f"--relative-position-bins must be 0 with --attention flex, which adds no bias, but is {bins}; "
                "--attention padded does"
            )
    if cfg.lora_alpha <= 0:
        problems.append(f"--lora-alpha must be positive, but is {cfg.lora_alpha:g}")
    if cfg.lora_rank > 0 and not cfg.pretrained:
        problems.append(
            "--lora-rank needs --pretrained: adapters are trained beside an encoder, which they do not hold"
        )
    return problems


def is_disentangled(cfg: UnilmConfig) -> bool:
    """Return whether attention has products with relative positions."""
    return str(cfg.disentangled_attention) != "none"


def has_causal_source(cfg: UnilmConfig) -> bool:
    """Return whether a token of the source sees only what is before it, and itself."""
    return str(cfg.source_visibility) == "causal"


def width_of_head(cfg: UnilmConfig) -> int:
    """Return the width of a head, d."""
    width: int = cfg.head_dim or cfg.encoder_embed_dim // cfg.encoder_attention_heads
    return width


def _rotary_problems(cfg: UnilmConfig) -> list[str]:
    """Return messages for options that contradict rotary positions, or that need them."""
    problems = []
    if not cfg.rotary_base:
        return [
            f"{as_option(name)} must be {nothing} without --rotary-base, but is {value}"
            for name, nothing in (("local_rotary_base", 0), ("unrotated_layers_every", 0), ("rotary_scaling", "empty"))
            if (value := getattr(cfg, name))
        ]
    heads, width = cfg.encoder_attention_heads, cfg.encoder_embed_dim
    if cfg.head_dim % 2:
        problems.append(f"--head-dim must be even with --rotary-base, but is {cfg.head_dim}")
    elif not cfg.head_dim and heads > 0 and width % heads == 0 and width // heads % 2:
        problems.append(
            f"--encoder-embed-dim must be an even multiple of --encoder-attention-heads ({heads}) "
            f"with --rotary-base, but is {width}"
        )
    if problem := scaling_problem(str(cfg.rotary_scaling)):
        problems.append(f"--rotary-scaling {problem}")
    return problems


def _disentangled_problems(cfg: UnilmConfig) -> list[str]:
    """Return messages for options that contradict disentangled attention, or that need it."""
    buckets, furthest, given = cfg.disentangled_buckets, cfg.max_relative_position, cfg.disentangled_attention
    if not is_disentangled(cfg):
        return [f"--disentangled-buckets must be 0 without --disentangled-attention, but is {buckets}"] * bool(buckets)
    where = f"with --disentangled-attention {given}"
    problems = [
        f"{as_option(name)} must be 0 {where}, but is {value:g}"
        for name in ("relative_position_bins", "rotary_base", "key_value_heads", "head_dim")
        if (value := getattr(cfg, name))
    ]
    if str(cfg.query_key_norm) != "none":
        problems.append(f"--query-key-norm must be none {where}, but is {cfg.query_key_norm}")
    if str(getattr(cfg, "attention", "auto")) not in ("auto", "loop"):
        problems.append(f"--attention must be auto or loop {where}, but is {cfg.attention}")
    if furthest > FURTHEST:
        problems.append(f"--max-relative-position must be at most {FURTHEST:,} {where}, but is {furthest:,}")
    if buckets % 2 or 0 < buckets < 4:
        problems.append(f"--disentangled-buckets must be 0 or an even number from 4 on, but is {buckets}")
    elif furthest <= (buckets // 2 + 1 if buckets else 0):
        least = f"exceed half of --disentangled-buckets ({buckets}) by 2 or more" if buckets else f"be positive {where}"
        problems.append(f"--max-relative-position must {least}, but is {furthest}")
    return problems
