"""Probabilities that the models give to reference targets: ``--score-reference``."""

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import torch
from torch import Tensor

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.objectives.finetuning import reference
from s2sft_fairseq.objectives.packing import collate
from s2sft_fairseq.objectives.sequence_form import SequenceForm


class ReferenceScorer:
    """Scores the targets of a batch in one pass, with the probabilities that decoding them would give."""

    def __init__(self, models: Sequence[UnilmModel], form: SequenceForm) -> None:
        self.models = list(models)
        # The sources come cut. What is left of their fields must not be cut again as if it were the first of them.
        self.form = replace(form, fields=replace(form.fields, limits=(0,)))
        self.eos = form.sep

    @torch.no_grad()
    def generate(self, models: Sequence[UnilmModel], sample: dict[str, Any], **_: Any) -> list[list[dict[str, Any]]]:
        """Return for each sentence its target as the one hypothesis; ``score`` is the mean of its log-probabilities.

        Arguments as for :meth:`SequenceGenerator.generate`; the targets are ``sample["target"]`` (N, T).

        Raises:
            UserError: if there are no targets.
        """
        if sample["target"] is None:
            raise UserError("--score-reference needs targets, but the data has sources alone")
        device = sample["target"].device
        batch = collate(
            [
                reference(*pair, self.form)
                for pair in zip(
                    self._contents(sample["net_input"]["src_tokens"], 1, self.form.source_specials - 1),
                    self._contents(sample["target"], 0, 1),
                    strict=True,
                )
            ],
            self.form.pad,
        )
        columns = {
            field.name + "s": torch.from_numpy(getattr(batch, field.name)).to(device)
            for field in fields(batch)
            if field.name not in ("label", "block_lengths")
        }
        label = torch.from_numpy(batch.label).to(device)
        labelled = label != self.form.pad
        labels = label[labelled].unsqueeze(1)
        each = []
        for model in self.models:
            model.eval()
            logits = model(**columns, block_lengths=batch.block_lengths, labelled=labelled)
            each.append(model.get_normalized_probs(logits, log_probs=True).gather(1, labels).squeeze(1))
        log_probs = torch.logsumexp(torch.stack(each), dim=0) - math.log(len(each))
        lengths = labelled.sum(dim=1).tolist()
        return [
            [
                {
                    "tokens": tokens,
                    "score": scores.mean(),
                    "attention": None,
                    "alignment": torch.empty(0),
                    "positional_scores": scores,
                }
            ]
            for tokens, scores in zip(labels.squeeze(1).split(lengths), log_probs.split(lengths), strict=True)
        ]

    def _contents(self, rows: Tensor, before: int, after: int) -> list[Any]:
        """Return the ids of each padded row (N, L) as an array, less so many special symbols before and after."""
        lengths = (rows != self.form.pad).sum(dim=1).tolist()
        return [row[before : length - after].cpu().numpy() for row, length in zip(rows, lengths, strict=True)]
