"""Read the settings of a configuration, with errors that list everything that is wrong."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from s2sft_fairseq.checkpoints.conversion import MOST_LAYERS, must_be
from s2sft_fairseq.errors import UserError, shown

_KINDS: dict[str, tuple[tuple[type, ...], tuple[str, ...]]] = {
    "a whole number": (
        (int,),
        (
            *("type_vocab_size", "sent_type_vocab_size", "rel_pos_bins", "max_rel_pos", "max_relative_positions"),
            *("position_buckets", "embedding_size", "attention_head_size", "head_dim", "num_key_value_heads"),
            *("global_attn_every_n_layers", "sliding_window", "prediction_head_size", "max_length", "vocab_size"),
            *("cls_token_id", "sep_token_id", "target_type_id", "decoder_layers", "encoder_attention_heads"),
            *("no_rope_layer_interval", "sliding_window_pattern", "_sliding_window_pattern", "query_pre_attn_scalar"),
        ),
    ),
    "a number": (
        (int, float),
        (
            *("layer_norm_eps", "norm_eps", "rms_norm_eps", "layer_norm_epsilon"),
            *("rope_theta", "global_rope_theta", "local_rope_theta", "rotary_emb_base", "rope_local_base_freq"),
        ),
    ),
    "true or false": (
        (bool,),
        (
            *("attention_bias", "mlp_bias", "norm_bias", "classifier_bias", "tie_word_embeddings", "share_att_key"),
            *("relative_attention", "position_biased_input", "use_sliding_window", "use_bidirectional_attention"),
        ),
    ),
    "a text": (
        (str,),
        (
            *("model_type", "hidden_act", "hidden_activation", "classifier_activation", "activation_function"),
            *("activation_fn", "norm_rel_ebd", "position_embedding_type"),
        ),
    ),
    "a text or a list of texts": ((str, list), ("pos_att_type",)),
    "a whole number or a text": ((int, str), ("source_type_id",)),
    "a list": ((list,), ("layer_types", "attention_windows", "no_rope_layers")),
    "an object": ((dict,), ("rope_parameters",)),
}
"""The optional settings that families read, by the kind of their values: the types, and the names of the settings."""

NULLABLE = frozenset(name for _, names in _KINDS.values() for name in names if not name.endswith(("eps", "epsilon")))
"""The optional settings that may be null, which means the same as leaving them out: all but the epsilons."""

# Our names of sizes -> those in Hugging Face's configurations.
HUGGING_FACE_SIZES = {
    "encoder_layers": "num_hidden_layers",
    "encoder_embed_dim": "hidden_size",
    "encoder_ffn_embed_dim": "intermediate_size",
    "encoder_attention_heads": "num_attention_heads",
    "max_positions": "max_position_embeddings",
}

# Hugging Face's and fairseq's names of activations -> ours.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}


def checked_kinds(file: Path, config: Mapping[str, Any]) -> dict[str, Any]:
    """Check the types of all given settings that any family reads.

    Args:
        file: the file of the configuration, for the message.
        config: the configuration.

    Returns:
        The configuration without the settings of `NULLABLE` that are null.

    Raises:
        UserError: listing every setting of a wrong type.
    """
    problems = [
        f"the configuration's {name} must be {kind}, but is {shown(config[name])}"
        for kind, (types, names) in _KINDS.items()
        for name in names
        if config.get(name) is not None and type(config[name]) not in types
    ]
    problems += [
        f"the configuration's {name} must have at most {MOST_LAYERS:,} items, but has {len(config[name]):,}"
        for name in _KINDS["a list"][1]
        if isinstance(config.get(name), list) and len(config[name]) > MOST_LAYERS
    ]
    given = config.get("pos_att_type")
    if isinstance(given, list) and not all(isinstance(each, str) for each in given):
        problems.append(f"the configuration's pos_att_type must hold texts, but is {shown(given)}")
    if problems:
        raise UserError.of(f"{file}: {problem}" for problem in problems)
    return {name: value for name, value in config.items() if value is not None or name not in NULLABLE}


def required(config: Mapping[str, Any], **names: str) -> dict[str, Any]:
    """Return ``config[theirs]`` for each ``ours=theirs``.

    Raises:
        UserError: listing every setting that is missing or not a whole number above 0.
    """
    missing = [theirs for theirs in names.values() if theirs not in config]
    if missing:
        found = ", ".join(sorted(config)) or "nothing"
        raise UserError(f"the configuration must have {', '.join(missing)}, but has only: {found}")
    if problems := [
        f"the configuration's {theirs} must be a whole number above 0, but is {shown(config[theirs])}"
        for theirs in names.values()
        if type(config[theirs]) is not int or config[theirs] < 1
    ]:
        raise UserError.of(problems)
    return {ours: config[theirs] for ours, theirs in names.items()}


def activation(config: Mapping[str, Any], name: str) -> str:
    """Return our name of the activation in the setting ``name``; ``gelu`` if it is not given.

    Raises:
        UserError: if the activation is not supported.
    """
    theirs = config.get(name, "gelu")
    if theirs not in ACTIVATIONS:
        raise UserError(f"the configuration's {name} must be one of {', '.join(ACTIVATIONS)}, but is {shown(theirs)}")
    return ACTIVATIONS[theirs]


def activation_name(sizes: Mapping[str, Any], option: str = "activation_fn") -> str:
    """Return Hugging Face's name of an activation: that of the layers, if `option` is not set."""
    name = str(sizes.get(option) or sizes["activation_fn"])
    return "gelu_pytorch_tanh" if name == "gelu_tanh" else name


