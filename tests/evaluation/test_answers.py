"""F1 and exact match of answers, compared with a new implementation of the official programs."""

import random
import re
import string
from collections import Counter

import numpy as np
import pytest

from s2sft_fairseq.evaluation.answers import answer_words, coqa, squad_v1, squad_v2, word_f1
from s2sft_fairseq.evaluation.examples import Example
from s2sft_fairseq.evaluation.settings import Settings


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The U.S. Army!", ["us", "army"]),
        ("A an THE", []),
        ("theatre, another", ["theatre", "another"]),
        ("the-end", ["theend"]),
    ],
)
def test_words_that_count(text, words):
    assert answer_words(text) == words


@pytest.mark.parametrize(
    ("answer", "reference", "expected"),
    [
        ("a b", "a b", 1),
        ("x y", "z", 0),
        ("x y y", "y y y z", 4 / 7),  # 2 of 3 and 2 of 4
        ("", "", 1),
        ("x", "", 0),
        ("", "x", 0),
    ],
)
def test_f1_of_words(answer, reference, expected):
    assert word_f1(answer.split(), reference.split()) == pytest.approx(expected)


def coqa_scores(*references, answer):
    return coqa([Example(answer, references)], Settings()).statistics.over(np.array([0]))


def test_one_reference():
    assert coqa_scores("The white cat", answer="a white dog") == {"F1": pytest.approx(50), "EM": 0}
    assert coqa_scores("The cat.", answer="cat") == {"F1": 100, "EM": 100}


def test_several_references_are_left_out_in_turn():
    # Without the first: best F1 2/3 ("big cat"); without the second or the third: 1.
    found = coqa_scores("cat", "big cat", "dog", answer="the cat")
    assert found == {"F1": pytest.approx(100 * (2 / 3 + 1 + 1) / 3), "EM": pytest.approx(200 / 3)}


def normalized(text):
    kept = "".join(letter for letter in text.lower() if letter not in set(string.punctuation))
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())


def exact(gold, said):
    return int(normalized(gold) == normalized(said))


def overlap(gold, said, nothing):
    one, other = normalized(gold).split(), normalized(said).split()
    if not one or not other:
        return nothing(one, other)
    same = sum((Counter(one) & Counter(other)).values())
    if same == 0:
        return 0
    precision, recall = same / len(other), same / len(one)
    return 2 * precision * recall / (precision + recall)


def mean(values):
    return 100 * sum(values) / len(values)


def reference_v1(examples):
    return {
        "EM": mean([max(exact(gold, e.hypothesis) for gold in e.references) for e in examples]),
        "F1": mean([max(overlap(gold, e.hypothesis, lambda a, b: 0) for gold in e.references) for e in examples]),
    }


def reference_v2(examples, threshold):
    raw = []
    for e in examples:
        golds = [gold for gold in e.references if normalized(gold)] or [""]
        scores = (
            max(exact(gold, e.hypothesis) for gold in golds),
            max(overlap(gold, e.hypothesis, lambda a, b: int(a == b)) for gold in golds),
        )
        raw.append(scores)
    answerable = [any(e.references) for e in examples]
    is_null = [e.null_odds is not None and threshold is not None and e.null_odds > threshold for e in examples]
    final = [(float(not has),) * 2 if null else s for s, null, has in zip(raw, is_null, answerable, strict=True)]
    found = {}
    for column, name in enumerate(("EM", "F1")):
        found[name] = mean([s[column] for s in final])
        for which, prefix in ((True, "HasAns"), (False, "NoAns")):
            if chosen := [s[column] for s, has in zip(final, answerable, strict=True) if has == which]:
                found[f"{prefix} {name}"] = mean(chosen)
        if examples[0].null_odds is None:
            continue
        current = best = sum(not has for has in answerable)
        best_threshold = 0.0
        for number in sorted(range(len(examples)), key=lambda number: examples[number].null_odds):
            if answerable[number]:
                current += raw[number][column]
            elif examples[number].hypothesis:
                current -= 1
            if current > best:
                best, best_threshold = current, examples[number].null_odds
        found[f"best {name}"] = 100 * best / len(examples)
        found[f"threshold of best {name}"] = best_threshold
    return found


def random_examples(seed, *, impossible, odds):
    draw = random.Random(seed)
    words = ["the", "a", "Tower", "tower,", "of", "London", "1,000", "(river)", "an", "--", "Zürich's"]

    def text():
        return " ".join(draw.choices(words, k=draw.randint(0, 4)))

    found = []
    for _ in range(40):
        references = ("",) if impossible and draw.random() < 0.4 else tuple(text() or "x" for _ in range(3))
        hypothesis = draw.choice([*references, text(), ""])
        found.append(Example(hypothesis, references, null_odds=draw.uniform(-5, 5) if odds else None))
    return found


@pytest.mark.parametrize("seed", range(5))
def test_version_1(seed):
    examples = random_examples(seed, impossible=False, odds=False)
    found = squad_v1(examples, Settings()).statistics.over(np.arange(len(examples)))
    assert found == pytest.approx(reference_v1(examples))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("threshold", [None, 0.5])
@pytest.mark.parametrize("odds", [False, True])
def test_version_2(seed, threshold, odds):
    examples = random_examples(seed, impossible=True, odds=odds)
    settings = Settings(null_threshold=threshold)
    measured = squad_v2(examples, settings)
    assert measured.statistics.over(np.arange(len(examples))) == pytest.approx(reference_v2(examples, threshold))
    assert ("null:0.5" in measured.signature) == (threshold is not None)


def test_by_hand():
    """Articles and punctuation do not count; the best reference counts; half of two words: F1 of 2/3."""
    cases = [("the Tower.", ("tower",)), ("old tower", ("tower", "bridge")), ("boat", ("tower",)), ("", ("the",))]
    found = squad_v1([Example(*case) for case in cases], Settings()).statistics
    assert [found.over(np.array([n])) for n in range(4)] == [
        {"EM": 100, "F1": 100},
        {"EM": 0, "F1": pytest.approx(200 / 3)},
        {"EM": 0, "F1": 0},
        {"EM": 100, "F1": 0},  # as in the official evaluation
    ]
    cases = [("", ("",)), ("tower", ("",)), ("", ("tower",)), ("tower", ("tower",))]
    found = squad_v2([Example(*case) for case in cases], Settings()).statistics
    assert found.over(np.arange(4)) == {
        **{"EM": 50, "F1": 50, "HasAns EM": 50, "HasAns F1": 50, "NoAns EM": 50, "NoAns F1": 50}
    }
    assert found.over(np.array([0]))["HasAns EM"] == 0


def test_best_threshold():
    """Two questions with answers at odds -3 and 1, one without an answer at -1, and one wrong answer."""
    cases = [("a1", ("a1",), -3.0), ("b", ("",), -1.0), ("c1", ("c1",), 1.0), ("d", ("e",), 2.0)]
    examples = [Example(said, refs, null_odds=odds) for said, refs, odds in cases]
    found = squad_v2(examples, Settings(null_threshold=-2.0)).statistics.over(np.arange(4))
    assert (found["best EM"], found["threshold of best EM"]) == (50, -3)
    assert found["EM"] == 50
