"""Convert the parameters of a pretrained encoder to those of the `unilm` model, and back.

Each family (`s2sft_fairseq.checkpoints.families`) is described by data: its names of parameters, where its sizes are,
and the few tensors that it stores in another form. The conversion itself is the same for all families and is here.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import torch
from torch import Tensor

from s2sft_fairseq.checkpoints.finite_weights import dtype_name
from s2sft_fairseq.errors import UserError, as_option, shown
from s2sft_fairseq.search_bounds import MOST_POSITIONS

Weights = dict[str, Tensor]
Sizes = dict[str, Any]
ShapesOf = Callable[[Sizes, int], dict[str, tuple[int, ...]]]
"""Function from the sizes and the number of symbols to the shape of each parameter of the model."""

_FUSED = {
    "attention.qkv": ("attention.query", "attention.key", "attention.value"),
    "fc1": ("gate", "up"),
}
"""Layers of ours that are several in other programs, with the names that families use for those. The first half of the
``fc1`` of a gated feed-forward network is the one that goes through the activation."""


TOKENS, OUTPUT_MATRIX, OUTPUT_BIAS = "embeddings.tokens.weight", "lm_head.weight", "lm_head.bias"
SECOND_BIAS = "lm_head.second_bias"  # no parameter of ours: only for `Family.second_bias`


def _unchanged(weights: Weights, sizes: Sizes, config: Mapping[str, Any]) -> None:
    """Change nothing."""


@dataclass(frozen=True)
class Family:
    """Names and storage of the parameters of a family of encoders. ``{}`` in a name stands for the index of a layer."""

    name: str
    modules: Mapping[str, str]
    """Their modules -> ours, each with ``weight`` and ``bias``."""
    parameters: Mapping[str, str]
    """Their single parameters -> ours."""
    sizes: Callable[[Mapping[str, Any]], Sizes]
    """Function from their configuration to sizes by the names of `UnilmConfig`."""
    config: Callable[[Sizes], dict[str, Any]] | None = None
    """The inverse of ``sizes``; None for a format that is read only."""
    base: str = ""
    """Prefix of the names of the encoder itself; files of an encoder without a head leave it out."""
    models: str = ""
    """Published models of the family."""
    model_types: tuple[str, ...] = ()
    """Values of ``model_type`` in their configurations."""
    signature: str = r"(?!)"
    """Pattern that only names of this family match; takes precedence over ``model_type``."""
    spelling: tuple[tuple[str, str], ...] = ()
    """Patterns of names in older files, and their replacements by current names."""
    unused: str = r"(?!)"
    """Pattern of the parts of the encoder itself that a generator does not use. Parts outside ``base`` are not needed
    either."""
    tied: tuple[str, ...] = ()
    """Their output matrix, which is left out if it is the token embedding."""
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values of settings that their configurations may leave out, where families differ."""
    second_bias: str = ""
    """Their other name of the output bias. It counts if a file lacks the first one, or if the configuration does not
    tie the output matrix, whose own bias it is then."""
    adapt: Callable[[Weights, Sizes, Mapping[str, Any]], None] = _unchanged
    """Convert, in place and after renaming, the tensors that are stored in another form, with their configuration; may
    change the sizes too."""
    restore: Callable[[Weights, Sizes, dict[str, Any]], None] = _unchanged
    """The inverse of ``adapt``; may change the configuration too."""
    padding: Callable[[Mapping[str, Any]], int | None] = lambda config: None
    """Function from their configuration to the id that counts for no position; None if all ids count."""
    layout: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda config: {}
    """The layout of fine-tuning that their configuration suggests, by the names of the task's options."""
    finetuned: bool = False
    """Whether checkpoints of this family are fine-tuned already."""

    def names(self, num_layers: int) -> dict[str, str]:
        """Return the mapping from all of their names to ours."""
        pairs = dict(self.parameters)
        for theirs, ours in self.modules.items():
            pairs |= {f"{theirs}.{kind}": f"{ours}.{kind}" for kind in ("weight", "bias")}
        expanded: dict[str, str] = {}
        for theirs, ours in pairs.items():
            layers = range(num_layers) if "{}" in theirs else range(1)
            expanded |= {theirs.format(layer): ours.format(layer) for layer in layers}
        return expanded

    def respell(self, name: str) -> str:
        """Return the current name of a parameter that may have an older one."""
        for pattern, replacement in self.spelling:
            name = re.sub(pattern, replacement, name)
        return name


