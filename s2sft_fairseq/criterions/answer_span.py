"""The loss of answers that are spans: the mean of the cross-entropies of their first and of their last token."""

import math
from typing import Any

from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from torch import Tensor, nn


@register_criterion("answer_span", dataclass=FairseqDataclass)
class AnswerSpanCriterion(FairseqCriterion):
    """Scores what a model with a span head says; the tokens of a window compete with each other."""

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """Return the loss (summed over windows in any case, in nats), their number, and what to log."""
        labels = sample["labels"]
        lengths = [sum(blocks) for blocks in sample["net_input"]["lengths"]]
        logits = model(**sample["net_input"]).float().split(lengths)
        rows = nn.utils.rnn.pad_sequence(logits, batch_first=True, padding_value=-math.inf)  # (B, L, 2)
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

    @staticmethod
    def reduce_metrics(logging_outputs: list[dict[str, Any]]) -> None:
        """Add up what the workers logged; the loss in bits (base 2), the share of windows with both ends right."""

        def total(name: str) -> float:
            return float(sum(log.get(name, 0) for log in logging_outputs))

        count = total("sample_size")
        metrics.log_scalar("loss", total("loss") / count / math.log(2), count, round=3)
        metrics.log_scalar("accuracy", 100.0 * total("n_correct") / count, count, round=2)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """Whether outputs may be added up before :meth:`reduce_metrics`."""
        return True
