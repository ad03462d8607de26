"""Beam search in plain Python: lists, one full packed pass per step, no cache, one sentence at a time.

It stops early only by fairseq's rule and in greedy search.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from tiny import model_inputs, reference_example

from s2sft_fairseq.inference.options import SearchOptions
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.objectives.packing import collate
from s2sft_fairseq.objectives.sequence_form import SequenceForm

NEVER = -math.inf


class Hypothesis(NamedTuple):
    """The state of one hypothesis."""

    total: float
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]


class Finished(NamedTuple):
    """An ended hypothesis with its normalized score."""

    score: float
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]


@torch.no_grad()
def next_log_probs(
    models: Sequence[UnilmModel],
    form: SequenceForm,
    source: np.ndarray,
    prefixes: list[tuple[int, ...]],
    temperature: float,
) -> np.ndarray:
    """Return the log-probabilities (prefixes, V) after each prefix: the log of the models' mean probability."""
    examples = [reference_example(source, np.array(prefix, dtype=np.int64), form) for prefix in prefixes]
    batch = collate(examples)
    probabilities = []
    for model in models:
        logits = model(**model_inputs(batch), labelled=torch.from_numpy(np.flatnonzero(batch.label != form.pad)))
        last = logits.view(len(prefixes), -1, logits.size(-1))[:, -1].double().numpy() / temperature
        exponents = np.exp(last - last.max(axis=1, keepdims=True))
        probabilities.append(exponents / exponents.sum(axis=1, keepdims=True))
    return np.log(sum(probabilities) / len(models))


def repeats_ngram(tokens: tuple[int, ...], candidate: int, size: int, ignore: Sequence[int]) -> bool:
    """Return whether the candidate completes an n-gram that the tokens already have; the ignored tokens never do."""
    end = [*tokens[len(tokens) - size + 1 :], candidate]
    if len(tokens) < size - 1 or any(token in ignore for token in end):
        return False
    return any(list(tokens[i : i + size]) == end for i in range(len(tokens) - size + 1))


def naive_search(
    models: Sequence[UnilmModel],
    form: SequenceForm,
    options: SearchOptions,
    source: np.ndarray,
    prefix: Sequence[int] = (),
    gaps: list[float] | None = None,
) -> list[Finished]:
    """Return the best hypotheses of one source (ids without special symbols), the best first.

    `gaps` collects the differences of scores that decided anything: if one is as small as a rounding error, another
    search may decide otherwise.
    """
    gaps = [] if gaps is None else gaps
    if len(source) == 0:
        max_len = 0
    else:
        limit = int(options.max_len_a * len(form.source(source)) + options.max_len_b)
        max_len = min(limit, form.max_target - 1)
    live, finished = [Hypothesis(0.0, (), ())], []
    for step in range(max_len + 1):
        each = next_log_probs(models, form, source, [hypothesis.tokens for hypothesis in live], options.temperature)
        must_end = step == max_len and (len(source) == 0 or not options.keep_unfinished)
        candidates = []
        for hypothesis, log_probs in zip(live, each, strict=True):
            for token, log_prob in enumerate(log_probs.tolist()):
                if must_end:
                    allowed = token == form.sep
                elif step < len(prefix):
                    allowed = token == prefix[step]
                else:
                    allowed = token not in options.never_generated
                    allowed = allowed and not (token == form.sep and step < options.min_len)
                    if size := options.no_repeat_ngram_size:
                        allowed = allowed and not repeats_ngram(hypothesis.tokens, token, size, options.never_blocked)
                if allowed:
                    candidates.append(
                        Hypothesis(
                            hypothesis.total + log_prob, (*hypothesis.tokens, token), (*hypothesis.log_probs, log_prob)
                        )
                    )
        candidates = best(sorted(candidates, reverse=True), 2 * options.beam, gaps)
        if options.rank_each_step:
            live, finished = ranked_together(candidates, finished, step + 1, form, options, gaps, last=step == max_len)
            if not live or step == max_len:
                break
            continue
        for total, tokens, log_probs in best(candidates, options.beam, gaps):
            if tokens[-1] == form.sep or (options.keep_unfinished and step == max_len):
                finished.append(Finished(total / normalizer(step + 1, options), tokens, log_probs))
        finished = best(sorted(finished, reverse=True), options.beam, gaps)
        if options.count_ended:
            candidates = candidates[: options.beam]
        live = best([candidate for candidate in candidates if candidate.tokens[-1] != form.sep], options.beam, gaps)
        if not live or (stops_early(options) and len(finished) >= options.beam):
            break
    gaps += [better.score - worse.score for better, worse in pairwise(finished)]
    return finished[: options.nbest]


def stops_early(options: SearchOptions) -> bool:
    """Return whether the search ends when as many hypotheses have ended as there are beams."""
    return options.beam == 1 or options.early_stop == "fairseq"


def best(ranked: list, count: int, gaps: list[float]) -> list:
    """Return the first `count` of a list that is sorted by its first field; add their lead over the next to `gaps`."""
    if len(ranked) > count:
        gaps.append(ranked[count - 1][0] - ranked[count][0])
    return ranked[:count]


def ranked_together(
    candidates: list[Hypothesis],
    finished: list[Finished],
    length: int,
    form: SequenceForm,
    options: SearchOptions,
    gaps: list[float],
    *,
    last: bool,
) -> tuple[list[Hypothesis], list[Finished]]:
    """Return the beam of ERNIE-GEN's program: the best hypotheses, ended or not; ended ones keep their scores."""
    ranked = [(hypothesis.score, hypothesis) for hypothesis in finished]
    ranked += [(candidate.total / normalizer(length, options), candidate) for candidate in candidates]
    live, kept = [], []
    for score, hypothesis in best(sorted(ranked, key=lambda pair: -pair[0]), options.beam, gaps):
        if isinstance(hypothesis, Finished):
            kept.append(hypothesis)
        elif hypothesis.tokens[-1] == form.sep or (last and options.keep_unfinished):
            kept.append(Finished(score, hypothesis.tokens, hypothesis.log_probs))
        else:
            live.append(hypothesis)
    return live, sorted(kept, reverse=True)


def normalizer(length: int, options: SearchOptions) -> float:
    base = (5 + length) / 6 if options.length_penalty == "gnmt" else length
    return base**options.lenpen
