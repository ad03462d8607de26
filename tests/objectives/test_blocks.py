"""Fine-tuning in blocks, compared with tables by hand, plain loops, pseudo-masked fine-tuning and the loss of MDLM."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
import torch
from dense_reference import visibility_matrix
from naive_objectives import ExampleDraws, Token, naive_blocks
from tiny import CLS, MASK, PAD, SEP, laid_out, model_inputs, tiny_form, tiny_model, words

from s2sft_fairseq.objectives.blocks import LONGEST, SCHEDULES, WHOLE, Blocks, blocks, draw_masked, parse_block_length
from s2sft_fairseq.objectives.finetuning import NO_CORRUPTION, Corruption, pseudo_masked
from s2sft_fairseq.objectives.packing import collate
from s2sft_fairseq.objectives.ragged import Draws, Ragged
from s2sft_fairseq.objectives.sequence_form import SourceFields

SOURCE, TARGET = np.array([11, 12]), np.array([21, 22, 23, 24])
FULL = {"schedule": "full"}
CUTS = {
    "random": Blocks(1, 5),
    "random, with words": Blocks(2, 4, word_weight=0.5),
    "3": Blocks(3, 3, schedule="cosine"),
    "longer than most targets": Blocks(9, 12),
    "target": Blocks(WHOLE, WHOLE),
    "target, with words": Blocks(WHOLE, WHOLE, word_weight=0.25),
    "all masked": Blocks(1, 4, schedule="full"),
}


def pack(cut, form=None, corruption=NO_CORRUPTION, seed=0):
    form = form or tiny_form()
    return blocks(*laid_out(SOURCE, TARGET, form), form, corruption, Draws(seed, 1, np.array([0])), cut=cut)


def column(example, name):
    return np.concatenate([getattr(block, name) for block in example]).tolist()


def seen(text):
    return np.array([[mark == "x" for mark in row.split()] for row in text.strip().splitlines()])


def test_columns():
    """Two blocks of three tokens, all masked: the second one continues after the end with [SEP]."""
    example = pack(Blocks(3, 3, **FULL))
    assert column(example, "token") == [CLS, 11, 12, SEP, 21, 22, 23, 24, SEP, *[MASK] * 6]
    assert column(example, "position") == [0, 1, 2, 3, 4, 5, 6, 7, 8, 4, 5, 6, 7, 8, 9]
    assert column(example, "segment") == [0] * 4 + [1] * 11
    assert column(example, "step") == [0, 0, 0, 0, 1, 2, 3, 4, 5, 1, 1, 1, 4, 4, 4]
    assert column(example, "group") == [0] * 9 + [1, 1, 1, 4, 4, 4]
    assert column(example, "label") == [PAD] * 9 + [21, 22, 23, 24, SEP, SEP]


def test_visibility():
    """A block sees the source, the target tokens before it, and itself; content sees the content before it."""
    expected = seen(
        """
        x x x x . . . . . . . . . . .
        x x x x . . . . . . . . . . .
        x x x x . . . . . . . . . . .
        x x x x . . . . . . . . . . .
        x x x x x . . . . . . . . . .
        x x x x x x . . . . . . . . .
        x x x x x x x . . . . . . . .
        x x x x x x x x . . . . . . .
        x x x x x x x x x . . . . . .
        x x x x . . . . . x x x . . .
        x x x x . . . . . x x x . . .
        x x x x . . . . . x x x . . .
        x x x x x x x . . . . . x x x
        x x x x x x x . . . . . x x x
        x x x x x x x . . . . . x x x
        """
    )
    np.testing.assert_array_equal(visibility_matrix(pack(Blocks(3, 3))), expected)


def test_a_block_that_is_the_whole_target():
    """It is as long as targets may be, and there is no content, because nothing would see it."""
    form = tiny_form(max_target=7)
    example = pack(Blocks(WHOLE, WHOLE, **FULL), form)
    assert [len(block.token) for block in example] == [4, 0, 7]
    assert example[2].position.tolist() == list(range(4, 11))
    assert example[2].label.tolist() == [21, 22, 23, 24, SEP, SEP, SEP]
    assert set(example[2].group) == {1}


@pytest.mark.parametrize("cut", [Blocks(1, 4), Blocks(3, 3), Blocks(WHOLE, WHOLE), Blocks(1, 4, word_weight=0.5)])
def test_nothing_leaks(cut):
    """A label's loss has gradients at the source, at content before its block and at its block, and nowhere else."""
    for seed in range(3):
        model, kept = tiny_model(2), []
        model.embeddings.register_forward_hook(lambda *call, kept=kept: kept.append(call[-1]) or call[-1].retain_grad())
        example = pack(cut, seed=seed)
        context, content = example[:2]
        steps, groups = (np.concatenate([getattr(each, name) for each in example[2:]]) for name in ("step", "group"))
        batch = collate([example])
        labelled = np.flatnonzero(batch.label != PAD)
        for number, place in enumerate(labelled - len(context.token) - len(content.token)):
            logits = model(**model_inputs(batch), labelled=torch.from_numpy(labelled))
            logits[number].log_softmax(dim=0)[batch.label[labelled[number]]].neg().backward()
            ends = np.cumsum([len(context.token), len(content.token)])
            of_context, of_content, of_block = np.split(kept.pop().grad.norm(dim=-1).numpy(), ends)
            assert (of_context > 0).all()
            np.testing.assert_array_equal(of_content > 0, content.step < steps[place])
            np.testing.assert_array_equal(of_block > 0, groups == groups[place])


