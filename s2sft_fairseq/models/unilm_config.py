"""Options of the encoder-only model.

The types are spelled ``Optional[...]`` because fairseq makes its command line from them and knows no other spelling.
"""

from dataclasses import dataclass, field
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass

from s2sft_fairseq.errors import UserError


@dataclass
class UnilmConfig(FairseqDataclass):
    """Sizes that are not given are those of ``--pretrained``, or else of BERT base."""

    pretrained: Optional[str] = field(
        default=None,
        metadata={
            "help": "folder of a converted encoder (model.pt, config.json) to start from: gives sizes and weights; "
            "training only, a fine-tuned checkpoint does not need it"
        },
    )
    encoder_layers: Optional[int] = field(default=None, metadata={"help": "number of layers (default: 12)"})
    encoder_embed_dim: Optional[int] = field(default=None, metadata={"help": "width of the layers (default: 768)"})
    encoder_ffn_embed_dim: Optional[int] = field(
        default=None, metadata={"help": "width inside the feed-forward networks (default: 3072)"}
    )
    encoder_attention_heads: Optional[int] = field(default=None, metadata={"help": "attention heads (default: 12)"})
    max_positions: Optional[int] = field(
        default=None, metadata={"help": "rows of the position embedding: source and target together (default: 512)"}
    )
    num_segments: Optional[int] = field(
        default=None, metadata={"help": "rows of the segment embedding; 0: none, as in RoBERTa (default: 2)"}
    )
    relative_position_bins: Optional[int] = field(
        default=None, metadata={"help": "bins of the relative position bias; 0: none (default: 0; UniLMv2: 32)"}
    )
    max_relative_position: Optional[int] = field(
        default=None, metadata={"help": "distance from which on all share the last bin (default: 128)"}
    )
    layer_norm_eps: Optional[float] = field(
        default=None, metadata={"help": "epsilon of the layer norms (default: 1e-12, BERT's)"}
    )
    activation_fn: Optional[ChoiceEnum(["gelu", "gelu_tanh", "relu"])] = field(  # type: ignore[valid-type]
        default=None, metadata={"help": "activation (default: gelu, the exact one)"}
    )
    dropout: float = field(default=0.1, metadata={"help": "dropout of embeddings, attention output and feed-forward"})
    attention_dropout: float = field(default=0.1, metadata={"help": "dropout of attention weights"})
    activation_dropout: float = field(default=0.0, metadata={"help": "dropout inside the feed-forward networks"})


SIZES: dict[str, Any] = {
    "encoder_layers": 12,
    "encoder_embed_dim": 768,
    "encoder_ffn_embed_dim": 3072,
    "encoder_attention_heads": 12,
    "max_positions": 512,
    "num_segments": 2,
    "relative_position_bins": 0,
    "max_relative_position": 128,
    "layer_norm_eps": 1e-12,
    "activation_fn": "gelu",
}


LEAST = {
    "encoder_layers": 1,
    "encoder_embed_dim": 1,
    "encoder_ffn_embed_dim": 1,
    "encoder_attention_heads": 1,
    "max_positions": 1,
    "num_segments": 0,
}


def complete_sizes(cfg: UnilmConfig, pretrained: dict[str, Any] | None = None) -> None:
    """Fill every size that is not given, from the pretrained encoder or else from BERT base.

    Raises:
        UserError: naming every size that contradicts the pretrained encoder or another size.
    """
    known = {**SIZES, **(pretrained or {})}
    problems = [
        f"--{name.replace('_', '-')} is {getattr(cfg, name)}, but the pretrained encoder has {pretrained[name]}"
        for name in SIZES
        if pretrained and getattr(cfg, name) is not None and str(getattr(cfg, name)) != str(pretrained[name])
    ]
    for name, value in known.items():
        if getattr(cfg, name) is None:
            setattr(cfg, name, value)
    problems += [
        f"--{name.replace('_', '-')} must be at least {least}, but is {getattr(cfg, name)}"
        for name, least in LEAST.items()
        if getattr(cfg, name) < least
    ]
    bins = cfg.relative_position_bins
    if bins and (bins < 4 or bins % 2):
        problems.append(f"--relative-position-bins must be 0 or an even number from 4 on, but is {bins}")
    elif bins and cfg.max_relative_position <= bins // 4:
        problems.append(
            f"--max-relative-position must exceed a quarter of --relative-position-bins ({bins}), "
            f"but is {cfg.max_relative_position}"
        )
    if cfg.encoder_attention_heads > 0 and cfg.encoder_embed_dim % cfg.encoder_attention_heads:
        problems.append(
            f"--encoder-embed-dim must be a multiple of --encoder-attention-heads ({cfg.encoder_attention_heads}), "
            f"but is {cfg.encoder_embed_dim}"
        )
    if problems:
        raise UserError.of(problems)