@dataclass
class Conversion:
    """The result of a conversion."""

    family: str
    weights: Weights
    """By our names."""
    sizes: Sizes
    """By the names of the options of ``model``: those of `UnilmConfig`, or of `DeltaLMConfig`."""
    layout: dict[str, Any] = field(default_factory=dict)
    """The layout of fine-tuning that the configuration suggests."""
    unused: list[str] = field(default_factory=list)
    """Names in the source that were left out."""
    missing: list[str] = field(default_factory=list)
    """Parameters that the source lacks; training initializes them."""
    notes: list[str] = field(default_factory=list)
    """Further notes for the user, a sentence each."""
    finetuned: bool = False
    model: str = "unilm"
    """The name of the registered model."""
    tokens: str = TOKENS
    """Name of the token embedding."""
    padding: int | None = None
    """The id that counts for no position in the source; None if all ids count."""


_SHOWN = 120  # maximum number of characters of a name in a message
# Far above any real encoder. Without a limit, the names of a billion layers alone would take gigabytes.
MOST_LAYERS = 1_000
_MOST = {
    "encoder_layers": MOST_LAYERS,
    **dict.fromkeys(("encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads", "head_dim"), 1_000_000),
    "max_positions": MOST_POSITIONS,
    "local_attention_window": 2 * MOST_POSITIONS,
}


def check_sizes(sizes: Mapping[str, Any]) -> None:
    """Check the sizes that a family read from a configuration, before any memory is allocated for them.

    Raises:
        UserError: listing every size that is out of range.
    """
    problems = []
    for name, most in _MOST.items():
        if (size := sizes.get(name, 0)) > most:
            found = f"{size:,}" if size < 2**63 else shown(size)
            problems.append(f"{as_option(name)} must be at most {most:,}, but the configuration says {found}")
    epsilon = sizes.get("layer_norm_eps", 1)  # not every family sets it
    if not (type(epsilon) in (int, float) and 0 < epsilon < math.inf):
        problems.append(f"--layer-norm-eps must be a number above 0, but the configuration says {shown(epsilon)}")
    if problems:
        raise UserError.of(problems)


def must_be(config: Mapping[str, Any], **values: Any) -> None:
    """Check that settings have the only value that is supported, if they are given and not null.

    Raises:
        UserError: listing every setting that has another value.
    """
    if problems := [
        f"the configuration's {name} must be {needed!r} for this model, but is {shown(config[name])}"
        for name, needed in values.items()
        if config.get(name) not in (None, needed)
    ]:
        raise UserError.of(problems)