@pytest.mark.parametrize("corruption", [NO_CORRUPTION, Corruption(0.5, 0.1, 0.2, source_mask_prob=0.3)])
@pytest.mark.parametrize("cut", [Blocks(1, 1), Blocks(1, 6, word_weight=0.5)])
def test_blocks_of_one_token_are_pseudo_masked(corruption, cut):
    """They are equal bit by bit, with corruption too; so is the word flow beside longer blocks."""
    rng, form = np.random.default_rng(5), tiny_form()
    for number in range(30):
        pair = laid_out(words(rng, rng.integers(0, 9)), words(rng, rng.integers(0, 14)), form)
        ours, theirs = (
            pack(*pair, form, corruption, Draws(number, 2, np.array([number])), **further)
            for pack, further in ((blocks, {"cut": cut}), (pseudo_masked, {}))
        )
        assert len(ours) == 3 + bool(cut.word_weight)
        for section, other in zip(ours[:3], theirs, strict=True):
            for mine, their in zip(section, other, strict=True):
                np.testing.assert_array_equal(mine, their)
    labels = np.arange(len(ours[0].token) + len(ours[1].token), len(collate([ours]).token))
    assert cut.word_weight or cut.weights(collate([ours]), labels) == (None, len(theirs[2].token))


@pytest.mark.parametrize("corruption", [NO_CORRUPTION, Corruption(0.4, 0.2, 0.3)])
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_a_batch_equals_the_naive_examples(cut, corruption):
    rng = np.random.default_rng(11)
    form = tiny_form(fields=SourceFields((4,)), target_segment=5, placeholder_segment=5, vocab_size=9)
    numbers = rng.permutation(1000)[:40]
    pairs = [(words(rng, rng.integers(0, 20)), words(rng, rng.integers(0, 15))) for _ in numbers]
    source = Ragged.of([form.source(source) for source, _ in pairs])
    target = Ragged.of([form.target(target) for _, target in pairs])
    batch = collate([blocks(source, target, form, corruption, Draws(7, 3, numbers), cut=cut)])
    expected = [
        naive_blocks("blocks", source.tolist(), target.tolist(), form, corruption, ExampleDraws(7, 3, int(n)), cut=cut)
        for n, (source, target) in zip(numbers, pairs, strict=True)
    ]
    assert batch.lengths == tuple(tuple(map(len, blocks)) for blocks in expected)
    tokens = [token for blocks in expected for block in blocks for token in block]
    for name, values in zip(Token._fields, zip(*tokens, strict=True), strict=True):
        assert getattr(batch, name).tolist() == list(values), name


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_positions_are_an_upper_bound(cut):
    form, lengths = tiny_form(), np.arange(1, 17)
    target = Ragged.of_lengths(lengths).with_values(np.full(lengths.sum(), SEP))
    source = Ragged.of([form.source(SOURCE)] * len(lengths))
    most = cut.positions(lengths, form.max_target)
    found = []
    for seed in range(200):
        _, *others = blocks(source, target, form, NO_CORRUPTION, Draws(seed, 1, np.arange(len(lengths))), cut=cut)
        found.append(sum(section.lengths for section in others))
    assert (np.max(found, axis=0) <= most).all()
    assert (np.max(found, axis=0) == most).mean() >= 0.5  # the bound is reached, but not by all lengths
    assert others[-1].position.max() < 4 + form.max_target


