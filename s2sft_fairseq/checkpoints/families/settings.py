"""Reading settings of a configuration, with errors that name all that is wrong."""

from collections.abc import Mapping
from typing import Any

from s2sft_fairseq.errors import UserError

# Our names of sizes -> those of Hugging Face's configurations.
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
        f"the configuration's {theirs} must be a whole number above 0, but is {config[theirs]!r}"
        for theirs in names.values()
        if type(config[theirs]) is not int or config[theirs] < 1
    ]:
        raise UserError.of(problems)
    return {ours: config[theirs] for ours, theirs in names.items()}


def must_be(config: Mapping[str, Any], **values: Any) -> None:
    """Check that settings of which only one value has a counterpart here have it, where they are given.

    Raises:
        UserError: listing every one that has another.
    """
    if problems := [
        f"the configuration's {name} must be {needed!r} for this model, but is {config[name]!r}"
        for name, needed in values.items()
        if config.get(name, needed) != needed
    ]:
        raise UserError.of(problems)


def activation(config: Mapping[str, Any], name: str) -> str:
    """Return our name of the activation.

    Raises:
        UserError: if there is none.
    """
    theirs = config.get(name, "gelu")
    if theirs not in ACTIVATIONS:
        raise UserError(f"the configuration's {name} must be one of {', '.join(ACTIVATIONS)}, but is {theirs!r}")
    return ACTIVATIONS[theirs]


def activation_name(sizes: Mapping[str, Any]) -> str:
    """Return Hugging Face's name of an activation."""
    name = str(sizes["activation_fn"])
    return "gelu_pytorch_tanh" if name == "gelu_tanh" else name


def rotary_base(
    config: Mapping[str, Any], default: float, kind: str | None = None, old_name: str = "rope_theta"
) -> float:
    """Return the base of the rotary positions, a setting of its own until transformers 5.

    Args:
        config: the configuration.
        default: where it says nothing.
        kind: of layers, where each kind has its own.
        old_name: of that setting.

    Raises:
        UserError: if the angles are computed in another way.
    """
    parameters = config.get("rope_parameters") or {}
    if kind is not None:
        parameters = parameters.get(kind) or {}
    scaling = parameters.get("rope_type", "default") if parameters else config.get("rope_scaling") or "default"
    if scaling != "default":
        of_kind = "" if kind is None else f" for {kind}"
        raise UserError(f"the configuration's rope_type must be 'default' for this model, but is {scaling!r}{of_kind}")
    found = parameters.get("rope_theta", config.get(old_name))
    return float(default if found is None else found)


def one_kind_of_rotation(base: float) -> dict[str, Any]:
    """Return the ``rope_parameters`` of a model whose layers are all of one kind."""
    return {"rope_type": "default", "rope_theta": base}