def read(family: Family, source: Weights, config: Mapping[str, Any], shapes_of: ShapesOf) -> Conversion:
    """Convert a checkpoint; ``source`` is emptied on the way, so that no tensor is held twice.

    Args:
        family: the family of the checkpoint.
        source: its tensors by name.
        config: its configuration.
        shapes_of: returns the shapes that the model expects.

    Raises:
        UserError: listing every parameter that is missing, unknown or of an unexpected shape.
    """
    config = {**family.defaults, **config}
    sizes = family.sizes(config)
    check_sizes(sizes)
    num_layers = sizes["encoder_layers"]
    names = [name[:_SHOWN] for name in source]
    is_untied = config.get("tie_word_embeddings") is False or bool(config.get("untie_weights_roberta"))
    weights, unused, problems, matrices = _rename(family, source, num_layers, is_untied)
    untied = _place_matrices(weights, matrices, sizes, config)
    unused += matrices
    del matrices
    if not weights:
        examples = ", ".join(sorted(names)[:5])
        raise UserError(f"none of the {len(names):,} parameters is one of {family.name}, such as {examples}")
    theirs_of = _theirs_of(family, num_layers)
    heading = f"this is not the {family.name} checkpoint that its configuration describes:"
    try:
        incomplete = _fuse_projections(weights, num_layers)
        problems += [f"{theirs_of[name]} is missing" for name in incomplete]
        if not problems:
            family.adapt(weights, sizes, config)
    except RuntimeError as error:  # raised by PyTorch
        problems.append(f"tensors that belong together are of different sizes: {error}")
        raise UserError.of(problems, heading) from None
    rows = len(weights.get(TOKENS, ()))
    if rows and config.get("vocab_size", rows) != rows:
        problems.append(
            f"the configuration's vocab_size is {shown(config['vocab_size'])}, but the token embedding has {rows} rows"
        )
    problems += [
        f"{theirs_of.get(name, name)} must hold floating-point numbers, but holds {dtype_name(value)}"
        for name, value in sorted(weights.items())
        if not value.is_floating_point()
    ]
    expected = shapes_of(sizes, rows)
    missing = sorted(expected.keys() - weights.keys())
    if not incomplete:
        problems += [
            f"{theirs_of.get(name, name)} is missing"
            for ours in missing
            if not ours.startswith("lm_head.")
            for name in ([ours] if ours in theirs_of else _parts(ours))
        ]
    problems += [
        f"{theirs_of.get(name, name)} is unexpected: the configuration has no such part"
        for name in sorted(weights.keys() - expected)
    ]
    problems += [
        f"{theirs_of.get(name, name)} must have the shape {expected[name]}, but has {tuple(weights[name].shape)}"
        for name in sorted(expected.keys() & weights.keys())
        if expected[name] != tuple(weights[name].shape)
    ]
    if problems:
        raise UserError.of(problems, heading)
    notes = [
        f"{name} differs from the token embedding, to which the output matrix is tied here: logits will differ"
        for name in untied
    ]
    weights = {name: _alone(weights.pop(name)) for name in sorted(weights)}
    layout, padding = family.layout(config), family.padding(config)
    return Conversion(family.name, weights, sizes, layout, unused, missing, notes, family.finetuned, padding=padding)


def write(family: Family, weights: Mapping[str, Tensor], sizes: Sizes, config: dict[str, Any] | None = None) -> Weights:
    """Return the weights of a model under a family's names: the inverse of :func:`read`.

    Args:
        family: the family.
        weights: the weights by our names.
        sizes: the sizes of the model.
        config: the configuration for these weights; it may be changed.
    """
    weights, sizes, config = dict(weights), dict(sizes), {} if config is None else config
    family.restore(weights, sizes, config)
    theirs_of = _theirs_of(family, sizes["encoder_layers"])
    if family.tied and OUTPUT_MATRIX in weights:
        theirs_of[OUTPUT_MATRIX] = family.tied[0]
        config["tie_word_embeddings"] = False
        if family.second_bias and OUTPUT_BIAS in weights:
            theirs_of[SECOND_BIAS] = family.second_bias
            weights[SECOND_BIAS] = weights[OUTPUT_BIAS].clone()
    for name in [name for name in weights if name not in theirs_of and _parts(name)[0] in theirs_of]:
        parts = _parts(name)
        rows = _rows_of_parts(sizes) if len(parts) == len(_FUSED["attention.qkv"]) else len(weights[name]) // 2
        weights |= zip(parts, (part.contiguous() for part in weights.pop(name).split(rows)), strict=True)
    return {theirs_of[name]: value for name, value in weights.items()}


def _theirs_of(family: Family, num_layers: int) -> dict[str, str]:
    return {ours: theirs for theirs, ours in family.names(num_layers).items()}


def _parts(fused: str) -> list[str]:
    """Return the names of the parts of a fused layer, such as query, key and value; for any other name, the name."""
    for whole, parts in _FUSED.items():
        if f".{whole}." in fused:
            return [fused.replace(f".{whole}.", f".{part}.") for part in parts]
    return [fused]