def test_lengths_and_shares():
    """Lengths and, with the uniform schedule, numbers of masked tokens are equally frequent."""
    draws, lengths = Draws(3, 1, np.arange(4000)), np.full(4000, 12)
    drawn = Blocks(2, 5).draw_lengths(lengths, 100, draws)
    counts = np.bincount(drawn.values)
    assert counts[:2].tolist() == [0, 0]
    assert len(counts) == 6
    first = np.bincount(drawn.values[drawn.place == 0], minlength=6)[2:]
    assert (abs(first - 1000) < 3 * np.sqrt(4000 * 0.25 * 0.75)).all()
    of_four = Ragged(np.full(4000, 4), np.full(4000, 1))
    masked = draw_masked(of_four, "uniform", draws).reshape(4000, 4)
    assert (abs(np.bincount(masked.sum(axis=1), minlength=5)[1:] - 1000) < 3 * np.sqrt(4000 * 0.25 * 0.75)).all()
    assert (abs(masked.mean(axis=0) - 0.625) < 3 * np.sqrt(0.625 * 0.375 / 4000)).all()
    cosine = np.bincount(draw_masked(of_four, "cosine", draws).reshape(4000, 4).sum(axis=1), minlength=5)[1:] / 4000
    expected = np.diff(np.arcsin(np.arange(5) / 4) * 2 / np.pi)
    assert (abs(cosine - expected) < 3 * np.sqrt(expected * (1 - expected) / 4000)).all()


def loss_of_mask(members, masked):
    """Return a loss of the masked tokens that depends on the mask, like a model's."""
    return sum(np.random.default_rng((*masked, token)).exponential() for token in masked) + 0 * members


@pytest.mark.parametrize("members", [1, 2, 5])
@pytest.mark.parametrize("schedule", ["uniform", "cosine"])
def test_the_bound_is_that_of_mdlm(members, schedule):
    """Integral over t in (0, 1] of E[1/t * loss of the masked], each token masked with probability t (MDLM, eq. 10).

    Ours is a sum over all masks of their probability times the weighted loss.
    """
    masks = [mask for count in range(1, members + 1) for mask in combinations(range(members), count)]
    nodes, node_weights = np.polynomial.legendre.leggauss(40)
    mdlm = 0.0
    for t, weight in zip((nodes + 1) / 2, node_weights / 2, strict=True):
        for mask in masks:
            probability = t ** len(mask) * (1 - t) ** (members - len(mask))
            mdlm += weight * probability * loss_of_mask(members, mask) / t
    cut = Blocks(members, members, schedule=schedule, weight="bound")
    form = tiny_form()
    laid_out_pair = Ragged.of([form.source(SOURCE)]), Ragged.of([np.full(members, SEP)])
    clean = collate([blocks(*laid_out_pair, form, NO_CORRUPTION, Draws(1, 1, np.array([0])), cut=cut)])
    ours = 0.0
    inverse = SCHEDULES[schedule].probability
    for mask in masks:
        labelled = len(clean.token) - members + np.array(mask)
        weights, divisor = cut.weights(clean, labelled)
        (weight,) = set(weights.round(12))
        count, ways = len(mask), sum(len(other) == len(mask) for other in masks)
        probability = (inverse(count / members) - inverse((count - 1) / members)) / ways
        ours += probability * weight * loss_of_mask(members, mask)
    assert ours == pytest.approx(mdlm, rel=1e-9)
    assert divisor == members


