"""The objectives in the plainest way: one example, one token after the other.

They are written from the papers of s2s-ft and ERNIE-GEN and from their programs. They use nothing of the package but
its random numbers, in the order in which the package draws them.
"""

import math
from typing import NamedTuple

import numpy as np

from s2sft_fairseq.objectives.blocks import Blocks
from s2sft_fairseq.objectives.finetuning import Corruption
from s2sft_fairseq.objectives.ragged import Draws, Ragged
from s2sft_fairseq.objectives.sequence_form import SequenceForm


class Token(NamedTuple):
    """The columns of one token."""

    token: int
    position: int
    segment: int
    step: int
    group: int
    label: int


class ExampleDraws:
    """The random numbers of one example, as lists of Python numbers."""

    def __init__(self, seed: int, epoch: int, example: int) -> None:
        self.draws = Draws(seed, epoch, np.array([example]))

    def random(self, count: int) -> list[float]:
        return self.draws.random(Ragged(np.zeros(count), np.array([count]))).tolist()


def drawn(tokens: list[int], form: SequenceForm, corruption: Corruption, draws: ExampleDraws) -> list[int]:
    """Keep each token, or replace it by a random one or by the placeholder."""
    chances, places = draws.random(len(tokens)), draws.random(len(tokens))
    result = []
    for token, chance, place in zip(tokens, chances, places, strict=True):
        if chance < corruption.keep_prob:
            result.append(token)
        elif chance < corruption.keep_prob + corruption.random_prob:
            result.append(int(place * form.vocab_size))
        else:
            result.append(form.placeholder)
    return result


def corrupted(
    tokens: list[int], probability: float, form: SequenceForm, corruption: Corruption, draws: ExampleDraws
) -> list[int]:
    if probability == 0:
        return tokens
    chances = draws.random(len(tokens))
    others = drawn(tokens, form, corruption, draws)
    return [
        other if chance < probability else token for token, other, chance in zip(tokens, others, chances, strict=True)
    ]


def naive_blocks(
    method: str,
    source: list[int],
    target: list[int],
    form: SequenceForm,
    corruption: Corruption,
    draws: ExampleDraws,
    spans: list[int] | None = None,
    cut: Blocks | None = None,
) -> list[list[Token]]:
    """Return the sections of a pair of ids without special symbols, whose source has one field and fits.

    `spans` has the place of the first token of each target token's span; `cut` says how the target is cut into blocks.
    """
    context = [form.cls, *source] if method == "causal" else [form.cls, *source, form.sep]
    clean = [*target, form.sep]
    first, segment = len(context), form.target_segment
    others = corrupted(context, corruption.source_mask_prob, form, corruption, draws)
    blocks = [
        [
            Token(old if old in (form.cls, form.sep) else new, i, form.fields.segments[0], 0, 0, form.pad)
            for i, (old, new) in enumerate(zip(context, others, strict=True))
        ]
    ]
    if method == "causal":
        inputs = corrupted([form.sep, *target], corruption.target_mask_prob, form, corruption, draws)
        noise, _ = noised(inputs[1:], form, corruption, draws)
        inputs = [form.sep, *noise]
        blocks.append([Token(inputs[i], first + i, segment, i + 1, 0, clean[i]) for i in range(len(clean))])
    elif method == "masked":
        chances = draws.random(len(clean))
        if corruption.exact_count:
            count = int(corruption.target_mask_prob * len(clean))
        else:
            count = sum(chance < corruption.target_mask_prob for chance in chances)
        if corruption.max_masked_tokens:
            count = min(count, corruption.max_masked_tokens)
        chosen = sorted(range(len(clean)), key=chances.__getitem__)[: max(1, count)]
        others = drawn(clean, form, corruption, draws)
        blocks.append(
            [
                Token(others[i], first + i, segment, i + 1, 0, clean[i])
                if i in chosen
                else Token(clean[i], first + i, segment, i + 1, 0, form.pad)
                for i in range(len(clean))
            ]
        )
    elif method == "infilling":
        noise, replaced = noised(target, form, corruption, draws)
        content = [form.cls, *noise]
        labels = [token if i in replaced or not corruption.only_noised else form.pad for i, token in enumerate(clean)]
        blocks.append([Token(content[i], first + i, segment, i + 1, 0, form.pad) for i in range(len(clean))])
        blocks.append(infilled(labels, first, form, starts=list(range(len(clean))), flow=0))
        if spans is not None:
            blocks.append(infilled(labels, first, form, starts=spans, flow=1))
    else:
        pseudo = drawn(clean, form, corruption, draws)
        content = [
            other if chance < corruption.target_mask_prob else token
            for token, other, chance in zip(clean, pseudo, draws.random(len(clean)), strict=True)
        ]
        blocks.append([Token(content[i], first + i, segment, i + 1, 0, form.pad) for i in range(len(clean))])
        steps = list(range(1, len(clean) + 1)) if spans is None else [start + 1 for start in spans]
        blocks.append([Token(pseudo[i], first + i, segment, steps[i], steps[i], clean[i]) for i in range(len(clean))])
        if cut is not None:
            made = in_blocks(clean, pseudo, first, form, cut, draws)
            if cut.word_weight:
                blocks.append([token._replace(group=token.group + len(clean)) for token in made])
            else:
                blocks[-1] = made
                if cut.least >= form.max_target:
                    blocks[1] = []
    return blocks


