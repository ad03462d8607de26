"""Options of the encoder-decoder model.

The types are spelled ``Optional[...]`` because fairseq makes its command line from them and knows no other spelling.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum

from s2sft_fairseq.errors import UserError, as_option
from s2sft_fairseq.models.sizes import TransformerOptions, common_problems, default_sizes, size


@dataclass
class DeltaLMConfig(TransformerOptions):
    """What an encoder-decoder has beyond an encoder.

    Width, heads and feed-forward networks of the decoder are those of the encoder, from whose layers its own start.
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
    if cfg.attention_dropout is None:
        cfg.attention_dropout = 0.0
    if cfg.decoder_layers is None:
        cfg.decoder_layers = max(1, cfg.encoder_layers // 2)
    if cfg.encoder_attention_heads is None:
        cfg.encoder_attention_heads = max(1, cfg.encoder_embed_dim // 64)
    if problems := [*problems, *common_problems(DeltaLMConfig, cfg)]:
        raise UserError.of(problems)