def test_weights_are_those_of_the_own_block():
    """Blocks of several lengths, of several examples, in one batch."""
    form, rng = tiny_form(), np.random.default_rng(2)
    targets = Ragged.of([form.target(words(rng, length)) for length in (9, 4, 12)])
    sources = Ragged.of([form.source(SOURCE)] * 3)
    cut = Blocks(1, 5, weight="bound")
    batch = collate([blocks(sources, targets, form, NO_CORRUPTION, Draws(4, 1, np.arange(3)), cut=cut)])
    labelled = np.flatnonzero(batch.label != PAD)
    ends = np.cumsum([sum(lengths) for lengths in batch.lengths])
    weights, divisor = cut.weights(batch, labelled)
    for index, weight in zip(labelled, weights, strict=True):
        example = slice(
            *([0, *ends][np.searchsorted(ends, index, side="right")], ends[np.searchsorted(ends, index, side="right")])
        )
        same = batch.group[example] == batch.group[index]
        assert weight == pytest.approx(same.sum() / (batch.label[example][same] != PAD).sum())
    assert divisor == (batch.group > 0).sum()
    assert replace(cut, weight="even").weights(batch, labelled) == (None, len(labelled))


@pytest.mark.parametrize("weight", ["even", "bound"])
def test_both_flows_are_means(weight):
    """The loss is the weighted sum of that of pseudo-masked fine-tuning and that of blocks alone."""
    form, rng = tiny_form(), np.random.default_rng(3)
    sources = Ragged.of([form.source(SOURCE)] * 3)
    targets = Ragged.of([form.target(words(rng, length)) for length in (7, 1, 11)])
    cut = Blocks(2, 5, weight=weight, word_weight=0.3)
    both = blocks(sources, targets, form, NO_CORRUPTION, Draws(4, 1, np.arange(3)), cut=cut)
    alone = blocks(sources, targets, form, NO_CORRUPTION, Draws(4, 1, np.arange(3)), cut=replace(cut, word_weight=0.0))
    loss_of = rng.exponential(size=(100, 40))  # by label and position

    def loss(packed, cut):
        batch = collate([packed])
        labelled = np.flatnonzero(batch.label != PAD)
        weights, divisor = cut.weights(batch, labelled) if cut else (None, len(labelled))
        losses = loss_of[batch.label[labelled], batch.position[labelled]]
        return (losses if weights is None else losses * weights).sum() / divisor

    expected = 0.3 * loss(both[:3], None) + 0.7 * loss(alone, replace(cut, word_weight=0.0))
    assert loss(both, cut) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("text", "bounds"),
    [
        ("1", (1, 1)),
        ("16", (16, 16)),
        ("random", (1, LONGEST)),
        ("random:3", (1, 3)),
        ("target", (WHOLE, WHOLE)),
        *((text, None) for text in ("", "0", "-1", "1.5", "random:", "random:0", "random4", "whole", str(1 << 40))),
    ],
)
def test_parsed(text, bounds):
    assert parse_block_length(text) == bounds


def test_problems():
    assert Blocks(word_weight=1, schedule="full", weight="bound").problems() == [
        "--word-flow-weight must be at least 0 and below 1, but is 1",
        "--block-loss-weight bound needs another --noise-schedule than full",
    ]
    assert not any(cut.problems() for cut in CUTS.values())
