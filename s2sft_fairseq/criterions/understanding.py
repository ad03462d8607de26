"""Losses and scores of the understanding tasks: classes, numbers, and answer spans.

The loss is the cross-entropy for classes and the squared error for numbers, with one label per text. Scores of a whole
data set are computed from sums over batches and workers: accuracy; for two classes F1 and Matthews' correlation, from
the confusion matrix; for numbers Pearson's correlation, from moments. The loss of a span is the mean of the
cross-entropies of its first and its last token.
"""

import math
from typing import Any

from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from fairseq.tasks import FairseqTask
from torch import Tensor, nn

from s2sft_fairseq.errors import UserError

_TABLE = ("_true_positives", "_false_positives", "_false_negatives", "_true_negatives")
_MOMENTS = ("_x", "_y", "_xx", "_yy", "_xy")
"""Sums over predictions x and labels y."""


class UnderstandingCriterion(FairseqCriterion):
    """Base class that aggregates the loss, the accuracy and, for two classes or numbers, the other scores."""

    @staticmethod
    def reduce_metrics(logging_outputs: list[dict[str, Any]]) -> None:
        """Aggregate the values logged by all workers; cross-entropies are in bits (base 2), scores in percent."""

        def total(name: str) -> Any:
            added = sum(log.get(name, 0) for log in logging_outputs)
            # Converting a tensor on a GPU to a number would make the host wait.
            return added if isinstance(added, Tensor) and added.device.type != "cpu" else float(added)

        names = logging_outputs[0].keys()
        count = total("sample_size")
        unit = math.log(2) if "n_correct" in names else 1.0
        metrics.log_scalar("loss", total("loss") / count / unit, count, round=3)
        if "n_correct" in names:
            metrics.log_scalar("accuracy", 100.0 * total("n_correct") / count, count, round=2)
        for kept, of_sums in ((_TABLE, {"f1": f1, "mcc": matthews}), (_MOMENTS, {"pearson": pearson})):
            if kept[0] not in names:
                continue
            metrics.log_scalar_sum("_count", count)
            for name in kept:
                metrics.log_scalar_sum(name, total(name))
            for name, score in of_sums.items():
                metrics.log_derived(name, lambda meters, kept=kept, score=score: _percent(meters, kept, score))

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """Return True: outputs may be summed over workers before :meth:`reduce_metrics`."""
        return True


@register_criterion("classification", dataclass=FairseqDataclass)
class ClassificationCriterion(UnderstandingCriterion):
    """Computes the loss and the scores of a model with a classification head."""

    def __init__(self, task: FairseqTask) -> None:
        super().__init__(task)
        self.regression = task.cfg.regression

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """Return the loss (always summed over texts, in nats), their number, and the values to log.

        Raises:
            UserError: if there are no labels.
        """
        labels = sample["labels"]
        if labels is None:
            raise UserError("a loss needs labels, but the data has texts alone")
        logits = model(**sample["net_input"]).float()
        if self.regression:
            loss = nn.functional.mse_loss(logits[:, 0], labels.float(), reduction="sum")
            scores = _moments(logits[:, 0].detach().double(), labels.double())
        else:
            loss = nn.functional.cross_entropy(logits, labels, reduction="sum")
            best = logits.argmax(dim=1)
            scores = {"n_correct": (best == labels).sum()}
            if logits.size(1) == 2:
                scores |= _table(best == 1, labels == 1)
        count = sample["nsentences"]
        logged = {"loss": loss.data, "ntokens": sample["ntokens"], "nsentences": count, "sample_size": count}
        return loss, count, {**logged, **scores}


@register_criterion("answer_span", dataclass=FairseqDataclass)
class AnswerSpanCriterion(UnderstandingCriterion):
    """Computes the loss and the accuracy of a model with a span head, with a softmax over the tokens of a window."""

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """Return the loss (always summed over windows, in nats), their number, and the values to log."""
        labels = sample["labels"]
        lengths = [sum(blocks) for blocks in sample["net_input"]["lengths"]]
        logits = model(**sample["net_input"]).float().split(lengths)
        rows = nn.utils.rnn.pad_sequence(logits, batch_first=True, padding_value=-math.inf)  # (B, L, 2), L: tokens
        loss = nn.functional.cross_entropy(rows, labels, reduction="sum") / 2
        count = sample["nsentences"]
        logged = {
            "loss": loss.data,
            "n_correct": (rows.argmax(dim=1) == labels).all(dim=1).sum(),
            "ntokens": sample["ntokens"],
            "nsentences": count,
            "sample_size": count,
        }
        return loss, count, logged


def _table(said: Tensor, real: Tensor) -> dict[str, Tensor]:
    return dict(zip(_TABLE, (m.sum() for m in (said & real, said & ~real, ~said & real, ~said & ~real)), strict=True))


def _moments(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    return dict(zip(_MOMENTS, (m.sum() for m in (x, y, x * x, y * y, x * y)), strict=True))


def _percent(meters: Any, names: tuple[str, ...], score: Any) -> float:
    return round(100 * score(*(float(meters[name].sum) for name in ("_count", *names))), 2)


def f1(count: float, tp: float, fp: float, fn: float, tn: float) -> float:
    """Return F1 of the positive class; 0 if there are no true positives."""
    return 2 * tp / (2 * tp + fp + fn) if tp else 0.0


def matthews(count: float, tp: float, fp: float, fn: float, tn: float) -> float:
    """Return Matthews' correlation coefficient; 0 if predictions or labels have only one class."""
    norm = math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    return (tp * tn - fp * fn) / norm if norm else 0.0


def pearson(count: float, x: float, y: float, xx: float, yy: float, xy: float) -> float:
    """Return Pearson's correlation coefficient; 0 if predictions or labels are constant."""
    norm = math.sqrt(max(0.0, (count * xx - x * x) * (count * yy - y * y)))
    return (count * xy - x * y) / norm if norm else 0.0
