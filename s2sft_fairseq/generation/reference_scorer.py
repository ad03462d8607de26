"""Probabilities that the models give to reference targets: ``--score-reference``."""

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.generation.not_a_number import NotANumberError, named_by_id
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.objectives.objective import Objective
from s2sft_fairseq.objectives.packing import collate
from s2sft_fairseq.objectives.ragged import Ragged
from s2sft_fairseq.objectives.sequence_form import SequenceForm


class ReferenceScorer:
    """Scores the targets of a batch in one pass, with the probabilities that decoding them would give."""

    def __init__(self, models: Sequence[UnilmModel], form: SequenceForm, objective: Objective) -> None:
        self.models, self.form, self.objective = list(models), form, objective
        self.eos = form.sep

    @torch.no_grad()
    def generate(self, models: Sequence[UnilmModel], sample: dict[str, Any], **_: Any) -> list[list[dict[str, Any]]]:
        """Return for each sentence its target as the one hypothesis; ``score`` is the mean of its log-probabilities.

        Arguments as for :meth:`SequenceGenerator.generate`; the targets are ``sample["target"]`` (N, T).

        Raises:
            UserError: if there are no targets, or the models give NaN.
        """
        if sample["target"] is None:
            raise UserError("--score-reference needs targets, but the data has sources alone")
        device = sample["target"].device
        batch = collate(
            [
                self.objective.reference(
                    Ragged.of(self._unpadded(sample["net_input"]["src_tokens"])),
                    Ragged.of([self.form.target(target[:-1]) for target in self._unpadded(sample["target"])]),
                    self.form,
                )
            ]
        )
        columns = {
            field.name + "s": torch.from_numpy(getattr(batch, field.name)).to(device)
            for field in fields(batch)
            if field.name not in ("label", "lengths")
        }
        label = torch.from_numpy(batch.label).to(device)
        labelled = label != self.form.pad
        labels = label[labelled].unsqueeze(1)
        each = []
        for model in self.models:
            model.eval()
            logits = model(**columns, lengths=batch.lengths, labelled=labelled)
            each.append(model.get_normalized_probs(logits, log_probs=True).gather(1, labels).squeeze(1))
        log_probs = torch.logsumexp(torch.stack(each), dim=0) - math.log(len(each))
        lengths = [int(part.sum()) for part in labelled.split([sum(blocks) for blocks in batch.lengths])]
        if log_probs.isnan().any():
            index = next(index for index, part in enumerate(log_probs.split(lengths)) if part.isnan().any())
            raise named_by_id(NotANumberError(index, next(self.models[0].parameters()).dtype), sample)
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

    def _unpadded(self, rows: Tensor) -> list[np.ndarray]:
        """Return the ids of each padded row (N, L) as an array."""
        return [row[row != self.form.pad] for row in rows.cpu().numpy()]