def in_blocks(
    clean: list[int], pseudo: list[int], first: int, form: SequenceForm, cut: Blocks, draws: ExampleDraws
) -> list[Token]:
    """Return the placeholders of a target that is cut into blocks; at least one of each block is predicted."""
    places, _ = draws.random(len(clean)), draws.random(len(clean))
    least, greatest = min(cut.least, form.max_target), min(cut.greatest, form.max_target)
    starts, lengths = [], []
    for place in places:
        if (start := sum(lengths)) < len(clean):
            length = least + int(place * (greatest - least + 1))
            starts.append(start)
            lengths.append(min(length, form.max_target - start))
    shares, chances = draws.random(len(lengths)), draws.random(sum(lengths))
    tokens = clean + [form.sep] * (sum(lengths) - len(clean))
    symbols = pseudo + [form.placeholder] * (sum(lengths) - len(clean))
    made = []
    for start, length, share in zip(starts, lengths, shares, strict=True):
        u = 1 - share
        t = {"uniform": u, "cosine": math.sin(u * math.pi / 2), "full": 1.0}[cut.schedule]
        count = next(k for k in range(1, length + 1) if k >= t * length - 1e-9)
        members = range(start, start + length)
        masked = sorted(members, key=chances.__getitem__)[:count]
        made += [
            Token(
                symbols[i] if i in masked else tokens[i],
                first + i,
                form.placeholder_segment,
                start + 1,
                start + 1,
                tokens[i] if i in masked else form.pad,
            )
            for i in members
        ]
    return made


def noised(
    target: list[int], form: SequenceForm, corruption: Corruption, draws: ExampleDraws
) -> tuple[list[int], set[int]]:
    """Return ERNIE-GEN's content after the start symbol, and the places that noise replaces.

    What is drawn at the start symbol counts for the final [SEP], which is no content, and has the last place.
    """
    if corruption.noise_prob == 0:
        return target, set()
    if corruption.noise_symbol is None:
        noise = [int(place * form.vocab_size) for place in draws.random(len(target) + 1)]
    else:
        noise = [corruption.noise_symbol] * (len(target) + 1)
    chances = draws.random(len(target) + 1)
    noise, chances = noise[1:] + noise[:1], chances[1:] + chances[:1]
    replaced = {place for place, chance in enumerate(chances) if chance < corruption.noise_prob}
    if corruption.only_noised and not replaced:
        replaced = {chances.index(min(chances))}
    return [noise[place] if place in replaced else token for place, token in enumerate(target)], replaced


def infilled(labels: list[int], first: int, form: SequenceForm, *, starts: list[int], flow: int) -> list[Token]:
    """Return ERNIE-GEN's placeholders of one flow, each a group of its own; they follow the start symbol of step 1."""
    count, segment = len(labels), form.placeholder_segment
    return [
        Token(form.placeholder, first + 1 + i, segment, starts[i] + 2, flow * count + i + 1, labels[i])
        for i in range(count)
    ]
