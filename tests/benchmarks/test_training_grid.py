"""Lengths, and the sizes that the benchmark repeats from the package."""

import numpy as np
import pytest
from tiny import tiny_form
from training_grid import CONFIGURATIONS, METHODS, Cell, Quantiles, parse_lengths
from training_pairs import FIRST_WORD, draw_pairs, pair_lengths

from s2sft_fairseq.models.architectures import ARCHITECTURES
from s2sft_fairseq.objectives.objective import OBJECTIVES


def a_cell(**changes):
    fields = {
        "config": "unilm_base",
        "method": "pseudo_masked",
        "lengths": "60..464/8..48",
        "batch": 4,
        "system": "ours",
        "vocab": 100,
        "device": "cpu",
        "threads": 2,
        "seed": 1,
        "updates": 3,
    }
    return Cell(**{**fields, **changes})


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_sizes_are_those_of_the_architectures(name):
    encoder = CONFIGURATIONS[name]
    names = ("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads")
    assert ARCHITECTURES[name] == dict(zip(names, encoder, strict=True))


def test_methods_are_those_of_the_package():
    # The plain system only has the methods of s2s-ft.
    assert {a_cell(method=method).objective for method in METHODS} == OBJECTIVES.keys() - {"infilling", "blocks"}
    assert [method for method in METHODS if a_cell(method=method).relative] == ["pseudo_masked_relative"]


def test_lengths():
    lengths = parse_lengths("60..464/8..48")
    assert (lengths.max_source, lengths.max_target) == (464, 48)
    assert [lengths.source.at(share) for share in (0, 0.25, 1)] == [60, 161, 464]
    assert [lengths.target.at(share) for share in (0, 0.5, 1)] == [8, 28, 48]
    assert {parse_lengths("464/48").source.at(share) for share in (0, 0.3, 1)} == {464}
    assert Quantiles((0, 0.9, 1), (10, 19, 110)).at(0.95) == round(64.5)


@pytest.mark.parametrize("text", ["60-464/8", "48", "", "464..60/48", "2/48", "464/1", "60..464/48..8", "60..464/8 "])
def test_invalid_lengths(text):
    with pytest.raises(ValueError, match=r"but (are|the lengths are) "):
        parse_lengths(text)


@pytest.mark.parametrize(("lengths", "means"), [("60..464/8..48", (262, 28)), ("squad_qg", (164, 13))])
@pytest.mark.parametrize("batch", [4, 16])
def test_a_batch_stands_for_the_distribution(lengths, means, batch):
    found = np.array(pair_lengths(a_cell(lengths=lengths, batch=batch))).mean(axis=0)
    np.testing.assert_allclose(found, means, rtol=0.05)
    sources, targets = zip(*pair_lengths(a_cell(lengths=lengths, batch=batch)), strict=True)
    assert list(sources) == sorted(sources)
    assert list(targets) != sorted(targets), "long sources must not have the long targets"


@pytest.mark.parametrize("method", METHODS)
def test_pairs_have_their_lengths_when_they_are_laid_out(method):
    cell = a_cell(method=method, lengths="squad_qg", batch=8)
    form = tiny_form(cell.objective, max_source=cell.shape.max_source, max_target=cell.shape.max_target)
    for pair, lengths in zip(draw_pairs(cell, 2), pair_lengths(cell), strict=True):
        assert (len(form.source(pair.source)), len(form.target(pair.target))) == lengths
        assert FIRST_WORD <= min(pair.source.min(), *pair.target) <= max(pair.source) < 100
        assert len(pair.masked) == cell.labels(lengths[1]) == len(set(pair.masked))
        assert 0 <= min(pair.masked) <= max(pair.masked) < lengths[1]


def test_systems_get_the_same_pairs_and_updates_get_others():
    def words(cell, update):
        return [pair.source.tolist() + pair.target.tolist() for pair in draw_pairs(cell, update)]

    assert words(a_cell(), 1) == words(a_cell(system="plain"), 1)
    assert words(a_cell(), 1) != words(a_cell(), 2)
    assert words(a_cell(), 1) != words(a_cell(seed=2), 1)
