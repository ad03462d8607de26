"""Convert the parameters of an encoder, or of DeltaLM's official checkpoints, to those of the `deltalm` model.

The names of the model are fairseq's, ``encoder.layers.N.*`` and ``decoder.layers.N.*``. Encoder, decoder and output
share one token embedding, ``encoder.embed_tokens.weight``.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from s2sft_fairseq.checkpoints.conversion import MOST_LAYERS, Conversion, Sizes, Weights, must_be
from s2sft_fairseq.errors import UserError

FAMILY = "DeltaLM"
TOKENS = "encoder.embed_tokens.weight"
COPIES = ("decoder.embed_tokens.weight", "decoder.output_projection.weight")
"""Other names of the token embedding."""
POSITIONS = ("encoder.embed_positions.weight", "decoder.embed_positions.weight")
TABLES = (TOKENS, *POSITIONS)
"""The tables, which may have more or fewer rows than those of the model."""
SENTINELS = 100
"""Number of sentinels in the official token tables: their last rows (microsoft/unilm, issue 881)."""
_FFN = "encoder.layers.0.fc1.weight"
_VERSIONS = ("encoder.version", "decoder.version")  # buffers with the version of fairseq's code

# Patterns of our encoder's names, and their replacements in fairseq's names.
_ENCODER_NAMES = (
    (r"^embeddings\.tokens\.", "embed_tokens."),
    (r"^embeddings\.layer_norm\.", "layernorm_embedding."),
    (r"\.attention\.output\.", ".self_attn.out_proj."),
    (r"\.attention_layer_norm\.", ".self_attn_layer_norm."),
)
_OFFICIAL_NAMES = (
    (r"^src_embedding\.", "encoder."),
    (r"^tgt_embedding\.", "decoder."),
    (r"\.emb_layer_norm\.", ".layernorm_embedding."),
    (r"\.ffn_1\.fc1\.", ".fc3."),
    (r"\.ffn_1\.fc2\.", ".fc4."),
    (r"\.ffn(_2)?\.", "."),
)

# Parts of a decoder layer, and the parts of an encoder layer that initialize them (section 2.2 of the paper).
_FROM_ODD = {
    "self_attn": "self_attn",
    "self_attn_layer_norm": "self_attn_layer_norm",
    "fc3": "fc1",
    "fc4": "fc2",
    "ffn_layer_norm": "final_layer_norm",
}
_FROM_EVEN = {
    "encoder_attn": "self_attn",
    "encoder_attn_layer_norm": "self_attn_layer_norm",
    "fc1": "fc1",
    "fc2": "fc2",
    "final_layer_norm": "final_layer_norm",
}


def encoder_weights(weights: Mapping[str, Tensor], pad: int) -> Weights:
    """Return the parameters of a `unilm` model's encoder by fairseq's names, ``embed_tokens.weight`` and so on.

    Its position table (P, H) becomes fairseq's (pad + 1 + P, H), whose first rows belong to no position. The embedding
    of segment 0, which all tokens of a single text have, is added to it. The language model head is left out.

    Args:
        weights: the parameters by the names of the `unilm` model.
        pad: id of the padding.
    """
    renamed: Weights = {}
    positions = weights["embeddings.positions.weight"]
    if (segments := weights.get("embeddings.segments.weight")) is not None:
        positions = positions + segments[0]
    renamed["embed_positions.weight"] = torch.cat([positions.new_zeros(pad + 1, positions.size(1)), positions])
    for name, value in weights.items():
        if name.startswith(("lm_head.", "embeddings.positions.", "embeddings.segments.")):
            continue
        if ".attention.qkv." in name:
            for part, rows in zip("qkv", value.chunk(3), strict=True):
                renamed[name.replace(".attention.qkv.", f".self_attn.{part}_proj.")] = rows
        else:
            renamed[_rename(name, _ENCODER_NAMES)] = value
    return renamed


def interleave(encoder: Mapping[str, Tensor], decoder_layers: int) -> Weights:
    """Return the parameters of the model, all copied from the encoder as in the paper.

    Counted from 1, layer i of the decoder gets its self-attention and lower feed-forward network from layer 2i - 1 of
    the encoder, its cross-attention and upper feed-forward network from layer 2i, each with its layer norm.

    Args:
        encoder: the parameters by fairseq's names, see :func:`encoder_weights`; at least ``2 * decoder_layers`` layers.
        decoder_layers: number of layers of the decoder.
    """
    weights = {f"encoder.{name}": value for name, value in encoder.items()}
    for name, value in encoder.items():
        if not name.startswith(("layers.", "embed_tokens.")):
            weights[f"decoder.{name}"] = value.clone()
    for layer in range(decoder_layers):
        for source, parts in ((2 * layer, _FROM_ODD), (2 * layer + 1, _FROM_EVEN)):
            for part, origin in parts.items():
                prefix = f"layers.{source}.{origin}."
                for name, value in encoder.items():
                    if name.startswith(prefix):
                        rest = name.removeprefix(prefix)
                        weights[f"decoder.layers.{layer}.{part}.{rest}"] = value
    return weights


def is_deltalm(names: Iterable[str]) -> bool:
    """Return whether these are the parameters of DeltaLM, whose decoder layers have two feed-forward networks."""
    return any(re.match(r"decoder\.layers\.\d+\.(ffn_1\.fc1|fc3)\.", name) for name in names)


def read_deltalm(source: Mapping[str, Tensor], options: Mapping[str, Any], pad: int) -> Conversion:
    """Convert a DeltaLM checkpoint: an official one, or one of a training by the official program or this plugin.

    The sizes come from the shapes and from the options; official files have no options.

    Args:
        source: the parameters, by official or fairseq's names.
        options: the known options of the model.
        pad: id of the padding.

    Raises:
        UserError: a parameter that the sizes are read from is missing or not a matrix, there are too many layers, or an
            option has a value that DeltaLM has not. :func:`fit_problems` checks all other parameters.
    """
    must_be(options, no_scale_embedding=True, encoder_normalize_before=False, decoder_normalize_before=False)
    must_be(options, encoder_learned_pos=True, decoder_learned_pos=True)
    weights = {name: value for name, value in official_weights(source).items() if name not in _VERSIONS}
    tied = tie(weights)
    try:
        for name in (TOKENS, _FFN, *POSITIONS):
            if weights[name].dim() != 2:
                found = tuple(weights[name].shape)
                raise UserError(f"this is no DeltaLM checkpoint: {name} must be a matrix, but has the shape {found}")
        sizes: Sizes = sizes_of(weights, pad)
    except KeyError as error:
        raise UserError(f"this is no DeltaLM checkpoint: it lacks {error.args[0]}") from None
    if (most := max(sizes["encoder_layers"], sizes["decoder_layers"])) > MOST_LAYERS:
        raise UserError(f"this is no DeltaLM checkpoint: it names {most:,} layers, but {MOST_LAYERS:,} are the most")
    for name in ("encoder_attention_heads", "layer_norm_eps", "activation_fn"):
        if (value := options.get(name)) is not None:
            sizes[name] = value
    notes = [] if tied else ["the token embeddings of source and target differ; both become the target's here"]
    return Conversion(FAMILY, weights, sizes, notes=notes, model="deltalm", tokens=TOKENS)


def fit_problems(shapes: Mapping[str, tuple[int, ...]], weights: Mapping[str, Tensor]) -> list[str]:
    """Compare parameters with the shapes that a model needs; the numbers of rows of tables may differ.

    Returns:
        A sentence for each parameter that is missing, unknown or of another shape.
    """
    own = {name: shape for name, shape in shapes.items() if name not in (*COPIES, *_VERSIONS)}
    problems = [f"{name} is missing" for name in own.keys() - weights.keys()]
    problems += [f"{name} is unknown" for name in weights.keys() - own.keys()]
    problems += [
        f"{name} must have the shape {tuple(own[name])}, but has {tuple(weights[name].shape)}"
        for name in own.keys() & weights.keys()
        if _rowless(name, own[name]) != _rowless(name, weights[name].shape)
    ]
    return sorted(problems)


def official_weights(weights: Mapping[str, Tensor]) -> Weights:
    """Return the parameters of an official checkpoint by fairseq's names."""
    return {_rename(name, _OFFICIAL_NAMES): value for name, value in weights.items()}


