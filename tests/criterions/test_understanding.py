"""Loss and scores of classes and numbers, compared with PyTorch, scikit-learn and scipy; the loss of spans, by hand."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.logging import metrics
from scipy.stats import pearsonr
from sklearn.metrics import f1_score, matthews_corrcoef

from s2sft_fairseq.criterions.understanding import AnswerSpanCriterion, ClassificationCriterion, f1, matthews, pearson
from s2sft_fairseq.errors import UserError


def criterion(regression=False):
    return ClassificationCriterion(SimpleNamespace(cfg=SimpleNamespace(regression=regression)))


def sample(labels):
    return {"net_input": {}, "labels": labels, "nsentences": len(labels), "ntokens": 100}


def reported(logs):
    with metrics.aggregate() as aggregated:
        for log in logs:
            ClassificationCriterion.reduce_metrics([log])
    return aggregated.get_smoothed_values()


def run(logits, labels, regression=False):
    """Run two batches; return the sum of their losses, and the logged values of both."""
    outputs = []
    for part in (slice(0, 7), slice(7, None)):
        output = criterion(regression)(lambda logits=logits[part]: logits, sample(labels[part]))
        assert output[1] == len(labels[part])
        outputs.append(output)
    return sum(float(output[0]) for output in outputs), reported([output[2] for output in outputs])


def test_two_classes():
    generator = torch.Generator().manual_seed(0)
    logits, labels = torch.randn(40, 2, generator=generator), torch.randint(2, (40,), generator=generator)
    loss, values = run(logits, labels)
    assert loss == pytest.approx(float(torch.nn.functional.cross_entropy(logits, labels, reduction="sum")), rel=1e-5)
    assert values["loss"] == pytest.approx(loss / 40 / math.log(2), abs=1e-3)
    best = logits.argmax(dim=1)
    assert values["accuracy"] == pytest.approx(100 * float((best == labels).float().mean()), abs=0.01)
    assert values["f1"] == pytest.approx(100 * f1_score(labels, best), abs=0.01)
    assert values["mcc"] == pytest.approx(100 * matthews_corrcoef(labels, best), abs=0.01)


def test_three_classes():
    _, values = run(torch.eye(3).repeat(4, 1), torch.arange(3).repeat(4))
    assert values["accuracy"] == 100
    assert "f1" not in values


def test_numbers():
    generator = torch.Generator().manual_seed(0)
    said, labels = torch.randn(30, 1, generator=generator), torch.rand(30, generator=generator)
    loss, values = run(said, labels, regression=True)
    assert loss == pytest.approx(float(((said[:, 0] - labels) ** 2).sum()), rel=1e-5)
    assert values["loss"] == pytest.approx(loss / 30, abs=1e-3)
    assert values["pearson"] == pytest.approx(100 * pearsonr(said[:, 0], labels).statistic, abs=0.01)
    assert "accuracy" not in values


def test_scores_without_a_value():
    assert f1(3, 0, 0, 0, 3) == 0
    assert matthews(3, 2, 1, 0, 0) == 0
    assert pearson(2, 2, 3, 2, 5, 3) == 0


def test_workers_are_added_up():
    assert ClassificationCriterion.logging_outputs_can_be_summed()
    logs = [{"loss": 1.0, "sample_size": 2, "n_correct": np.int64(1)}, {"loss": 2.0, "sample_size": 4, "n_correct": 4}]
    with metrics.aggregate() as aggregated:
        ClassificationCriterion.reduce_metrics(logs)
    assert aggregated.get_smoothed_values()["accuracy"] == pytest.approx(83.33)


def test_texts_without_labels_have_no_loss():
    with pytest.raises(UserError, match=r"^a loss needs labels, but the data has texts alone$"):
        criterion()(lambda: None, {**sample([]), "labels": None})


def test_a_batch():
    lengths, labels = [4, 2, 6], [[1, 3], [0, 0], [5, 5]]
    logits = torch.randn(12, 2, generator=torch.Generator().manual_seed(0))
    logits[1, 0] = logits[3, 1] = 9.0  # both ends of the first span are right
    logits.requires_grad_()
    sample = {
        "net_input": {"lengths": [(length,) for length in lengths]},
        "labels": torch.tensor(labels),
        "nsentences": 3,
        "ntokens": 12,
    }
    loss, size, logged = AnswerSpanCriterion(None)(lambda lengths: logits, sample)
    expected, right = 0.0, 0
    for window, of_window in zip(logits.detach().double().split(lengths), labels, strict=True):
        expected -= sum(float(window[:, side].log_softmax(dim=0)[of_window[side]]) for side in (0, 1)) / 2
        right += window.argmax(dim=0).tolist() == of_window
    assert size == 3
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    loss.backward()
    assert logits.grad.isfinite().all()
    assert right >= 1
    with metrics.aggregate() as aggregated:
        AnswerSpanCriterion.reduce_metrics([logged, logged])
    values = aggregated.get_smoothed_values()
    assert values["loss"] == pytest.approx(expected / 3 / math.log(2), abs=1e-3)
    assert values["accuracy"] == pytest.approx(100 * right / 3, abs=0.01)
    assert AnswerSpanCriterion.logging_outputs_can_be_summed()
