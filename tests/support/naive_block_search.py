"""Decoding in blocks in the plainest way: one sentence at a time, and each pass reads everything again."""

import numpy as np
import torch
from tiny import model_inputs

from s2sft_fairseq.inference.options import SearchOptions
from s2sft_fairseq.objectives.finetuning import context_section
from s2sft_fairseq.objectives.packing import Section, collate
from s2sft_fairseq.objectives.ragged import Ragged
from s2sft_fairseq.objectives.sequence_form import SequenceForm


def block_log_probs(models, form: SequenceForm, source: np.ndarray, text: list[int], block: list[int]) -> np.ndarray:
    """Return natural logarithms (B, V) of the mean probability at each placeholder of a block, by a full pass."""
    laid_out = Ragged.of([form.source(source)])
    content = np.array([*form.start, *text], dtype=np.int64)
    first = int(laid_out.lengths[0])
    placeholders = np.array(block)
    step = np.full(len(block), len(content) + 1)
    example = (
        context_section(laid_out, form),
        Section.of(
            Ragged.of([content]),
            first_position=first,
            segment=form.target_segment,
            step=np.arange(len(content)) + 1,
            label=form.pad,
        ),
        Section.of(
            Ragged.of([placeholders]),
            first_position=first + len(content),
            segment=form.placeholder_segment,
            step=step,
            group=np.ones(len(block), dtype=np.int64),
            label=form.pad,
        ),
    )
    inputs = model_inputs(collate([example]))
    with torch.no_grad():
        logits = [model(**inputs)[-len(block) :].double() for model in models]
    return torch.stack([x.softmax(-1) for x in logits]).mean(0).log().numpy()


def repeats(text: list[int], place: int, token: int, size: int, ignored: set[int]) -> bool:
    """Return whether a token in a gap of a text completes an n-gram that the text has elsewhere."""
    new = [*text[:place], token, *text[place + 1 :]]
    ngrams = [tuple(new[i : i + size]) for i in range(len(new) - size + 1)]
    own = range(max(0, place - size + 1), min(place, len(new) - size) + 1)
    return any(
        ngrams[i] == ngrams[j] and not ignored.intersection(ngrams[i])
        for i in own
        for j in range(len(ngrams))
        if i != j
    )


def naive_block_search(
    models, form: SequenceForm, options: SearchOptions, source: np.ndarray, prefix: list[int] = ()
) -> tuple[list[int], list[float], int]:
    """Return the tokens of the greedy hypothesis, their log-probabilities, and the number of passes."""
    length = len(form.source(source))
    limit = min(int(options.max_len_a * length + options.max_len_b), form.max_target - 1)
    limit = 0 if len(source) == 0 else limit
    ignored = {form.placeholder, form.pad, form.sep, *options.never_blocked}
    text, scores, passes = [], [], 0
    while form.sep not in text:
        count = min(options.decode_blocks, form.max_target - len(text))
        block = [form.placeholder if len(text) + i <= limit else form.sep for i in range(count)]
        block_scores, taken_back, of_block = [0.0] * count, set(), 0
        while form.placeholder in block:
            log_probs = block_log_probs(models, form, source, text, block)
            passes, forced = passes + 1, {}
            for i in range(count):
                place = len(text) + i
                row = log_probs[i].copy()
                log_probs[i, list(options.never_generated)] = -np.inf
                if place < options.min_len:
                    log_probs[i, form.sep] = -np.inf
                required = prefix[place] if place < len(prefix) else None
                required = form.sep if place >= limit else required
                if required is not None:
                    log_probs[i] = -np.inf
                    log_probs[i, required] = row[required]
                    forced[i] = required
                elif options.no_repeat_ngram_size:
                    for other in range(log_probs.shape[1]):
                        if other not in ignored and repeats(
                            [*text, *block[:i], form.placeholder, *block[i + 1 :]],
                            len(text) + i,
                            other,
                            options.no_repeat_ngram_size,
                            ignored,
                        ):
                            log_probs[i, other] = -np.inf
            for i in range(count):
                token = block[i]
                if token in (form.placeholder, form.sep) or i in taken_back or i in forced:
                    continue
                if np.exp(log_probs[i, token]) < options.revise:
                    taken_back.add(i)
                    block[i] = form.placeholder
            open_places = [i for i in range(count) if block[i] == form.placeholder]
            least = 1
            if options.max_passes:
                least = -(-len(open_places) // max(1, options.max_passes - of_block))
            best = {i: log_probs[i].max() for i in open_places}
            order = sorted(open_places, key=lambda i: -(0.0 if i in forced else best[i]))
            for rank, i in enumerate(order):
                sure = i in forced or np.exp(best[i]) >= options.confidence
                if not (sure or rank < least) or block[i] != form.placeholder:
                    continue
                token = int(log_probs[i].argmax())
                if options.no_repeat_ngram_size and i not in forced:
                    allowed = log_probs[i].copy()
                    for other in range(len(allowed)):
                        if other not in ignored and repeats(
                            [*text, *block], len(text) + i, other, options.no_repeat_ngram_size, ignored
                        ):
                            allowed[other] = -np.inf
                    if allowed[token] == -np.inf:
                        if rank >= least:
                            continue
                        token = int(allowed.argmax())
                block[i], block_scores[i] = token, log_probs[i, token]
                if form.sep in block:
                    end = block.index(form.sep)
                    block[end:] = [form.sep] * (count - end)
            of_block += 1
        kept = block.index(form.sep) + 1 if form.sep in block else count
        text, scores = text + block[:kept], scores + block_scores[:kept]
    return text, scores, passes