def head_with_gelu(sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the activation of a head that has gelu, whatever the activation of the layers."""
    return {} if sizes["activation_fn"] == "gelu" else {"lm_head_activation_fn": "gelu"}


# Kinds of scaled rotary positions in Hugging Face's configurations, and their settings in the order of ours.
_SCALINGS = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


def rotary_base(
    config: Mapping[str, Any],
    default: float | None,
    kind: str | None = None,
    old_name: str = "rope_theta",
    scalings: Sequence[str] = ("default",),
) -> float:
    """Return the base of the rotary positions, which had a setting of its own before transformers 5.

    Args:
        config: the configuration.
        default: the base if the configuration does not set it; None if programs differ in it.
        kind: the kind of layers, if each kind has its own base.
        old_name: the name of the setting before transformers 5.
        scalings: the values of ``rope_type`` that are supported.

    Raises:
        UserError: if a setting has a wrong type, the rotary positions are scaled in another way, or the base is not
            known.
    """
    parameters, named = _rope_parameters(config, kind), _rope_scaling(config)
    older = _rope_type(named)
    scaling = older if older != "default" else _rope_type(parameters)
    if scaling not in scalings:
        needed = repr(scalings[0]) if len(scalings) == 1 else f"one of {', '.join(scalings)}"
        of_kind = "" if kind is None else f" for {kind}"
        raise UserError(
            f"the configuration's rope_type must be {needed} for this model, but is {shown(scaling)}{of_kind}"
        )
    found = parameters.get("rope_theta", config.get(old_name))
    if named.get("rope_theta", found) != found:
        raise UserError(f"the configuration's rope_scaling.rope_theta must be rope_theta, {found}, but is another")
    if type(found) not in (int, float, type(None)):
        raise UserError(f"the configuration's rope_theta must be a number, but is {shown(found)}")
    if (base := default if found is None else found) is None:
        raise UserError(f"the configuration must have {old_name}, the base of the rotary positions, but has none")
    return float(base)


def rotation(config: Mapping[str, Any], default: float, kind: str | None = None) -> dict[str, Any]:
    """Return the sizes of rotary positions that may be scaled: ``rotary_base`` and ``rotary_scaling``.

    Args:
        config: the configuration.
        default: the base if the configuration does not set it.
        kind: the kind of layers, if each kind has its own.

    Raises:
        UserError: see :func:`rotary_base`; or a setting of the scaling is missing or wrong, or there are two scalings.
    """
    base = rotary_base(config, default, kind, scalings=("default", *_SCALINGS))
    found = [each for each in (_rope_scaling(config), _rope_parameters(config, kind)) if each]
    for settings in found:
        must_be(settings, partial_rotary_factor=1)
    scalings = {_scaling_text(settings) for settings in found}
    if len(scalings) > 1:
        raise UserError("the configuration's rope_scaling must be that of rope_parameters, but is another")
    return {"rotary_base": base, "rotary_scaling": next(iter(scalings), "")}


def rotation_settings(sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that :func:`rotation` reads, by the names that all versions of transformers read."""
    settings: dict[str, Any] = {"rope_theta": sizes["rotary_base"]}
    kind, *numbers = str(sizes["rotary_scaling"]).split(":")
    if kind:
        named = dict(zip(_SCALINGS[kind], map(float, numbers), strict=True))
        if positions := named.get("original_max_position_embeddings"):
            named["original_max_position_embeddings"] = int(positions)
        settings["rope_scaling"] = {"rope_type": kind, **named}
    return settings


def _scaling_text(settings: Mapping[str, Any]) -> str:
    """Return a scaling as ``--rotary-scaling`` has it; empty if there is none."""
    kind = _rope_type(settings)
    if kind == "default":
        return ""
    numbers: dict[str, Any] = {name: settings.get(name) for name in _SCALINGS[kind]}
    if problems := [
        f"the configuration's {name} must be a number above 0 with rope_type {kind!r}, but is {shown(value)}"
        for name, value in numbers.items()
        if type(value) not in (int, float) or not 0 < value < math.inf
    ]:
        raise UserError.of(problems)
    # So that 8 and 8.0 are the same text.
    return ":".join([kind, *(f"{float(value):.15g}" for value in numbers.values())])


def _rope_parameters(config: Mapping[str, Any], kind: str | None) -> Mapping[str, Any]:
    """Return ``rope_parameters`` of the layers of a kind; None: of all layers."""
    of_kinds: dict[str, Any] = config.get("rope_parameters") or {}
    if kind is None:
        if nested := [name for name, value in of_kinds.items() if isinstance(value, dict)]:
            raise UserError(f"the configuration's rope_parameters must be those of all layers, but has {shown(nested)}")
        return of_kinds
    for name, value in of_kinds.items():
        if not isinstance(value, dict | None):
            raise UserError(f"the configuration's rope_parameters.{name:.40} must be an object, but is {shown(value)}")
    return of_kinds.get(kind) or {}


def _rope_scaling(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return ``rope_scaling``: the name before transformers 5, which still reads it, whatever rope_parameters says."""
    named = config.get("rope_scaling") or {}
    return named if isinstance(named, dict) else {"rope_type": named}


def _rope_type(settings: Mapping[str, Any]) -> Any:
    return settings.get("rope_type", settings.get("type", "default"))


def one_kind_of_rotation(base: float) -> dict[str, Any]:
    """Return the ``rope_parameters`` for layers of one kind."""
    return {"rope_type": "default", "rope_theta": base}
