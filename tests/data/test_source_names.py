"""The names of the fields of sources: of a model folder, of options and of objects."""

import pytest

from s2sft_fairseq.data.source_names import names_problem, order_problem, recorded_names


@pytest.mark.parametrize("names", [None, "src", [], [""], ["a", "a"], [7], {"a": 1}, ["a", None]])
def test_what_is_no_list_of_names(names):
    assert "must be different names of fields, but is " in names_problem(names)
    assert recorded_names({"source_names": names}) == ()


def test_recorded_names():
    assert names_problem(["passage", "answer"]) is None
    assert recorded_names({"source_names": ["passage", "answer"]}) == ("passage", "answer")
    assert recorded_names({}) == ()


@pytest.mark.parametrize(
    ("given", "is_right"),
    [
        (["passage", "answer"], True),
        (["context", "question"], True),
        (["context", "answer"], True),
        (["answer", "passage"], False),
        (["answer", "question"], False),
        (["passage"], False),
        (["passage", "answer", "title"], False),
    ],
)
def test_order_of_keys(given, is_right):
    problem = order_problem(given, ("passage", "answer"))
    assert (problem is None) == is_right
    assert is_right or ("(passage answer)" in problem and " ".join(given) in problem)
    assert order_problem(given, ("src",)) is None and order_problem(given, ()) is None