def _rows_of_parts(sizes: Sizes) -> list[int]:
    """Return the numbers of rows of query, key and value; grouped-query attention has fewer keys and values."""
    heads = sizes["encoder_attention_heads"]
    head_dim = sizes.get("head_dim") or sizes["encoder_embed_dim"] // heads
    shared = (sizes.get("key_value_heads") or heads) * head_dim
    return [heads * head_dim, shared, shared]


def _rename(
    family: Family, source: Weights, num_layers: int, is_untied: bool
) -> tuple[Weights, list[str], list[str], Weights]:
    """Move the tensors out of ``source``.

    Returns:
        The weights by our names; the unused names; problems, a sentence for each unknown name; and the output matrices
        that may be the token embedding, by their names.
    """
    names = family.names(num_layers)
    spelled = {name: family.respell(name) for name in source}
    has_base = any(name.startswith(family.base) for name in spelled.values())
    weights: Weights = {}
    matrices: Weights = {}
    unused, problems = [], []
    ours_of = {name: names.get(today) or names.get(family.base + today) for name, today in spelled.items()}
    # Current names come after older ones, and the last of them counts. The second name of the bias comes last.
    for name, today in sorted(spelled.items(), key=lambda pair: (pair[1] == family.second_bias, pair[0] == pair[1])):
        value, ours = source.pop(name).detach(), ours_of[name]
        if today in family.tied:
            matrices[name] = value
        elif today == family.second_bias and OUTPUT_BIAS in weights and not is_untied:
            unused.append(name)
        elif today == family.second_bias:
            weights[OUTPUT_BIAS] = value
        elif ours is not None:
            weights[ours] = value
        elif re.match(family.unused, today.removeprefix(family.base)) or (
            has_base and not today.startswith(family.base)
        ):
            unused.append(name)
        else:
            problems.append(f"{name} is no parameter of {family.name}")
    return weights, unused, problems, matrices


def _place_matrices(weights: Weights, matrices: Weights, sizes: Sizes, config: Mapping[str, Any]) -> list[str]:
    """Use an output matrix as it is if the configuration says so, and as the token embedding if that is missing.

    Those that are used are removed from ``matrices``.

    Returns:
        The names of the matrices that differ from the token embedding, to which the configuration ties them.
    """
    differing = []
    for name, matrix in list(matrices.items()):
        if TOKENS not in weights:
            weights[TOKENS] = matrices.pop(name)
        elif config.get("tie_word_embeddings") is False or config.get("untie_weights_roberta"):
            weights[OUTPUT_MATRIX] = matrices.pop(name)
            sizes["output_matrix"] = "own"
        elif not _equal(matrix, weights[TOKENS]):
            differing.append(name)
    return differing


def _fuse_projections(weights: Weights, num_layers: int) -> list[str]:
    """Concatenate the separate parts of fused layers.

    Returns:
        The names of the missing parts of layers that have only some of their parts.
    """
    incomplete = []
    for layer, whole in product(range(num_layers), _FUSED):
        for kind in ("weight", "bias"):
            fused = f"layers.{layer}.{whole}.{kind}"
            missing = [name for name in _parts(fused) if name not in weights]
            found = [weights.pop(name) for name in _parts(fused) if name in weights]
            if not missing:
                weights[fused] = torch.cat(found)
            elif found:
                incomplete += missing
    return incomplete


def _equal(one: Tensor, other: Tensor) -> bool:
    return one.data_ptr() == other.data_ptr() or (one.shape == other.shape and torch.equal(one, other))


def _alone(value: Tensor) -> Tensor:
    """Return a contiguous tensor with its own storage: a copy if the tensor is a view of a larger one."""
    whole = value.untyped_storage().nbytes() == value.numel() * value.element_size()
    return value if whole and value.is_contiguous() else value.clone(memory_format=torch.contiguous_format)
