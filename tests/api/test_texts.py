"""Values that are one text, and values that are several."""

import pytest

from s2sft_fairseq.api.texts import fields_of, is_one, listed
from s2sft_fairseq.errors import UserError


@pytest.mark.parametrize(
    ("texts", "one", "fields"),
    [
        ("a", True, [["a"]]),
        ({"passage": "a", "answer": "b"}, True, [["a", "b"]]),
        (("a", "b"), True, [["a", "b"]]),
        (["a", "b"], False, [["a"], ["b"]]),
        ([["a", "b"], ("c",), {"x": "d"}, "e"], False, [["a", "b"], ["c"], ["d"], ["e"]]),
        ((text for text in "ab"), False, [["a"], ["b"]]),
        ([], False, []),
        ("", True, [[""]]),
    ],
)
def test_texts(texts, one, fields):
    assert is_one(texts) == one
    assert fields_of(listed(texts), "sources") == fields


@pytest.mark.parametrize("nothing", [None, 7, {}, (), {"a": 7}])
def test_no_text(nothing):
    with pytest.raises(UserError, match="source must be a text, or a dict"):
        fields_of(listed(nothing), "source")


def test_all_problems_are_named():
    with pytest.raises(UserError) as raised:
        fields_of(["a", 7, "\ud83d", ["b", None], "c"], "sources")
    problems = raised.value.problems
    assert [problem.partition(" ")[0] for problem in problems] == ["sources[1]", "sources[2]", "sources[3]"]
    assert "7" in problems[0] and "surrogate" in problems[1] and "None" in problems[2]
    with pytest.raises(UserError, match="3 more"):
        fields_of([None] * 13, "sources")
