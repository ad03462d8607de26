"""GLUE's metrics on labels, compared with values computed by hand."""

import math

import numpy as np
import pytest

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.evaluation.evaluate import evaluate
from s2sft_fairseq.evaluation.examples import Example
from s2sft_fairseq.evaluation.glue import accuracy, correlation, f1, matthews
from s2sft_fairseq.evaluation.settings import TASKS

# Three hits, one false alarm, two misses, four correct rejections.
LABELS, SAID = "1110110000", "1111000000"


def examples(labels, predictions):
    return [Example(str(said), (str(label),)) for label, said in zip(labels, predictions, strict=True)]


def score(metric, labels, predictions):
    return metric(examples(labels, predictions), None).statistics.over(np.arange(len(labels)))


def test_classes():
    assert score(accuracy, LABELS, SAID) == {"accuracy": pytest.approx(70)}
    assert score(f1, LABELS, SAID) == {"F1": pytest.approx(100 * 6 / 9)}
    assert score(matthews, LABELS, SAID) == {"MCC": pytest.approx(100 * (3 * 4 - 1 * 2) / math.sqrt(4 * 5 * 6 * 5))}
    assert score(accuracy, ["entailment", "neutral"], ["entailment ", "contradiction"]) == {"accuracy": 50}
    assert score(f1, "00", "00") == {"F1": 0}
    assert score(matthews, "10", "11") == {"MCC": 0}
    with pytest.raises(UserError, match="--metrics f1 needs the classes 0 and 1, but there is no, yes"):
        score(f1, ["yes", "no"], ["yes", "yes"])


def test_numbers():
    found = score(correlation, [1, 2, 3, 4], [1, 4, 9, 16])
    assert found["Spearman"] == pytest.approx(100)
    assert found["Pearson"] == pytest.approx(100 * np.corrcoef([1, 2, 3, 4], [1, 4, 9, 16])[0, 1])
    assert score(correlation, [1, 2], [3, 3]) == {"Pearson": 0, "Spearman": 0}
    with pytest.raises(UserError, match=r"^--metrics correlation needs numbers: .*'one'"):
        score(correlation, ["1", "2"], ["one", "2"])


def test_over_some():
    measured = accuracy(examples(LABELS, SAID), None)
    assert measured.statistics.over(np.array([3, 3, 0])) == {"accuracy": pytest.approx(100 / 3)}


@pytest.mark.parametrize("task", ["cola", "sst-2", "mrpc", "qqp", "mnli", "qnli", "rte", "wnli"])
def test_tasks(task):
    scores = evaluate(examples(LABELS, SAID), TASKS[task], resamples=10)
    assert "accuracy" in {one.name for one in scores}
    assert all(one.signature.startswith("tool:scikit-learn|version:") and one.interval for one in scores)
