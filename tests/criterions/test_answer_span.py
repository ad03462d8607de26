"""The loss of spans, computed window by window."""

import math

import pytest
import torch
from fairseq.logging import metrics

from s2sft_fairseq.criterions.answer_span import AnswerSpanCriterion


def test_a_batch():
    lengths, labels = [4, 2, 6], [[1, 3], [0, 0], [5, 5]]
    logits = torch.randn(12, 2, generator=torch.Generator().manual_seed(0))
    logits[1, 0] = logits[3, 1] = 9.0  # both ends of the first are right
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
