"""The loss of all packed objectives: cross-entropy at the labelled positions, with label smoothing as in s2s-ft."""

import math
from dataclasses import dataclass, field
from typing import Any

from fairseq import utils
from fairseq.criterions import FairseqCriterion, register_criterion
from fairseq.dataclass import FairseqDataclass
from fairseq.logging import metrics
from fairseq.tasks import FairseqTask
from omegaconf import II
from torch import Tensor, nn

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.modules.lm_head import Losses, Targets


@dataclass
class MaskAttentionConfig(FairseqDataclass):
    """Options of the criterion."""

    label_smoothing: float = field(
        default=0.1, metadata={"help": "share of the probability that is spread over the wrong tokens; 0: none"}
    )
    report_accuracy: bool = field(default=False, metadata={"help": "report the share of labels that rank first"})
    sentence_avg: bool = II("optimization.sentence_avg")


@register_criterion("mask_attention", dataclass=MaskAttentionConfig)
class MaskAttentionCriterion(FairseqCriterion):
    """Computes the loss of the labels of a packed batch, for any objective."""

    def __init__(self, task: FairseqTask, label_smoothing: float, report_accuracy: bool, sentence_avg: bool) -> None:
        super().__init__(task)
        if not 0 <= label_smoothing < 1:
            raise UserError(f"--label-smoothing must be at least 0 and below 1, but is {label_smoothing:g}")
        self.label_smoothing = label_smoothing
        self.report_accuracy = report_accuracy
        self.sentence_avg = sentence_avg
        self.pad = task.target_dictionary.pad()

    def forward(
        self, model: nn.Module, sample: dict[str, Any], reduce: bool = True
    ) -> tuple[Tensor, int, dict[str, Any]]:
        """Return the loss (always summed over labels, in nats), its divisor, and the values to log.

        The divisor is the number of labels, or with ``--sentence-avg`` the number of examples. With several flows the
        loss is their weighted sum, and the divisor is the number of labels of the first one. So with
        ``--source-loss-weight`` W the loss of the targets is averaged as without it, and that of a source token weighs
        W of that of a target token. With ``--block-loss-weight
        bound`` the divisor is the number of all tokens of the blocks.

        Raises:
            UserError: if there are no labels, because the data has only sources.
        """
        labels = sample["labels"]
        if len(labels) == 0:
            raise UserError("a loss needs targets, but the data has sources alone")
        flows, weights = sample["flows"], sample["weights"]
        weights = None if weights is None else weights.float()
        targets = Targets(labels, self.pad, self.label_smoothing, weights, rank=self.report_accuracy)
        losses: Losses = model(**sample["net_input"], targets=targets)
        sample_size = sample["nsentences"] if self.sentence_avg else sample["divisor"]
        logged = {
            "loss": losses.loss.data,
            "nll_loss": losses.nll.sum(),
            "ntokens": sample["ntokens"],
            "nsentences": sample["nsentences"],
            "sample_size": sample_size,
        }
        if self.report_accuracy:
            logged["n_correct"] = losses.correct.sum()
        for name, of_flow in flows.items():
            logged |= {f"{name}_nll": losses.nll[of_flow].sum(), f"{name}_tokens": of_flow.sum()}
        return losses.loss, sample_size, logged

    @staticmethod
    def reduce_metrics(logging_outputs: list[dict[str, Any]]) -> None:
        """Aggregate the values logged by all workers; losses are in bits (base 2) per label."""

        def total(name: str) -> Any:
            return sum(log.get(name, 0) for log in logging_outputs)

        sample_size, ntokens = total("sample_size"), total("ntokens")
        metrics.log_scalar("loss", total("loss") / sample_size / math.log(2), sample_size, round=3)
        metrics.log_scalar("nll_loss", total("nll_loss") / ntokens / math.log(2), ntokens, round=3)
        metrics.log_derived("ppl", lambda meters: utils.get_perplexity(meters["nll_loss"].avg))
        for name in sorted(
            {key.removesuffix("_nll") for log in logging_outputs for key in log if key.endswith("_nll")}
        ):
            tokens = total(f"{name}_tokens")
            metrics.log_scalar(f"{name}_loss", total(f"{name}_nll") / tokens / math.log(2), tokens, round=3)
        if any("n_correct" in log for log in logging_outputs):
            metrics.log_scalar("accuracy", 100.0 * total("n_correct") / ntokens, ntokens, round=1)

    @staticmethod
    def logging_outputs_can_be_summed() -> bool:
        """Return True: outputs may be summed over workers before :meth:`reduce_metrics`."""
        return True
