"""Options of the encoder-only model.

The types are spelled ``Optional[...]`` because fairseq makes its command line from them and knows no other spelling.
"""

from dataclasses import dataclass, field
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum

from s2sft_fairseq.errors import UserError, as_option
from s2sft_fairseq.models.sizes import TransformerOptions, common_problems, default_sizes, flag, number, rate, size


@dataclass
class UnilmConfig(TransformerOptions):
    """What BERT, RoBERTa, ELECTRA, UniLMv2 and ModernBERT differ in, and what is trained of a model."""

    num_segments: Optional[int] = size(
        2, "rows of the segment embedding; 0: none, as in RoBERTa (default: 2; with --num-roles: 0)", least=0
    )
    num_roles: Optional[int] = size(
        0,
        "dialogues: rows of a role embedding, which with that of turns takes the place of the segment embedding; 0: "
        "none (default: 0; ERNIE-GEN: 3)",
        least=0,
    )
    num_turns: Optional[int] = size(
        0, "rows of the turn embedding, with --num-roles (default: 0; ERNIE-GEN: 16)", least=0
    )
    relative_position_bins: Optional[int] = size(
        0, "bins of the relative position bias; 0: none (default: 0; UniLMv2: 32)"
    )
    max_relative_position: Optional[int] = size(128, "distance from which on all share the last bin (default: 128)")
    embedding_dim: Optional[int] = size(
        0, "width of the embeddings, where narrower than the layers, as in ELECTRA; 0: theirs (default: 0)", least=0
    )
    layer_norm_position: Optional[ChoiceEnum(["post", "pre"])] = size(  # type: ignore[valid-type]
        "post", "behind attention and feed-forward network, or, as in ModernBERT, before (default: post)"
    )
    feed_forward: Optional[ChoiceEnum(["plain", "gated"])] = size(  # type: ignore[valid-type]
        "plain", "feed-forward network; gated: ModernBERT's GeGLU (default: plain)"
    )
    biases: Optional[ChoiceEnum(["all", "none"])] = size(  # type: ignore[valid-type]
        "all", "biases of linear layers and layer norms; the output always has one (default: all)"
    )
    rotary_base: Optional[float] = size(
        0.0, "base of rotary positions, instead of a position embedding; 0: none (default: 0)", least=0
    )
    local_rotary_base: Optional[float] = size(
        0.0, "base in local layers; 0: that of the global ones (default: 0)", least=0
    )
    local_attention_window: Optional[int] = size(
        0, "local layers see half as many positions to either side; 0: all positions (default: 0)", least=0
    )
    global_attention_every: Optional[int] = size(
        1, "every how many layers one is global, from the first layer on (default: 1, all)", least=1
    )
    flex_attention: bool = flag("on GPUs: attend by PyTorch's FlexAttention, which needs --attention-dropout 0")
    compile: bool = flag("fuse the position-wise parts of the layers in training by torch.compile, for GPUs")
    freeze_embeddings: bool = flag(
        "train no token, position and segment embeddings, nor the output matrix, which is the first"
    )
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
        default=16.0, metadata={"help": "what adapters add is multiplied by this over --lora-rank"}
    )
    lora_dropout: float = rate(0.0, "dropout of what adapters read")
    lora_targets: ChoiceEnum(["attention", "all"]) = field(  # type: ignore[valid-type]
        default="attention",
        metadata={"help": "layers with adapters: those of attention, or all, the feed-forward networks too"},
    )


SIZES = default_sizes(UnilmConfig)


def complete_sizes(cfg: UnilmConfig, pretrained: dict[str, Any] | None = None) -> None:
    """Fill every size that is not given, from the pretrained encoder or else from BERT base.

    Options that are newer than the checkpoint, or than the pretrained encoder, are as in BERT base.

    Raises:
        UserError: naming every size that contradicts the pretrained encoder or another size.
    """
    known = {**SIZES, **(pretrained or {})}
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


def _problems(cfg: UnilmConfig) -> list[str]:
    """What is impossible, by itself or together."""
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
    bins = cfg.relative_position_bins
    if bins and (bins < 4 or bins % 2):
        problems.append(f"--relative-position-bins must be 0 or an even number from 4 on, but is {bins}")
    elif bins and cfg.max_relative_position <= bins // 4:
        problems.append(
            f"--max-relative-position must exceed a quarter of --relative-position-bins ({bins}), "
            f"but is {cfg.max_relative_position}"
        )
    heads, width = cfg.encoder_attention_heads, cfg.encoder_embed_dim
    if heads > 0 and cfg.rotary_base and width % heads == 0 and width // heads % 2:
        problems.append(
            f"--encoder-embed-dim must be an even multiple of --encoder-attention-heads ({heads}) "
            f"with --rotary-base, but is {width}"
        )
    if cfg.local_rotary_base and not cfg.rotary_base:
        problems.append(f"--local-rotary-base must be 0 without --rotary-base, but is {cfg.local_rotary_base}")
    if cfg.freeze_layers > cfg.encoder_layers:
        problems.append(
            f"--freeze-layers must be at most --encoder-layers ({cfg.encoder_layers}), but is {cfg.freeze_layers}"
        )
    if cfg.flex_attention and cfg.attention_dropout:
        problems.append(
            f"--attention-dropout must be 0 with --flex-attention, which has none, but is {cfg.attention_dropout:g}"
        )
    if cfg.lora_alpha <= 0:
        problems.append(f"--lora-alpha must be positive, but is {cfg.lora_alpha:g}")
    if cfg.lora_rank > 0 and not cfg.pretrained:
        problems.append(
            "--lora-rank needs --pretrained: adapters are trained beside an encoder, which they do not hold"
        )
    return problems
