"""Options of the encoder-decoder model.

The types are spelled ``Optional[...]`` because fairseq makes its command line from them and knows no other spelling.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass

from s2sft_fairseq.errors import UserError

# Options whose values are words.
WORDS = {"activation_fn": ["gelu", "gelu_tanh", "relu"], "layernorm_embedding": ["yes", "no"]}


@dataclass
class DeltaLMConfig(FairseqDataclass):
    """Sizes that are not given are those of ``--pretrained``, or else of DeltaLM base.

    Width, heads and feed-forward networks of the decoder are those of the encoder, from whose layers its own start.
    """

    pretrained: Optional[str] = field(
        default=None,
        metadata={
            "help": "what to start from, training only: the folder of a converted encoder or the checkpoint of one, "
            "whose layers become encoder and, two by two, decoder; or DeltaLM: the folder that s2sft convert made of "
            "it, or a checkpoint file, an official one or one of fairseq"
        },
    )
    random_init: bool = field(
        default=False,
        metadata={"help": "begin with random weights: fine-tuning without --pretrained is refused otherwise"},
    )
    encoder_layers: Optional[int] = field(default=None, metadata={"help": "layers of the encoder (default: 12)"})
    decoder_layers: Optional[int] = field(
        default=None, metadata={"help": "layers of the decoder (default: half of those of the encoder)"}
    )
    encoder_embed_dim: Optional[int] = field(default=None, metadata={"help": "width of the layers (default: 768)"})
    encoder_ffn_embed_dim: Optional[int] = field(
        default=None, metadata={"help": "width inside the feed-forward networks (default: 3072)"}
    )
    encoder_attention_heads: Optional[int] = field(
        default=None, metadata={"help": "attention heads (default: one for every 64 of the width)"}
    )
    max_positions: Optional[int] = field(
        default=None,
        metadata={"help": "positions of source and of target: rows of the two position embeddings (default: 512)"},
    )
    layer_norm_eps: Optional[float] = field(
        default=None, metadata={"help": "epsilon of the layer norms (default: 1e-5)"}
    )
    activation_fn: Optional[ChoiceEnum(WORDS["activation_fn"])] = field(  # type: ignore[valid-type]
        default=None, metadata={"help": "activation (default: gelu, the exact one)"}
    )
    layernorm_embedding: Optional[ChoiceEnum(WORDS["layernorm_embedding"])] = field(  # type: ignore[valid-type]
        default=None,
        metadata={"help": "a layer norm behind the embeddings, as in XLM-R and DeltaLM base (default: yes)"},
    )
    dropout: float = field(default=0.1, metadata={"help": "dropout of embeddings, attention output and feed-forward"})
    attention_dropout: float = field(default=0.0, metadata={"help": "dropout of attention weights"})
    activation_dropout: float = field(default=0.0, metadata={"help": "dropout inside the feed-forward networks"})
    checkpoint_activations: bool = field(
        default=False,
        metadata={"help": "keep the input of each layer only, and compute what is in it again for its gradient"},
    )


SIZES: dict[str, Any] = {
    "encoder_layers": 12,
    "decoder_layers": None,
    "encoder_embed_dim": 768,
    "encoder_ffn_embed_dim": 3072,
    "encoder_attention_heads": None,
    "max_positions": 512,
    "layer_norm_eps": 1e-5,
    "activation_fn": "gelu",
    "layernorm_embedding": "yes",
}
"""None: worked out from other sizes."""


def complete_sizes(cfg: DeltaLMConfig, known: Mapping[str, Any], suggested: Mapping[str, Any]) -> None:
    """Fill every size that is not given.

    Args:
        cfg: the options.
        known: sizes of what the model starts from, which options must not contradict.
        suggested: further ones, which they may.

    Raises:
        UserError: naming every size that contradicts what the model starts from, or another size.
    """
    problems = [
        f"{_option(name)} is {given}, but {cfg.pretrained} has {value}"
        for name, value in known.items()
        if (given := getattr(cfg, name)) is not None and given != value
    ]
    for name, default in SIZES.items():
        if getattr(cfg, name) is None:
            setattr(cfg, name, known.get(name, suggested.get(name, default)))
    if cfg.decoder_layers is None:
        cfg.decoder_layers = max(1, cfg.encoder_layers // 2)
    if cfg.encoder_attention_heads is None:
        cfg.encoder_attention_heads = max(1, cfg.encoder_embed_dim // 64)
    problems += _problems(cfg)
    if problems:
        raise UserError.of(problems)


def _problems(cfg: DeltaLMConfig) -> list[str]:
    """What is impossible, by itself or together."""
    problems = [
        f"{_option(name)} must be at least 1, but is {value}"
        for name in SIZES
        if isinstance(value := getattr(cfg, name), int) and value < 1
    ]
    problems += [
        f"{_option(name)} must be one of {', '.join(words)}, but is {getattr(cfg, name)}"
        for name, words in WORDS.items()
        if str(getattr(cfg, name)) not in words
    ]
    if cfg.pretrained and getattr(cfg, "random_init", False):
        problems.append(f"--random-init and --pretrained {cfg.pretrained} exclude each other: give one of them")
    heads, width = cfg.encoder_attention_heads, cfg.encoder_embed_dim
    if heads > 0 and width % heads:
        problems.append(
            f"--encoder-embed-dim must be a multiple of --encoder-attention-heads ({heads}), but is {width}"
        )
    problems += [
        f"{_option(name)} must be at least 0 and below 1, but is {getattr(cfg, name):g}"
        for name in ("dropout", "attention_dropout", "activation_dropout")
        if not 0 <= getattr(cfg, name) < 1
    ]
    return problems


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"
