"""Recorded searches (``--all-ended``) that are ranked again, compared with fresh searches with the other penalty."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from searches import eager_model, search, search_options
from tiny import words

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.inference.reranking import PENALTIES, Ranking, read_record

SOURCES = [words(np.random.default_rng(seed), 3 + seed) for seed in range(6)]


def as_written(hypotheses):
    """Return hypotheses with the digits of an output file; their text is their tokens."""
    return [
        {
            "text": str(one["tokens"].tolist()),
            "score": round(one["score"].item(), 6),
            "tokens": list(map(str, one["tokens"].tolist())),
            "positional_scores": [round(score, 4) for score in one["positional_scores"].tolist()],
        }
        for one in hypotheses
    ]


@pytest.mark.parametrize(
    "changes", [{}, {"count_ended": True, "keep_unfinished": True}, {"no_repeat_ngram_size": 1, "min_len": 2}]
)
def test_a_record_has_the_result_of_every_penalty(changes):
    models = [eager_model(2, eos=3.0)]
    options = search_options(beam=4, **changes)
    recorded = [as_written(found) for found in search(models, replace(options, all_ended=True), SOURCES, "masked")]
    assert max(map(len, recorded)) > options.beam
    different = set()
    for penalty, lenpen in (("length", 1.0), ("length", 0.0), ("gnmt", 0.9), ("gnmt", 4.0), ("length", -1.0)):
        fresh = search(models, replace(options, length_penalty=penalty, lenpen=lenpen, nbest=2), SOURCES, "masked")
        for found, expected in zip(recorded, fresh, strict=True):
            ranked = Ranking(penalty, lenpen).rank(found)[:2]
            assert [one["text"] for one in ranked] == [str(one["tokens"].tolist()) for one in expected]
            scores = [one["score"] for one in ranked]
            np.testing.assert_allclose(scores, [one["score"].item() for one in expected], atol=1e-3, rtol=1e-3)
            different.add(ranked[0]["text"])
    assert len(different) > len(SOURCES)  # penalties choose other texts


def hypothesis(*scores):
    tokens = [*"abcdefgh"[: len(scores) - 1], "[SEP]"]
    return {"text": " ".join(tokens[:-1]), "score": 0.0, "tokens": tokens, "positional_scores": list(scores)}


SHORT, LONG = hypothesis(-1.0, -1.0), hypothesis(-1.0, -1.0, -0.5, -0.5)


def test_the_penalties_of_the_program():
    """Quotients, a sum with the length, and the distance to an expected length; no penalty is the sum of all."""
    for ranking, scores in (
        (Ranking("length", 1.0), [-1.0, -0.75]),
        (Ranking("gnmt", 2.0), [-2.0 / (7 / 6) ** 2, -3.0 / 1.5**2]),
        (Ranking("gnmt", 0.0), [-2.0, -3.0]),
        (Ranking("sum", 0.8), [-2.0 + 1.6, -3.0 + 3.2]),
        (Ranking("distance", 2.0, expected_length=4), [-2.0 - 4.0, -3.0]),
    ):
        ranked = {one["text"]: one["score"] for one in ranking.rank([SHORT, LONG])}
        np.testing.assert_allclose([ranked["a"], ranked["a b c"]], scores, atol=1e-6)
        best = max((SHORT, "a"), (LONG, "a b c"), key=lambda pair: ranked[pair[1]])[1]
        assert next(iter(ranked)) == best
    assert Ranking(min_len=2).rank([SHORT, LONG])[0]["text"] == "a b c"
    assert Ranking(min_len=4).rank([SHORT, LONG]) == []
    assert PENALTIES == ("length", "gnmt", "sum", "distance")


@pytest.mark.parametrize(
    ("ranking", "options"),
    [
        (Ranking(lenpen=math.nan), ["--lenpen"]),
        (Ranking(min_len=-1), ["--min-len"]),
        (Ranking("distance"), ["--expected-length"]),
        (Ranking("gnmt", expected_length=3), ["--expected-length"]),
        (Ranking("distance", 1.0, expected_length=0), ["--expected-length"]),
    ],
)
def test_mistakes(ranking, options):
    found = list(ranking.problems())
    assert len(found) == len(options) and all(option in problem for option, problem in zip(options, found, strict=True))


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", "must be JSON"),
        ("[]", "with hypotheses, but is []"),
        ('{"hypotheses": 3}', "with hypotheses"),
        ('{"hypotheses": [{"tokens": []}]}', "a hypothesis is"),
        ('{"hypotheses": [{"text": "a", "tokens": ["a"], "positional_scores": []}]}', "lacks tokens or the score"),
        ('{"hypotheses": [{"text": "a", "tokens": ["a"], "positional_scores": [NaN]}]}', "not a log-probability"),
        ('{"hypotheses": [{"text": "a", "tokens": ["a"], "positional_scores": [1.0]}]}', "not a log-probability"),
        ('{"hypotheses": [{"text": "a", "tokens": ["a"], "positional_scores": [-Infinity]}]}', "not a log-probability"),
        ('{"hypotheses": [{"text": "a", "tokens": ["a"], "positional_scores": [-1e308]}]}', "not a log-probability"),
        ('{"hypotheses": [{"text": "a", "tokens": ["a"], "positional_scores": [-1e400]}]}', "not a log-probability"),
        ('{"hypotheses": [{"text": "a", "tokens": ["a"], "positional_scores": [false]}]}', "not a log-probability"),
        ('{"hypotheses": [{"text": "a", "tokens": [3], "positional_scores": [-1.0]}]}', "a token that is not a text"),
    ],
)  # fmt: skip
def test_lines_that_are_no_record(tmp_path, line, problem):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"index": 0, "hypotheses": [SHORT]}) + f"\n{line}\n")
    with pytest.raises(UserError) as error:
        list(read_record(path))
    assert str(error.value).startswith(f"{path}:2 must be") and problem in str(error.value)
