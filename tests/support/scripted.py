"""Models that are tables of scores, so that thousands of searches take seconds."""

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor


class Script:
    """What generators ask of a model that is a table."""

    def eval(self) -> None:
        """Do nothing: there is no dropout."""

    def parameters(self) -> tuple[()]:
        """Return no parameters, as if an engine ran the model: so it is on the CPU."""
        return ()


class RandomScript(Script):
    """Random scores (V,) of the token after a prefix, the same in each call.

    The spread of the scores, and so the lead of one hypothesis over another, depends on the source.
    """

    def __init__(self, seed: int, vocab_size: int) -> None:
        self.rows = np.random.default_rng(seed).normal(size=(997, vocab_size))

    def __call__(self, source: Sequence[int], prefix: Sequence[int]) -> np.ndarray:
        place = hash(tuple(source))  # hashes of numbers are the same in every process
        return self.rows[hash((place, *prefix)) % len(self.rows)] * (0.5 + place % 8 / 2)


class ScriptedDecoder:
    """Stands in for `IncrementalDecoder`, with a script as its model."""

    steps = 0
    """Number of steps that all instances have taken."""

    def __init__(self, model, form, source: Tensor, *, max_tokens: int, beams: int, graphs: None) -> None:
        self.model = model
        self.sources = [[token for token in row if token != form.pad] for row in source.tolist()]
        self.prefixes: list[list[tuple[int, ...]]] = [[()] for _ in self.sources]

    def next_logits(self) -> Tensor:
        ScriptedDecoder.steps += 1
        rows = zip(self.sources, self.prefixes, strict=True)
        return torch.tensor(np.array([[self.model(source, prefix) for prefix in each] for source, each in rows]))

    def append(self, tokens: Tensor, parents: Tensor) -> None:
        rows = zip(self.prefixes, tokens.tolist(), parents.tolist(), strict=True)
        self.prefixes = [
            [(*each[parent], token) for token, parent in zip(new, origins, strict=True)] for each, new, origins in rows
        ]

    def keep_sentences(self, left: Tensor) -> None:
        self.sources = [self.sources[i] for i in left.tolist()]
        self.prefixes = [self.prefixes[i] for i in left.tolist()]


def scripted_log_probs(
    models: Sequence, form, source: np.ndarray, prefixes: list[tuple[int, ...]], temperature: float
) -> np.ndarray:
    """Stands in for `naive_search.next_log_probs`."""
    laid_out = form.source(source).tolist()
    probabilities = 0
    for model in models:
        exponents = np.exp(np.array([model(laid_out, prefix) for prefix in prefixes]) / temperature)
        probabilities = probabilities + exponents / exponents.sum(axis=1, keepdims=True)
    return np.log(probabilities / len(models))


def assert_same_hypotheses(found: list[dict], expected: list, case: object) -> None:
    """Compare the hypotheses of a generator with those of the naive search, one by one."""
    assert [one["tokens"].tolist() for one in found] == [list(one.tokens) for one in expected], case
    # The logarithm of a probability near 1 is only as exact as the probability.
    scores = pytest.approx([one.score for one in expected], rel=1e-4, abs=1e-5)
    assert [float(one["score"]) for one in found] == scores, case


class ScriptedTranslator(torch.nn.Module):
    """An encoder-decoder with fairseq's interface and a script in place of weights."""

    def __init__(self, script):
        super().__init__()
        self.script, self.rows_read = script, 0
        self.encoder = SimpleNamespace(
            forward_torchscript=lambda net_input: net_input["src_tokens"],
            reorder_encoder_out=lambda rows, order: rows[order],
        )
        self.decoder = SimpleNamespace(forward=self.read)

    def read(self, tokens, encoder_out):
        self.rows_read += len(tokens)
        rows = zip(encoder_out.tolist(), tokens[:, 1:].tolist(), strict=True)
        return (torch.tensor(np.array([[self.script(source, prefix)] for source, prefix in rows])).float(),)

    def get_normalized_probs(self, decoder_out, log_probs, sample):
        return decoder_out[0].log_softmax(dim=-1)
