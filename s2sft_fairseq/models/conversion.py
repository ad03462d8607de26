"""Models for ``s2sft convert``: shapes of parameters, official DeltaLM checkpoints, missing heads.

Encoders that were trained without a language model head, such as sentence encoders, may get one. A head that starts
from random weights has two things to learn before anything else: how frequent each symbol is, and which token a final
state belongs to. Both can be computed.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from fairseq.data import Dictionary
from torch import Tensor
from tqdm import tqdm

from s2sft_fairseq.checkpoints.conversion import Conversion, Sizes
from s2sft_fairseq.checkpoints.deltalm import fit_problems, read_deltalm
from s2sft_fairseq.checkpoints.source_files import SourceCheckpoint
from s2sft_fairseq.data.dictionary import BERT_SYMBOLS, DICTIONARY, FAIRSEQ_SYMBOLS, PretrainedDictionary
from s2sft_fairseq.data.text_files import check_text, read_lines
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.deltalm import DeltaLMConfig, DeltaLMModel
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.models.unilm_config import UnilmConfig, complete_sizes
from s2sft_fairseq.modules.visibility import PackedColumns

# BERT's standard deviation of initial weights.
INITIAL_STD = 0.02


def parameter_shapes(sizes: Mapping[str, Any], vocab_size: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter of a `unilm` model of these sizes.

    Raises:
        UserError: if the sizes contradict each other.
    """
    cfg = UnilmConfig()
    complete_sizes(cfg, dict(sizes))
    with torch.device("meta"):
        model = UnilmModel(cfg, vocab_size=max(1, vocab_size), pad=0)
    return {name: tuple(value.shape) for name, value in model.state_dict().items()}


def convert_deltalm(checkpoint: SourceCheckpoint, symbols: Sequence[str]) -> Conversion:
    """Convert an official checkpoint, or one of a training by the official program or this plugin.

    Args:
        checkpoint: the checkpoint.
        symbols: of its dictionary, as fairseq reads it, in the order of their ids.

    Raises:
        UserError: if the dictionary is not DeltaLM's, or naming every parameter that is missing, unknown or of another
            shape.
    """
    # A model of this plugin may have begun with BERT; official files, which have no options, have fairseq's ids.
    is_official = checkpoint.config.keys() <= {"_name"}
    if symbols[:4] != FAIRSEQ_SYMBOLS and (is_official or BERT_SYMBOLS.pad not in symbols):
        raise UserError(
            f"{checkpoint.file} needs its own {DICTIONARY} beside it: the first symbols of DeltaLM are "
            f"{', '.join(FAIRSEQ_SYMBOLS)}, but those of the tokenizer {', '.join(symbols[:4])}"
        )
    try:
        conversion = read_deltalm(checkpoint.weights, checkpoint.config, PretrainedDictionary.of(symbols).pad())
    except UserError as error:
        raise UserError(f"{checkpoint.file}: {error}") from None
    if problems := fit_problems(_shapes(conversion.sizes), conversion.weights):
        raise UserError.of(problems, f"{checkpoint.file} is not the DeltaLM that its layers and tables tell:")
    return conversion


