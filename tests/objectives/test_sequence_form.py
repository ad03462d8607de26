"""How sources and targets are laid out and cut."""

import numpy as np
import pytest
from tiny import CLS, SEP, tiny_form

SIX = np.arange(10, 16)
NOTHING = np.array([], dtype=np.int64)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("pseudo_masked", [CLS, 10, 11, 12, 13, 14, 15, SEP]),
        ("masked", [CLS, 10, 11, 12, 13, 14, 15, SEP]),
        # The [SEP] of a causal model is the first token of its target.
        ("causal", [CLS, 10, 11, 12, 13, 14, 15]),
    ],
)
def test_source(method, expected):
    assert tiny_form(method).source(SIX).tolist() == expected


@pytest.mark.parametrize(
    ("method", "expected"), [("pseudo_masked", [CLS, 10, 11, 12, SEP]), ("causal", [CLS, 10, 11, 12, 13])]
)
def test_a_cut_source_keeps_its_special_symbols(method, expected):
    assert tiny_form(method, max_source=5).source(SIX).tolist() == expected


@pytest.mark.parametrize("method", ["causal", "masked", "pseudo_masked"])
def test_target(method):
    assert tiny_form(method).target(SIX).tolist() == [10, 11, 12, 13, 14, 15, SEP]
    assert tiny_form(method, max_target=7).target(SIX).tolist() == [10, 11, 12, 13, 14, 15, SEP]
    assert tiny_form(method, max_target=6).target(SIX).tolist() == [10, 11, 12, 13, 14, SEP]


@pytest.mark.parametrize(("method", "source"), [("pseudo_masked", [CLS, SEP]), ("causal", [CLS])])
def test_nothing(method, source):
    form = tiny_form(method)
    assert form.source(NOTHING).tolist() == source
    assert form.target(NOTHING).tolist() == [SEP]
    assert form.source_specials == len(source)


@pytest.mark.parametrize("method", ["causal", "pseudo_masked"])
def test_lengths_are_those_of_what_is_laid_out(method):
    form = tiny_form(method, max_source=5, max_target=4)
    counts = np.arange(8)
    tokens = [np.full(count, 9) for count in counts]
    assert form.source_length(counts).tolist() == [len(form.source(ids)) for ids in tokens]
    assert form.target_length(counts).tolist() == [len(form.target(ids)) for ids in tokens]
    assert max(form.source_length(counts)) == 5
    assert max(form.target_length(counts)) == 4


@pytest.mark.parametrize("method", ["causal", "pseudo_masked"])
def test_ids_are_int64(method):
    form = tiny_form(method)
    for ids in (SIX, NOTHING):
        assert form.source(ids).dtype == form.target(ids).dtype == np.int64
