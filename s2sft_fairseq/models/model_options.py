"""Declare and check the options of models, and declare the options that both models have.

Each option has its default, range and help in one place. Types are written ``Optional[...]``: fairseq builds the
command line from them and supports no other spelling.
"""

import math
import typing
from dataclasses import Field, dataclass, field, fields
from enum import Enum
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass

from s2sft_fairseq.errors import UserError, as_option
from s2sft_fairseq.modules.matmul import MATMULS
from s2sft_fairseq.search_bounds import MOST_POSITIONS


def size(
    default: Any, description: str, *, least: float | None = None, above: float | None = None, most: float | None = None
) -> Any:
    """Declare a size of the model. Its value on the command line is None by default: ``--pretrained`` may set it.

    Args:
        default: the value if neither the command line nor ``--pretrained`` sets it; None: computed from other sizes.
        description: the text for ``--help``.
        least: the minimum.
        above: a number that the value must exceed.
        most: the maximum.
    """
    bounds = {"least": least, "above": above, "most": most}
    return field(default=None, metadata={"help": description, "size": default, **bounds})


def number(default: float | None, description: str, *, least: float) -> Any:
    """Declare an option that is a number of at least ``least``; None: the default depends on other options."""
    return field(default=default, metadata={"help": description, "least": least})


def rate(default: float | None, description: str) -> Any:
    """Declare an option that is at least 0 and below 1, such as dropout."""
    return field(default=default, metadata={"help": description, "least": 0, "below": 1})


def flag(description: str) -> Any:
    """Declare a switch that is off by default."""
    return field(default=False, metadata={"help": description})


@dataclass
class TransformerOptions(FairseqDataclass):
    """The options that the encoder-only model and the encoder-decoder share.

    Sizes that are not given come from ``--pretrained``, or else from BERT base or DeltaLM base.
    """

    pretrained: Optional[str] = field(
        default=None,
        metadata={
            "help": "what to start from, training only: the folder of a converted model (model.pt, config.json) or the "
            "checkpoint of a training, which give sizes and weights. An encoder-decoder may start from an encoder, "
            "whose layers become its encoder and, two by two, its decoder; or from an official DeltaLM checkpoint"
        },
    )
    random_init: bool = flag("begin with random weights: fine-tuning without --pretrained is refused otherwise")
    encoder_layers: Optional[int] = size(12, "number of layers, of the encoder (default: 12)", least=1)
    encoder_embed_dim: Optional[int] = size(768, "width of the layers (default: 768)", least=1)
    encoder_ffn_embed_dim: Optional[int] = size(3072, "width inside the feed-forward networks (default: 3072)", least=1)
    encoder_attention_heads: Optional[int] = size(
        12, "attention heads (default: 12; of DeltaLM one for every 64 of the width)", least=1
    )
    max_positions: Optional[int] = size(
        512,
        "positions of source and target together, for DeltaLM of each: rows of the position embedding (default: 512)",
        least=1,
        most=MOST_POSITIONS,
    )
    layer_norm_eps: Optional[float] = size(
        1e-12, "epsilon of the layer norms (default: 1e-12, BERT's; of DeltaLM 1e-5)", above=0
    )
    activation_fn: Optional[ChoiceEnum(["gelu", "gelu_tanh", "relu", "silu"])] = size(  # type: ignore[valid-type]
        "gelu", "activation (default: gelu, the exact one); DeltaLM has no silu"
    )
    dropout: float = rate(0.1, "dropout of embeddings, attention output and feed-forward")
    attention_dropout: Optional[float] = rate(None, "dropout of attention weights (default: 0.1; of DeltaLM 0)")
    activation_dropout: float = rate(0.0, "dropout inside the feed-forward networks")
    checkpoint_activations: bool = flag(
        "keep only the input of each layer, and recompute its activations in the backward pass"
    )
    matmul: ChoiceEnum(MATMULS) = field(  # type: ignore[valid-type]
        default="auto",
        metadata={
            "help": "what multiplies float32 matrices in training on CPUs; auto: for each kind of product the faster "
            "one, measured once on a machine; mkl: PyTorch's default"
        },
    )
    no_model_folder: bool = flag("do not write SAVE_DIR/model, the best model as a folder, at the end of training")
    share_cores: bool = flag(
        "train with fewer threads while other processes need cores of the CPU, and with all of them once cores are "
        "idle; the number of threads changes roundings, so a run cannot be repeated to the last bit"
    )


def default_sizes(config: type[FairseqDataclass]) -> dict[str, Any]:
    """Return the default of each size of a model, by name."""
    return {each.name: each.metadata["size"] for each in fields(config) if "size" in each.metadata}


def common_problems(config: type[TransformerOptions], cfg: Any) -> list[str]:
    """Return messages for options that are out of range or contradict other options of `TransformerOptions`.

    Args:
        config: the class that declares the options.
        cfg: the values, with all sizes filled. Options that are newer than the checkpoint may be missing.

    Raises:
        UserError: naming every value of a wrong type, which a file may hold.
    """
    values = {each.name: getattr(cfg, each.name, None) for each in fields(config)}
    wrong = {
        each.name: f"{as_option(each.name)} must be {kind}, but is {values[each.name]!r:.60}"
        for each in fields(config)
        if values[each.name] is not None and (kind := _missed_type(each, values[each.name]))
    }
    problems = [
        f"{as_option(each.name)} must be {range_}, but is {f'{value:g}' if isinstance(value, float) else value}"
        for each in fields(config)
        if (value := values[each.name]) is not None
        and each.name not in wrong
        and (range_ := _missed_range(each, value))
    ]
    if wrong:  # the checks below need values of the right types
        raise UserError.of([*wrong.values(), *problems])
    heads, width = cfg.encoder_attention_heads, cfg.encoder_embed_dim
    if heads > 0 and width % heads and not getattr(cfg, "head_dim", 0):
        problems.append(
            f"--encoder-embed-dim must be a multiple of --encoder-attention-heads ({heads}), but is {width}"
        )
    if cfg.pretrained and getattr(cfg, "random_init", False):
        problems.append(f"--random-init and --pretrained {cfg.pretrained} exclude each other: give one of them")
    return problems


def _missed_type(declared: Field[Any], value: Any) -> str | None:
    """Return the type that a number or switch should have, if the value has another type; otherwise None."""
    kinds = typing.get_args(declared.type) or (declared.type,)
    if bool in kinds:
        return None if isinstance(value, bool) else "True or False"
    if float in kinds:
        return None if isinstance(value, float) or type(value) is int else "a number"
    return "a whole number" if int in kinds and type(value) is not int else None


def _missed_range(declared: Field[Any], value: Any) -> str | None:
    """Return the range of an option if the value lies outside of it; otherwise None."""
    least, below, above, most = (declared.metadata.get(name) for name in ("least", "below", "above", "most"))
    if isinstance(value, float) and not math.isfinite(value):
        return "a finite number"
    if most is not None and value > most:
        return f"at most {most:,}"
    if above is not None and value <= above:
        return f"above {above}"
    if least is not None and (value < least or (below is not None and value >= below)):
        return f"at least {least}" if below is None else f"at least {least} and below {below}"
    kinds = typing.get_args(declared.type) or (declared.type,)
    choices = [choice.value for kind in kinds if issubclass(kind, Enum) for choice in kind]
    if choices and str(value) not in choices:
        return f"one of {', '.join(choices)}"
    return None