def _shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter of a model of these sizes, its dictionary being empty."""
    symbols = Dictionary()
    with torch.device("meta"):
        task = SimpleNamespace(source_dictionary=symbols, target_dictionary=symbols)
        model = DeltaLMModel.build_model(DeltaLMConfig(**sizes), task)
    return {name: tuple(value.shape) for name, value in model.state_dict().items()}


def initialize_head(
    conversion: Conversion, dictionary: PretrainedDictionary, *, fit_head: Path | None, output_prior: Path | None
) -> None:
    """Compute what a converted encoder lacks of a language model head, as far as it is asked for.

    Args:
        conversion: the encoder; what is computed joins its weights.
        dictionary: its dictionary.
        fit_head: tokenized text for :func:`fit_transform`.
        output_prior: tokenized text for :func:`log_frequencies`.

    Raises:
        UserError: if the encoder has that part, naming each option for which this is so.
    """
    parts = {"--fit-head": ("lm_head.dense.weight", fit_head), "--output-prior": ("lm_head.bias", output_prior)}
    if problems := [
        f"{option} is for encoders without {name}, but this one has it"
        for option, (name, text) in parts.items()
        if text is not None and name not in conversion.missing
    ]:
        raise UserError.of(problems)
    fitted = {}
    if fit_head is not None:
        config = UnilmConfig(dropout=0.0, attention_dropout=0.0)
        complete_sizes(config, conversion.sizes)
        model = UnilmModel(config, vocab_size=len(dictionary), pad=dictionary.pad())
        model.load_state_dict(conversion.weights, strict=False)
        weight, bias = fit_transform(model, fit_head, dictionary)
        fitted |= {"lm_head.dense.weight": weight, "lm_head.dense.bias": bias}
    if output_prior is not None:
        fitted["lm_head.bias"] = log_frequencies(output_prior, dictionary)
    fitted = {name: value for name, value in fitted.items() if name in conversion.missing}  # some have no biases
    conversion.weights.update(fitted)
    conversion.missing[:] = [name for name in conversion.missing if name not in fitted]


def log_frequencies(path: Path, dictionary: PretrainedDictionary) -> Tensor:
    """Return the logarithms of the relative frequencies (V,) of symbols in tokenized text, each line ending in eos.

    As output bias this saves the many steps that Adam would take to learn it, all of which push the tied embeddings of
    all rare tokens the same way. Every symbol is counted once more than it occurs.

    Raises:
        UserError: if the text cannot be read.
    """
    check_text(path)
    counts = torch.ones(len(dictionary))
    for line in read_lines(path):
        ids = dictionary.encode_line(line, add_if_not_exist=False).long()
        counts += torch.bincount(ids, minlength=len(dictionary))
    return (counts / counts.sum()).log()


@torch.no_grad()
def fit_transform(
    model: UnilmModel, path: Path, dictionary: PretrainedDictionary, *, max_lines: int = 600, max_tokens: int = 62
) -> tuple[Tensor, Tensor | None]:
    """Fit the dense layer of the head by least squares, so that it reads each token off the token's own final state.

    What a placeholder attends to is then readable at once, and can be copied. The solution of ``states @ W + b =
    embeddings`` is scaled to the usual size of initial weights; the layer norm behind it takes the scale out again.

    Args:
        model: the encoder.
        path: tokenized text, of which the first lines are read.
        dictionary: its dictionary.
        max_lines: lines to read.
        max_tokens: tokens to read of each.

    Returns:
        Weight (E, H) and bias (E,) of the dense layer, which is None for a model without biases. H: width of the
        layers, E: of the embedding.

    Raises:
        UserError: if the text cannot be read.
    """
    check_text(path)
    model.eval()
    embeddings = model.embeddings.tokens.weight
    states, targets = [], []
    for tokens, lengths in tqdm(
        list(_batches(path, dictionary, max_lines, max_tokens)), desc="fit the head", unit="batch"
    ):
        positions = torch.cat([torch.arange(length) for length in lengths])
        encoded = model.encode(PackedColumns.given(tokens, positions, torch.zeros_like(tokens), lengths))
        content = (tokens != dictionary.bos()) & (tokens != dictionary.eos())
        states.append(encoded[content])
        targets.append(embeddings[tokens[content]])
    # In double precision: the outputs of a layer norm depend on one another, which the ridge alone would have to mend.
    inputs = torch.cat(states).double()
    width, biased = inputs.size(1), model.lm_head.dense.bias is not None
    if biased:
        inputs = torch.cat([inputs, inputs.new_ones(len(inputs), 1)], dim=1)
    # Ridge regression through its normal equations: (H + 1, H + 1) and (H + 1, E), or H for H + 1 without a bias.
    ridge = 1e-5 * len(inputs) * torch.eye(inputs.size(1), dtype=inputs.dtype)
    solution = torch.linalg.solve(inputs.T @ inputs + ridge, inputs.T @ torch.cat(targets).double())
    solution *= INITIAL_STD / solution[:width].std()
    return solution[:width].T.float().contiguous(), solution[width].float() if biased else None


def _batches(
    path: Path, dictionary: PretrainedDictionary, max_lines: int, max_tokens: int
) -> Iterator[tuple[Tensor, list[int]]]:
    """Yield lines as ``[CLS] x [SEP]``, 50 a batch, one after the other (T,), and their lengths."""
    lines = islice((line for line in read_lines(path) if line.strip()), max_lines)
    while batch := list(islice(lines, 50)):
        rows = []
        for line in batch:
            ids = dictionary.encode_line(line, add_if_not_exist=False, append_eos=False).long()[:max_tokens]
            rows.append(torch.cat([torch.tensor([dictionary.bos()]), ids, torch.tensor([dictionary.eos()])]))
        yield torch.cat(rows), list(map(len, rows))
