"""The attention weights of a layer over the packed sequence of a source and a target, as a picture and as numbers.

The weights are exact: they come from the layer's own projections, what the layer adds to the scores, and the rule of
visibility. What decoding predicts stands at placeholders, or at the last token of a causal model.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from s2sft_fairseq.api.loading import load
from s2sft_fairseq.api.passes import EncoderPass
from s2sft_fairseq.checkpoints.model_folder import engine_of, is_model_folder, what_it_is
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.modules.visibility import visible, within_window
from s2sft_fairseq.plots.drawing import name_tokens, save, token_axes, write_table
from s2sft_fairseq.tokenization.tokenize_files import TextTokenizer

MOST_TOKENS = 200
"""Of a packed sequence that is drawn."""


class PackedAttention(NamedTuple):
    """The attention of a layer. T: tokens of the packed sequence."""

    tokens: Sequence[str]
    """(T,)."""
    positions: Sequence[int]
    """(T,)."""
    labels: Sequence[str]
    """What is predicted at each token, "" where nothing is (T,)."""
    section: np.ndarray
    """0: context, 1: content, 2: placeholders (T,)."""
    weights: np.ndarray
    """From a query, the row, to a key, the column (T, T); rows add up to 1."""
    sees: np.ndarray
    """Whether the query sees the key (T, T)."""


def attend(folder: Path, source: str, target: str, layer: int = -1, head: int | None = None) -> PackedAttention:
    """Compute the attention of a layer of a model folder.

    Args:
        folder: the model folder.
        source: text; [SEP] stands between fields.
        target: text.
        layer: its index; -1: the last one.
        head: its index; None: the mean of all heads.

    Raises:
        UserError: naming every option that does not fit the model.
    """
    if not is_model_folder(folder) or engine_of(folder):
        what = what_it_is(folder) if folder.is_dir() else "no folder"
        what = f"one for {engine_of(folder)}" if is_model_folder(folder) else what
        raise UserError(f"FOLDER must be a model folder for PyTorch, as s2sft export writes it, but {folder} is {what}")
    loaded = load(folder, None, "cpu", "float32", None)
    model, task, dictionary = loaded.models[0], loaded.task, loaded.tokenizer.dictionary
    if hasattr(model, "decoder"):
        raise UserError(f"{folder} is an encoder-decoder, which has no packed sequence: give an encoder-only model")
    tokenizer = TextTokenizer(loaded.tokenizer)
    lines = [*tokenizer.encode([source], divided=True), *tokenizer.encode([target])]
    ids = [np.array([dictionary.index(symbol) for symbol in line.split()], dtype=np.int64) for line in lines]
    one_pass = EncoderPass(model, task, task.form, loaded.device)
    batch = one_pass.packed(task.form.source(ids[0]), task.form.target(ids[1]))
    layers, heads, tokens = one_pass.num_layers, model.cfg.encoder_attention_heads, len(batch.token)
    problems = []
    if not -layers <= layer < layers:
        problems.append(f"--layer must be from {-layers} to {layers - 1}, but is {layer}")
    if head is not None and not 0 <= head < heads:
        problems.append(f"--head must be from 0 to {heads - 1}, but is {head}")
    if len(ids[1]) > task.form.max_target - 1:
        problems.append(f"--target must have at most {task.form.max_target - 1} tokens, but has {len(ids[1])}")
    if tokens > MOST_TOKENS:
        problems.append(f"--source and --target must take at most {MOST_TOKENS} packed tokens, but take {tokens}")
    if problems:
        raise UserError.of(problems)
    columns = one_pass.columns(batch)
    with torch.inference_mode():
        weights = one_pass.weights(columns, layer)
    sees = visible(columns.steps, columns.groups, columns.steps, columns.groups)
    if window := model.patterns[layer].window:
        sees &= within_window(columns.positions, columns.positions, window)
    return PackedAttention(
        [dictionary.symbols[number] for number in batch.token],
        batch.position.tolist(),
        ["" if number == task.form.pad else dictionary.symbols[number] for number in batch.label],
        batch.section(),
        (weights.mean(0) if head is None else weights[head]).numpy(),
        sees.numpy(),
    )


def write_csv(attention: PackedAttention, file: Path) -> None:
    """Write a row for each query: token, position, section, label, then its weight for each key."""
    rows = zip(*attention[:3], attention.section.tolist(), attention.weights.tolist(), strict=True)
    heading = ["token", "position", "label", "section", *attention.tokens]
    write_table(file, heading, ([*columns, *(f"{value:.6f}" for value in weights)] for *columns, weights in rows))


def draw(attention: PackedAttention, file: Path) -> None:
    """Draw the matrix: a row is a query, a column a key, the darker a cell the larger its weight.

    Keys that the query does not see are hatched. The square root of a weight is shown, so that small ones differ.

    Args:
        attention: what is drawn.
        file: of the picture; its ending is the format, such as .png or .svg.
    """
    from matplotlib.collections import LineCollection
    from matplotlib.colors import PowerNorm

    figure, axes = token_axes(len(attention.tokens))
    image = axes.imshow(attention.weights, cmap="Greys", norm=PowerNorm(0.5, vmin=0))
    # A stroke across each cell, from its lower left to its upper right corner: (cells, 2 ends, x and y).
    hidden = np.argwhere(~attention.sees)[:, None, ::-1] + np.array([(-0.5, 0.5), (0.5, -0.5)])
    axes.add_collection(LineCollection(hidden, color="0.75", linewidth=0.6))
    name_tokens(axes, attention.tokens, attention.positions, attention.labels, attention.section)
    axes.set_xlabel("key; hatched: not seen", fontsize=8)
    figure.colorbar(image, ax=axes, shrink=0.5, label="attention weight")
    save(figure, file)
