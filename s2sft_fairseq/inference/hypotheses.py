"""Hypotheses in fairseq's form: the best ended ones of a search, and reference targets (``--score-reference``)."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from fairseq import utils
from torch import Tensor

from s2sft_fairseq.data.packed_dataset import model_input
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.inference.ngram_blocking import MINUS_INFINITY
from s2sft_fairseq.inference.rules import NotANumberError, mean_of_models
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.objectives.objective import Objective
from s2sft_fairseq.objectives.packing import collate
from s2sft_fairseq.objectives.ragged import Ragged
from s2sft_fairseq.objectives.sequence_form import SequenceForm


class FinishedHypotheses:
    """The K best ended hypotheses of each of N sentences, in tensors.

    N: sentences, K: hypotheses kept, T: most tokens of one.
    """

    def __init__(self, sentences: int, kept: int, max_tokens: int, device: torch.device) -> None:
        self.scores = torch.full((sentences, kept), MINUS_INFINITY, device=device)
        self.lengths = torch.zeros(sentences, kept, dtype=torch.int64, device=device)
        self.tokens = torch.zeros(sentences, kept, max_tokens, dtype=torch.int64, device=device)
        self.log_probs = torch.zeros(sentences, kept, max_tokens, device=device)

    def add(self, ended: Tensor, scores: Tensor, tokens: Tensor, log_probs: Tensor) -> None:
        """Add the ended ones of C hypotheses of one length t, and keep the best K.

        Shape:
            ended and normalized scores (N, C), tokens and log-probabilities (N, C, t).
        """
        length = tokens.size(2)
        scores = scores.masked_fill(~ended, MINUS_INFINITY)
        kept = self.scores.size(1)
        self.scores, order = torch.cat([self.scores, scores], dim=1).topk(kept, dim=1)
        self.lengths = torch.cat([self.lengths, torch.full_like(ended, length, dtype=torch.int64)], 1).gather(1, order)
        room = self.tokens.size(2) - length
        across = order.unsqueeze(-1).expand(-1, -1, self.tokens.size(2))
        self.tokens = torch.cat([self.tokens, torch.nn.functional.pad(tokens, (0, room))], 1).gather(1, across)
        padded = torch.nn.functional.pad(log_probs, (0, room))
        self.log_probs = torch.cat([self.log_probs, padded], 1).gather(1, across)

    def keep(self, kept: Tensor) -> None:
        """Drop the hypotheses that are False in ``kept`` (N, K); the next ``add`` sorts the others."""
        self.scores = self.scores.masked_fill(~kept, MINUS_INFINITY)

    def counts(self) -> Tensor:
        """Return how many hypotheses each sentence has (N,)."""
        return (self.scores > MINUS_INFINITY).sum(dim=1)

    def worst(self, wanted: int) -> Tensor:
        """Return the score (N,) that a new hypothesis must exceed to be among the best ``wanted``; -inf: any score."""
        return self.scores[:, wanted - 1]

    def keep_sentences(self, left: Tensor) -> None:
        """Keep only the sentences with the indices ``left`` (n,)."""
        self.scores, self.lengths = self.scores[left], self.lengths[left]
        self.tokens, self.log_probs = self.tokens[left], self.log_probs[left]

    def of(self, sentences: Tensor, wanted: int) -> list[list[dict[str, Any]]]:
        """Return the best ``wanted`` hypotheses of some sentences (n,), or as many as there are, on the CPU."""
        scores, *others = (
            column[sentences, :wanted].cpu() for column in (self.scores, self.lengths, self.tokens, self.log_probs)
        )
        counts = (scores > MINUS_INFINITY).sum(dim=1).tolist()
        return [
            hypotheses(*(column[:count] for column in each))
            for count, *each in zip(counts, scores, *others, strict=True)
        ]


@torch.inference_mode(False)
def hypotheses(scores: Tensor, lengths: Tensor, tokens: Tensor, log_probs: Tensor) -> list[dict[str, Any]]:
    """Return the hypotheses of a sentence in fairseq's form, in tensors that fairseq may change in place.

    Args:
        scores: normalized scores, the best first (K,).
        lengths: number of tokens of each hypothesis, with eos (K,).
        tokens: tokens of each hypothesis (K, T).
        log_probs: natural logarithms of the probabilities of the tokens (K, T).
    """
    scores, tokens, log_probs = scores.clone(), tokens.clone(), log_probs.clone()
    return [
        {
            "tokens": tokens[i, :length],
            "score": scores[i],
            "attention": None,
            "alignment": torch.empty(0),
            "positional_scores": log_probs[i, :length],
        }
        for i, length in enumerate(lengths.tolist())
    ]


class ReferenceScorer:
    """Scores the targets of a batch in one pass, with the same probabilities as decoding gives."""

    def __init__(self, models: Sequence[UnilmModel], form: SequenceForm, objective: Objective) -> None:
        self.models, self.form, self.objective = list(models), form, objective
        self.eos = form.sep

    @torch.no_grad()
    def generate(self, models: Sequence[UnilmModel], sample: dict[str, Any], **_: Any) -> list[list[dict[str, Any]]]:
        """Return the target of each sentence as its only hypothesis, on the CPU.

        ``score`` is the mean of the log-probabilities. The arguments are those of :meth:`SequenceGenerator.generate`;
        the targets are ``sample["target"]`` (N, T).

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
        is_labelled = batch.label != self.form.pad
        labelled = torch.from_numpy(np.flatnonzero(is_labelled)).to(device)
        labels = torch.from_numpy(batch.label[is_labelled])
        index = labels.to(device).unsqueeze(1)
        each = []
        for model in self.models:
            model.eval()
            logits = model(**columns, labelled=labelled)
            each.append(model.get_normalized_probs(logits, log_probs=True).gather(1, index).squeeze(1))
        ends = np.cumsum([sum(blocks) for blocks in batch.lengths])
        lengths = [int(part.sum()) for part in np.split(is_labelled, ends[:-1])]
        results: list[list[dict[str, Any]]] = []
        for tokens, scores in zip(labels.split(lengths), mean_of_models(each).cpu().split(lengths), strict=True):
            if scores.isnan().any():
                raise NotANumberError(len(results), next(self.models[0].parameters()).dtype).named(sample)
            results.append(hypotheses(scores.mean()[None], torch.tensor([len(tokens)]), tokens[None], scores[None]))
        return results

    def _unpadded(self, rows: Tensor) -> list[np.ndarray]:
        """Return the ids of each padded row (N, L) as an array."""
        return [row[row != self.form.pad] for row in rows.cpu().numpy()]
