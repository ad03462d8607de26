"""From windows of sources to hypotheses in their order, whatever the batches."""

import numpy as np
import pytest
import torch
from tiny import CLS, PAD, SEP, tiny_form

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.inference.files import Window
from s2sft_fairseq.inference.generator import TextGenerator
from s2sft_fairseq.inference.memory import plan_batches
from s2sft_fairseq.inference.rules import NotANumberError

RNG = np.random.default_rng(1)
WINDOW = Window(10, [RNG.integers(5, 50, size=size) for size in (3, 0, 7, 30, 1, 7, 22, 23)])
FORM = tiny_form()


def repeat(sample):
    """Return two hypotheses per source with the source as text; none for an empty source."""
    rows = [row[row != PAD] for row in sample["net_input"]["src_tokens"]]
    assert sample["net_input"]["src_lengths"].tolist() == list(map(len, rows))
    found = []
    for row in rows:
        scores = [(row.float().mean(), torch.ones(len(row))), (row.sum(), torch.zeros(1))]
        hypotheses = [{"tokens": row, "score": s, "positional_scores": each, "attention": None} for s, each in scores]
        found.append(hypotheses if len(row) > 2 else [])
    return found


def expected(nbest):
    laid_out = [[CLS, *source[:22].tolist(), SEP] for source in WINDOW.sources]
    both = [
        [(row, float(torch.tensor(row).float().mean()), [1.0] * len(row)), (row, sum(row), [0.0])] for row in laid_out
    ]
    return [of_row[:nbest] if len(of_row[0][0]) > 2 else [] for of_row in both]


def plain(results):
    """Return hypotheses as lists and numbers; entries that no output needs are not kept."""
    names = ("tokens", "score", "positional_scores")
    assert all(tuple(hypothesis) == names for found in results for hypothesis in found)
    return [[tuple(hypothesis[name].tolist() for name in names) for hypothesis in found] for found in results]


@pytest.mark.parametrize("nbest", [1, 2])
@pytest.mark.parametrize("limits", [{"max_sentences": 3}, {"max_tokens": 30}, {"max_sentences": 1}, {}])
def test_the_order_of_the_window_is_kept(nbest, limits):
    batches = []

    def plan(lengths):
        assert lengths.tolist() == [min(24, len(source) + 2) for source in WINDOW.sources]
        batches.extend(plan_batches(lengths, **limits))
        return batches

    done = []
    generator = TextGenerator(repeat, FORM, plan, nbest=nbest)
    assert plain(generator(WINDOW, done.append)) == expected(nbest)
    assert done == list(map(len, batches))
    assert (generator.sentences, generator.tokens) == (8, 5 + 9 + 24 + 3 + 9 + 24 + 24)


def test_counts_cut_sources():
    generator = TextGenerator(repeat, FORM, plan_batches)
    generator(Window(0, WINDOW.sources[:3]))
    assert generator.cut_sources == 0
    generator(Window(3, WINDOW.sources[3:]))
    assert (generator.cut_sources, generator.sentences) == (2, 8)


def test_sources_have_the_numbers_of_their_lines():
    """Random numbers depend on them."""

    def number_of(sample):
        return [
            [{"tokens": number[None], "score": number, "positional_scores": number[None]}] for number in sample["id"]
        ]

    def numbers(window):
        generator = TextGenerator(number_of, FORM, lambda lengths: plan_batches(lengths, max_sentences=3))
        return [int(best["score"]) for (best,) in generator(window)]

    assert numbers(Window(18, WINDOW.sources)) == list(range(18, 26))
    assert numbers(Window(0, WINDOW.sources, [5, 5, 7, 0, 1, 2, 3, 4])) == [5, 5, 7, 0, 1, 2, 3, 4]


def test_names_the_line_for_which_the_model_gives_nan():
    def fail(sample):
        lengths = sample["net_input"]["src_lengths"].tolist()
        if 9 in lengths:
            raise NotANumberError(lengths.index(9), torch.float32)
        return repeat(sample)

    generator = TextGenerator(fail, FORM, lambda lengths: plan_batches(lengths, max_sentences=3))
    line = WINDOW.first + 1 + 2  # counted from 1; the third source has 7 tokens and 2 specials
    with pytest.raises(UserError, match=rf"^line {line} of the input: .*the model gives NaN$"):
        generator(WINDOW)
