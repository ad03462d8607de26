"""Probabilities that the models give to reference targets: ``--score-reference``."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from fairseq import utils
from torch import Tensor

from s2sft_fairseq.data.packed_dataset import model_input
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.inference.rules import NotANumberError, mean_of_models
from s2sft_fairseq.inference.search import hypotheses
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
        source = Ragged.of(self._unpadded(sample["net_input"]["src_tokens"]))
        target = Ragged.of([self.form.target(target[:-1]) for target in self._unpadded(sample["target"])])
        batch = collate([self.objective.reference(source, target, self.form)])
        columns = utils.apply_to_sample(lambda column: column.to(device), model_input(batch))
        label = torch.from_numpy(batch.label).to(device)
        labelled = label != self.form.pad
        labels = label[labelled].unsqueeze(1)
        each = []
        for model in self.models:
            model.eval()
            logits = model(**columns, labelled=labelled)
            each.append(model.get_normalized_probs(logits, log_probs=True).gather(1, labels).squeeze(1))
        lengths = [int(part.sum()) for part in labelled.split([sum(blocks) for blocks in batch.lengths])]
        results = []
        for tokens, scores in zip(labels.squeeze(1).split(lengths), mean_of_models(each).split(lengths), strict=True):
            if scores.isnan().any():
                raise NotANumberError(len(results), next(self.models[0].parameters()).dtype).named(sample)
            results.append(hypotheses(scores.mean()[None], torch.tensor([len(tokens)]), tokens[None], scores[None]))
        return results

    def _unpadded(self, rows: Tensor) -> list[np.ndarray]:
        """Return the ids of each padded row (N, L) as an array."""
        return [row[row != self.form.pad] for row in rows.cpu().numpy()]
