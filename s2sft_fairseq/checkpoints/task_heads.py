"""Export of the heads of understanding tasks by Hugging Face's names, for families whose heads compute the same.

Our heads are BERT's (`s2sft_fairseq.models.encoder_with_head`): dense layer, tanh and linear layer on ``[CLS]``, or a
linear layer on every token.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from s2sft_fairseq.errors import UserError

PREFIX = "head."
UNILM_ALONE = "Hugging Face has no model with a relative position bias and segments"


@dataclass(frozen=True)
class HeadFormat:
    """The names of the heads in Hugging Face's models for a task."""

    architecture: str
    """The part of their class names that replaces ``MaskedLM``."""
    modules: Mapping[str, Mapping[str, str]]
    """Our modules -> theirs, for each family by name."""
    refused: Mapping[str, str]
    """The reason why no model of Hugging Face has our head, for each family by name."""


# As in transformers 5.23: Bert-, Roberta-, MPNet-, Electra-, DebertaV2- and ModernBertForSequenceClassification, and
# ...ForQuestionAnswering.
_ROBERTA = {"dense": "classifier.dense", "output": "classifier.out_proj"}
FORMATS = {
    "unilm_classification": HeadFormat(
        "SequenceClassification",
        {
            "BERT": {"dense": "bert.pooler.dense", "output": "classifier"},
            "RoBERTa": _ROBERTA,
            "MPNet": _ROBERTA,
            "DeBERTa": {"dense": "pooler.dense", "output": "classifier"},
        },
        {
            "ELECTRA": "ElectraForSequenceClassification has GELU in place of tanh",
            "ModernBERT": "ModernBertForSequenceClassification has GELU and a layer norm in place of tanh",
            "UniLM": UNILM_ALONE,
        },
    ),
    "unilm_question_answering": HeadFormat(
        "QuestionAnswering",
        {family: {"output": "qa_outputs"} for family in ("BERT", "RoBERTa", "MPNet", "ELECTRA", "DeBERTa")},
        {
            "ModernBERT": "ModernBertForQuestionAnswering has a dense layer and a layer norm before the linear layer",
            "UniLM": UNILM_ALONE,
        },
    ),
}


@dataclass(frozen=True)
class TaskHead:
    """The head of a checkpoint."""

    task: str
    weights: Mapping[str, Tensor]
    """The weights by our names, without `PREFIX`."""
    settings: Mapping[str, Any]
    """The settings of its outputs in a ``config.json``."""
    source_segments: str | None
    """The option ``--source-segments`` of the training, if it was given."""

    def write(self, family: str) -> dict[str, Tensor]:
        """Return the weights under the names of a family.

        Raises:
            UserError: if Hugging Face has no model of the family with this head.
        """
        layout = FORMATS[self.task]
        if family not in layout.modules:
            reason = layout.refused.get(family, "Hugging Face has no model with this head, or it was not compared")
            raise UserError(f"{self.task} with {family} cannot be exported: {reason}")
        return {
            f"{theirs}.{kind}": self.weights[f"{ours}.{kind}"]
            for ours, theirs in layout.modules[family].items()
            for kind in ("weight", "bias")
        }

    def architecture(self, generator: str) -> str:
        """Return the name of Hugging Face's class for this head, given that for a masked language model."""
        return generator.replace("MaskedLM", FORMATS[self.task].architecture)


def read_head(state: Mapping[str, Any], where: str) -> TaskHead | None:
    """Return the head of a checkpoint, or None if it is an encoder or a generator.

    Args:
        state: the checkpoint.
        where: its name in messages.

    Raises:
        UserError: if the head belongs to another task or is incomplete, or the number of classes does not fit it.
    """
    weights = {
        name.removeprefix(PREFIX): value for name, value in state.get("model", {}).items() if name.startswith(PREFIX)
    }
    if not weights:
        return None
    options = (state.get("cfg") or {}).get("task")
    task = options if isinstance(options, dict) else vars(options) if options is not None else {}
    name = str(task.get("_name"))
    if name not in FORMATS:
        raise UserError(f"{where} must be a checkpoint of {', '.join(FORMATS)} to be exported, but is one of {name}")
    modules = next(iter(FORMATS[name].modules.values()))
    needed = {f"{module}.{kind}" for module in modules for kind in ("weight", "bias")}
    if needed != weights.keys():
        raise UserError(f"the head of {where} must hold {_list(needed)}, but holds {_list(weights)}")
    settings: dict[str, Any] = {}
    if name == "unilm_classification":
        classes = (state.get("task_state") or {}).get("classes") or []
        settings = _labels([] if task.get("regression") else classes, len(weights["output.weight"]), where)
    return TaskHead(name, weights, settings, task.get("source_segments"))


def _labels(classes: list[str], outputs: int, where: str) -> dict[str, Any]:
    if outputs != max(1, len(classes)):
        raise UserError(f"{where} must name {outputs} classes, as many as its head has outputs, but names {classes}")
    if not classes:
        return {"problem_type": "regression", "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    return {
        "problem_type": "single_label_classification",
        "id2label": {str(number): name for number, name in enumerate(classes)},
        "label2id": {name: number for number, name in enumerate(classes)},
    }


def _list(names: Any) -> str:
    return ", ".join(sorted(names))
