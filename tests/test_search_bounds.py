"""The bounds of the numbers of a search, at every door."""

import math
from argparse import Namespace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.dataclass.configs import GenerationConfig
from searches import batch_of, search_options, sources
from tiny import CLS, SEP, padded, tiny_form, tiny_model

from s2sft_fairseq.checkpoints.model_folder import configuration
from s2sft_fairseq.errors import UserError, shown
from s2sft_fairseq.inference.generator import SequenceGenerator
from s2sft_fairseq.inference.memory import plan_batches
from s2sft_fairseq.inference.options import search_problems
from s2sft_fairseq.runtime.options import _option_problems
from s2sft_fairseq.search_bounds import SEARCH, applicable, number_problems

NAN, INF = float("nan"), float("inf")
WRONG = {
    "beam": (0, -1, 10**9, 10**400),
    "nbest": (0, -1, 10**9),
    "max_len_a": (NAN, INF, -1.0, 1e300),
    "max_len_b": (-1, 2**31),
    "min_len": (-1, 2**31),
    "lenpen": (NAN, INF, -INF, 1e300),
    "no_repeat_ngram_size": (-1, 2**31),
    "temperature": (NAN, INF, 0.0, -1.0, 1e-30),
    "sampling_topk": (0, -2, 2**31),
    "sampling_topp": (NAN, INF, 0.0, 1.5, -0.5),
    "draft_placeholders": (-1, 10**9),
    "draft_source": (-1, 10**9),
    "draft_blocks": (-2, 10**9),
    "decode_blocks": (-1,),
    "confidence": (NAN, 1.5, -1.0),
    "max_passes": (-1,),
    "revise": (NAN, INF, -0.1),
    "unkpen": (NAN, INF, -INF),
    "prefix_size": (-1,),
    "lm_weight": (NAN, INF),
    "diverse_beam_groups": (0, -2),
    "diverse_beam_strength": (NAN, -1.0),
    "diversity_rate": (NAN, -2.0),
}
CASES = [(name, value) for name, values in WRONG.items() for value in values]


def test_every_number_has_a_case():
    numbers = {name for name, option in SEARCH.items() if option.kind in (int, float)}
    assert numbers <= WRONG.keys()


@pytest.mark.parametrize(("name", "value"), CASES)
def test_numbers_out_of_bounds(name, value):
    (problem,) = number_problems(SimpleNamespace(**{name: value}))
    assert problem.startswith(f"--{name.replace('_', '-')} must be ") and f"is {shown(value)}" in problem


def test_the_defaults_of_fairseq_are_within_bounds():
    assert search_problems(GenerationConfig(), SimpleNamespace(early_stop="exact")) == []


@pytest.mark.parametrize(("name", "value"), [("lenpen", NAN), ("nbest", 0), ("early_stop", "oops"), ("beam", True)])
def test_settings_of_a_model_folder(name, value):
    with pytest.raises(UserError, match=rf"^search\.{name} must be "):
        configuration({"model": {}, "cfg": {}}, {name: value}, {})


def test_a_command_line():
    """Every command that searches, before it loads a model; others have no --nbest."""
    wrong = Namespace(nbest=0, lenpen=NAN, batch_size=0, max_tokens=10**400 * -1, seed=-1)
    assert [problem.split()[0] for problem in _option_problems(wrong)] == [
        "--batch-size",
        "--max-tokens",
        "--seed",
        "--nbest",
        "--lenpen",
    ]
    assert _option_problems(Namespace(temperature=0.0, batch_size=None, max_tokens=None)) == []


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"min_len": 6, "max_len_b": 5}, ("--min-len", "--max-len-b (5)", "is 6")),
        ({"max_len_b": 0}, ("--max-len-b", "is 0")),
        ({"min_len": 21, "max_len_b": 30}, ("--min-len", "at most 20", "is 21")),
        ({"nbest": 3, "beam": 2}, ("--nbest", "--beam (2)", "is 3")),
    ],
)
def test_numbers_that_contradict_each_other(options, named):
    (problem,) = search_problems(Namespace(**options), SimpleNamespace(early_stop="exact"), 20)
    assert all(each in problem for each in named)


def test_a_minimum_above_the_maximum_of_one_source():
    """--max-len-a makes the maximum depend on the source: 5, 7, 9 and 11 positions."""
    form, models = tiny_form(), [tiny_model()]
    options = search_options(beam=1, max_len_a=1.0, max_len_b=0, min_len=7)
    rows = padded([form.source(np.arange(5, 5 + length)) for length in (9, 3, 5)])
    sample = {**batch_of(rows), "id": torch.tensor([7, 8, 9])}
    with pytest.raises(UserError, match=r"^sentence 8: --min-len \(7\) .* 5 for a source of 5 positions$"):
        SequenceGenerator(models, form, options).generate(models, sample)
    longer = {"net_input": {"src_tokens": rows[[0, 2]]}}
    for best, *_ in SequenceGenerator(models, form, options).generate(models, longer):
        assert len(best["tokens"]) > 7
    empty = batch_of(torch.tensor([[CLS, SEP]]))
    ((nothing,),) = SequenceGenerator(models, form, options).generate(models, empty)
    assert nothing["tokens"].tolist() == [SEP]


def test_a_very_long_maximum_is_the_one_of_the_model():
    form, models = tiny_form(), [tiny_model()]
    found = [
        SequenceGenerator(models, form, search_options(beam=1, min_len=15, max_len_a=slope, max_len_b=200))
        for slope in (0.0, 1e6)
    ]
    texts = [[best["tokens"].tolist() for (best,) in each.generate(models, batch_of(sources(form)))] for each in found]
    assert texts[0] == texts[1]


@pytest.mark.parametrize("limit", [0, -4])
def test_batches_of_nothing(limit):
    for name in ("max_tokens", "max_sentences"):
        with pytest.raises(UserError, match=rf"^--(max-tokens|batch-size) must be at least 1, but is {limit}$"):
            plan_batches(np.array([3, 4]), **{name: limit})


def test_bounds_of_requests_are_those_of_the_table():
    schemas = pytest.importorskip("s2sft_fairseq.serve.schemas")
    bounds = schemas.GenerateRequest.model_json_schema()["properties"]
    for name, option in {"beam": "beam", "num_return": "nbest", "length_penalty": "lenpen"}.items():
        (number, _) = bounds[name]["anyOf"]
        assert (number["minimum"], number["maximum"]) == (SEARCH[option].least, SEARCH[option].most)
    for value in (math.nan, math.inf):
        with pytest.raises(ValueError, match="length_penalty"):
            schemas.GenerateRequest(source="a", length_penalty=value)


def test_options_that_depend_on_one_that_is_switched_off():
    """A folder that samples may be searched with a beam."""
    search = {"sampling": True, "sampling_topp": 0.9, "temperature": 0.7, "decode_blocks": 4, "confidence": 0.5}
    assert applicable(search, {}) == search
    assert applicable(search, {"sampling": True}) == search
    assert applicable(search, {"sampling": False}).keys() == search.keys() - {"sampling_topp"}
    assert applicable(search, {"decode_blocks": 0}).keys() == search.keys() - {"confidence"}