def tie(weights: Weights) -> bool:
    """Keep, in place, one of several token embeddings: the decoder's if there is one, as in the official program.

    Returns:
        Whether all of them were equal.
    """
    tables = [weights.pop(name) for name in COPIES if name in weights]
    tables += [weights[TOKENS]] if TOKENS in weights else []
    if not tables:
        return True
    weights[TOKENS] = tables[0]
    return all(table is tables[0] or torch.equal(table, tables[0]) for table in tables)


def sizes_of(weights: Mapping[str, Tensor], pad: int) -> dict[str, int | str]:
    """Return the sizes that follow from the shapes, by the names of `DeltaLMConfig`; ``pad``: id of the padding."""
    return {
        "encoder_layers": _num_layers(weights, "encoder"),
        "decoder_layers": _num_layers(weights, "decoder"),
        "encoder_embed_dim": weights[TOKENS].size(1),
        "encoder_ffn_embed_dim": weights[_FFN].size(0),
        "layernorm_embedding": "yes" if "encoder.layernorm_embedding.weight" in weights else "no",
        "max_positions": max(len(weights[name]) for name in POSITIONS) - pad - 1,
    }


def _rowless(name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape, for tables without the number of rows."""
    return tuple(shape[1:] if name in TABLES else shape)


def _num_layers(weights: Mapping[str, Tensor], side: str) -> int:
    numbers = [int(found[1]) for name in weights if (found := re.match(rf"{side}\.layers\.(\d{{1,9}})\.", name))]
    return max(numbers, default=-1) + 1


def _rename(name: str, patterns: tuple[tuple[str, str], ...]) -> str:
    for pattern, replacement in patterns:
        name = re.sub(pattern, replacement, name)
    return name
