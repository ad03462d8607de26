"""Compute the language model head of an encoder that was trained without one, such as a sentence encoder.

A head that starts from random weights must first learn three things: how frequent each symbol is, which token a final
state belongs to, and how far apart the scores of symbols are. All can be computed.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from s2sft_fairseq.checkpoints.conversion import Conversion
from s2sft_fairseq.data.fairseq_dictionary import FairseqDictionary
from s2sft_fairseq.data.text_files import check_text, read_lines
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.models.unilm_config import UnilmConfig, complete_sizes
from s2sft_fairseq.models.unilm_parts import INITIAL_STD
from s2sft_fairseq.modules.visibility import PackedColumns
from s2sft_fairseq.progress import bar, step


def initialize_head(
    conversion: Conversion, dictionary: FairseqDictionary, *, fit_head: Path | None, output_prior: Path | None
) -> None:
    """Compute missing parts of the language model head of a converted encoder.

    Args:
        conversion: the encoder; the computed parameters are added to its weights.
        dictionary: its dictionary.
        fit_head: tokenized text for :func:`fit_transform`; None: do not compute this part.
        output_prior: tokenized text for :func:`log_frequencies`; None: do not compute this part.

    Raises:
        UserError: naming each option whose part the encoder already has, or that its kind of head does not allow.
    """
    parts = {"--output-prior": ("lm_head.bias", output_prior)}
    problems = []
    if (kind := str(conversion.sizes.get("lm_head", "bert"))) == "bert":
        parts = {"--fit-head": ("lm_head.dense.weight", fit_head), **parts}
    elif fit_head is not None:
        problems = [f"--fit-head is for encoders with --lm-head bert, but that of this one is {kind}"]
    problems += [
        f"{option} is for encoders without {name}, but this one has it"
        for option, (name, text) in parts.items()
        if text is not None and name not in conversion.missing
    ]
    if problems:
        raise UserError.of(problems)
    fitted: dict[str, Tensor] = {}
    if fit_head is not None:
        config = UnilmConfig(dropout=0.0, attention_dropout=0.0)
        complete_sizes(config, conversion.sizes)
        with step("build the model"):
            model = UnilmModel(config, vocab_size=len(dictionary), pad=dictionary.pad())
            model.load_state_dict(conversion.weights, strict=False)
        if not model.embeddings.tokens.weight.any():
            raise UserError("--fit-head needs token embeddings that differ from 0, but those of this encoder are all 0")
        weight, bias = fit_transform(model, fit_head, dictionary)
        fitted |= {"lm_head.dense.weight": weight, "lm_head.dense.bias": bias}
        fitted["lm_head.layer_norm.weight"] = norm_scale(model.embeddings.tokens.weight.detach())
    if output_prior is not None:
        fitted["lm_head.bias"] = log_frequencies(output_prior, dictionary)
    fitted = {name: value for name, value in fitted.items() if name in conversion.missing}  # some heads have no biases
    conversion.weights.update(fitted)
    conversion.missing[:] = [name for name in conversion.missing if name not in fitted]


INITIAL_SCORES = 1.0
"""Standard deviation of the scores of a head that knows nothing. With half of it a MiniLM learns faster in the first 40
updates, but more slowly from the 60th on: scores must become large enough for what is learned."""


def norm_scale(embeddings: Tensor) -> Tensor:
    """Return the weight (E,) of the head's norm with which initial scores have the deviation `INITIAL_SCORES`.

    The norm's outputs have the deviation 1, so that without a scale that of the scores is the length of an embedding:
    1.1 in MiniLM, and 2.4 in all-mpnet-base-v2, whose first 20 updates then have a mean loss of 16 bits. Adam with the
    learning rate 1e-4 would need thousands of updates to reduce a weight of 1 to a fifth.

    Args:
        embeddings: the token embeddings (V, E).
    """
    length = embeddings.float().square().sum(dim=1).mean().sqrt()
    return embeddings.new_full(embeddings.shape[1:], float(INITIAL_SCORES / length), dtype=torch.float32)


def log_frequencies(path: Path, dictionary: FairseqDictionary) -> Tensor:
    """Return the logarithms of the relative frequencies (V,) of symbols in tokenized text, each line ending in eos.

    As output bias they save the many updates that Adam would need to learn them, each of which would push the tied
    embeddings of all rare tokens in the same direction. Each count is increased by one.

    Raises:
        UserError: if the text cannot be read.
    """
    lines = check_text(path).lines
    counts = torch.ones(len(dictionary))
    for line in bar(read_lines(path), "count the symbols", " lines", total=lines):
        ids = dictionary.encode_line(line, add_if_not_exist=False).long()
        counts += torch.bincount(ids, minlength=len(dictionary))
    return (counts / counts.sum()).log()


@torch.no_grad()
def fit_transform(
    model: UnilmModel, path: Path, dictionary: FairseqDictionary, *, max_lines: int = 600, max_tokens: int = 62
) -> tuple[Tensor, Tensor | None]:
    """Fit the dense layer of the head by least squares, so that it predicts each token from the token's final state.

    The head can then read from the start which tokens a placeholder attends to, and can copy them. The solution of
    ``states @ W + b = embeddings`` is scaled to the usual size of initial weights; the layer norm after it removes the
    scale again.

    Args:
        model: the encoder.
        path: tokenized text; the first lines are read.
        dictionary: its dictionary.
        max_lines: number of lines to read.
        max_tokens: number of tokens to read of each line.

    Returns:
        Weight (E, H) and bias (E,) of the dense layer; the bias is None for a model without biases. H: width of the
        layers, E: width of the embedding.

    Raises:
        UserError: if the text cannot be read.
    """
    check_text(path)
    model.eval()
    embeddings = model.embeddings.tokens.weight
    states, targets = [], []
    for tokens, lengths in bar(list(_batches(path, dictionary, max_lines, max_tokens)), "fit the head", " batches"):
        positions = torch.cat([torch.arange(length) for length in lengths])
        encoded = model.encode(PackedColumns.given(tokens, positions, torch.zeros_like(tokens), lengths))
        content = (tokens != dictionary.bos()) & (tokens != dictionary.eos())
        states.append(encoded[content])
        targets.append(embeddings[tokens[content]])
    # In double precision: the outputs of a layer norm are linearly dependent, so the problem is ill-conditioned.
    inputs = torch.cat(states).double()
    dense: Any = model.lm_head.dense
    width, biased = inputs.size(1), dense.bias is not None
    if biased:
        inputs = torch.cat([inputs, inputs.new_ones(len(inputs), 1)], dim=1)
    # Ridge regression by the normal equations: (H + 1, H + 1) and (H + 1, E); without a bias H in place of H + 1.
    ridge = 1e-5 * len(inputs) * torch.eye(inputs.size(1), dtype=inputs.dtype)
    solution = torch.linalg.solve(inputs.T @ inputs + ridge, inputs.T @ torch.cat(targets).double())
    solution *= INITIAL_STD / solution[:width].std()
    return solution[:width].T.float().contiguous(), solution[width].float() if biased else None


def _batches(
    path: Path, dictionary: FairseqDictionary, max_lines: int, max_tokens: int
) -> Iterator[tuple[Tensor, list[int]]]:
    """Yield batches of 50 lines, each as ``[CLS] x [SEP]``, one after the other (T,), and the lengths of the lines."""
    lines = islice((line for line in read_lines(path) if line.strip()), max_lines)
    while batch := list(islice(lines, 50)):
        rows = []
        for line in batch:
            ids = dictionary.encode_line(line, add_if_not_exist=False, append_eos=False).long()[:max_tokens]
            rows.append(torch.cat([torch.tensor([dictionary.bos()]), ids, torch.tensor([dictionary.eos()])]))
        yield torch.cat(rows), list(map(len, rows))
