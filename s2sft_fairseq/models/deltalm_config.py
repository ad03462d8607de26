"""Options of the encoder-decoder model.

The types are spelled ``Optional[...]`` because fairseq makes its command line from them and knows no other spelling.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass

from s2sft_fairseq.errors import UserError, as_option
from s2sft_fairseq.models.sizes import default_sizes, flag, range_problems, rate, size


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
    random_init: bool = flag("begin with random weights: fine-tuning without --pretrained is refused otherwise")
    encoder_layers: Optional[int] = size(12, "layers of the encoder (default: 12)", least=1)
    decoder_layers: Optional[int] = size(None, "layers of the decoder (default: half of those of the encoder)", least=1)
    encoder_embed_dim: Optional[int] = size(768, "width of the layers (default: 768)", least=1)
    encoder_ffn_embed_dim: Optional[int] = size(3072, "width inside the feed-forward networks (default: 3072)", least=1)
    encoder_attention_heads: Optional[int] = size(
        None, "attention heads (default: one for every 64 of the width)", least=1
    )
    max_positions: Optional[int] = size(
        512, "positions of source and of target: rows of the two position embeddings (default: 512)", least=1
    )
    layer_norm_eps: Optional[float] = size(1e-05, "epsilon of the layer norms (default: 1e-5)")
    activation_fn: Optional[ChoiceEnum(["gelu", "gelu_tanh", "relu"])] = size(  # type: ignore[valid-type]
        "gelu", "activation (default: gelu, the exact one)"
    )
    layernorm_embedding: Optional[ChoiceEnum(["yes", "no"])] = size(  # type: ignore[valid-type]
        "yes", "a layer norm behind the embeddings, as in XLM-R and DeltaLM base (default: yes)"
    )
    dropout: float = rate(0.1, "dropout of embeddings, attention output and feed-forward")
    attention_dropout: float = rate(0.0, "dropout of attention weights")
    activation_dropout: float = rate(0.0, "dropout inside the feed-forward networks")
    checkpoint_activations: bool = flag(
        "keep the input of each layer only, and compute what is in it again for its gradient"
    )


SIZES = default_sizes(DeltaLMConfig)


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
        f"{as_option(name)} is {given}, but {cfg.pretrained} has {value}"
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
    problems = range_problems(DeltaLMConfig, cfg)
    if cfg.pretrained and getattr(cfg, "random_init", False):
        problems.append(f"--random-init and --pretrained {cfg.pretrained} exclude each other: give one of them")
    heads, width = cfg.encoder_attention_heads, cfg.encoder_embed_dim
    if heads > 0 and width % heads:
        problems.append(
            f"--encoder-embed-dim must be a multiple of --encoder-attention-heads ({heads}), but is {width}"
        )
    return problems
