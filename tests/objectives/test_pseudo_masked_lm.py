"""The pseudo-masked language model compared with tables written by hand from Figures 3 to 5 of UniLMv2, and leaks;
blockwise masking: invariants, and the statistics of Algorithm 1.
"""

from dataclasses import replace
from itertools import groupby

import numpy as np
import pytest
import torch
from dense_reference import visibility_matrix
from tiny import CLS, MASK, PAD, SEP, model_inputs, packed_columns, tiny_form, tiny_model, words

from s2sft_fairseq.objectives.finetuning import NO_CORRUPTION
from s2sft_fairseq.objectives.packing import collate
from s2sft_fairseq.objectives.pseudo_masked_lm import LANGUAGE_MODELS, BlockwiseMasking, pseudo_masked_lm
from s2sft_fairseq.objectives.ragged import Draws, Ragged
from s2sft_fairseq.objectives.sequence_form import SourceFields

PAPER = BlockwiseMasking()
TEXTS = 10_000


def drawn(lengths, masking=PAPER, seed=1):
    """Return the steps of texts of these lengths, a list for each."""
    text = Ragged(np.zeros(int(np.sum(lengths)), dtype=np.int64), np.asarray(lengths))
    steps = masking.draw(text, Draws(seed, 1, np.arange(len(lengths))))
    return [row.tolist() for row in np.split(steps, np.cumsum(lengths)[:-1])]


def blocks(steps):
    """Return the places of each factorization step of a text by its number."""
    return {
        number: [place for place, step in enumerate(steps) if step == number] for number in sorted(set(steps) - {0})
    }


@pytest.mark.parametrize(
    "masking",
    [PAPER, BlockwiseMasking(block_prob=0.0), BlockwiseMasking(0.9, 1.0, (3, 5)), BlockwiseMasking(0.5, 0.5, (1, 40))],
    ids=["paper", "tokens", "much", "long"],
)
def test_invariants(masking):
    lengths = np.random.default_rng(0).integers(1, 60, 300)
    for length, steps in zip(lengths.tolist(), drawn(lengths, masking), strict=True):
        found = blocks(steps)
        assert list(found) == list(range(1, len(found) + 1))
        for places in found.values():
            assert places == list(range(places[0], places[-1] + 1))
        masked = sum(map(len, found.values()))
        needed = int(masking.least_masked(np.array(length)))
        assert needed == -(-masking.ratio * length // 1)
        # Enough tokens are masked, and only with the last step.
        assert masked - len(found[len(found)]) < needed <= masked <= int(masking.most_masked(np.array(length)))
        assert masked <= length
        # All but the last one have the length that was drawn.
        least, greatest = masking.block_lengths
        for number in range(1, len(found)):
            assert len(found[number]) == 1 or least <= len(found[number]) <= greatest


def test_a_text_does_not_depend_on_the_others():
    whole = drawn([30, 7, 55])
    text = Ragged(np.zeros(7, dtype=np.int64), np.array([7]))
    assert PAPER.draw(text, Draws(1, 1, np.array([1]))).tolist() == whole[1]


def simulated(length, rng):
    """Return the lengths of the factorization steps of one text, as Algorithm 1 draws them."""
    lengths = []
    while sum(lengths) < 0.15 * length:
        lengths.append(int(rng.integers(2, 7)) if rng.random() < 0.4 else 1)
    return lengths


def test_statistics():
    """Over 10,000 texts of 100 tokens: share masked, share of blocks and their lengths, places and order."""
    length = 100
    texts = [blocks(steps) for steps in drawn([length] * TEXTS)]
    sizes = [[len(places) for places in text.values()] for text in texts]

    # The masked share compared with the algorithm's; steps are not cut, so both are a little above 15 %.
    masked = np.array([sum(text) for text in sizes])
    rng = np.random.default_rng(1)
    expected = np.array([sum(simulated(length, rng)) for _ in range(TEXTS)])
    error = np.hypot(masked.std(), expected.std()) / TEXTS**0.5
    assert abs(masked.mean() - expected.mean()) <= 3 * error
    assert masked.min() >= 15 and masked.mean() < 17

    # The last step is left out: a longer one ends the text sooner.
    steps = np.array([size for text in sizes for size in text[:-1]])
    first = np.array([text[0] for text in sizes])
    share = (first > 1).mean()
    assert abs(share - 0.4) <= 3 * (0.4 * 0.6 / TEXTS) ** 0.5
    assert set(steps.tolist()) == {1, 2, 3, 4, 5, 6}
    of_blocks = np.bincount(first[first > 1], minlength=7)[2:] / (first > 1).sum()
    assert np.abs(of_blocks - 0.2).max() <= 3 * (0.2 * 0.8 / (first > 1).sum()) ** 0.5

    # All places are masked equally often, except near an end, where fewer blocks fit.
    places = np.zeros(length)
    for text in texts:
        places[[place for block in text.values() for place in block]] += 1
    places /= TEXTS
    rate = places[10:-10].mean()
    assert np.abs(places[10:-10] - rate).max() <= 4 * (rate * (1 - rate) / TEXTS) ** 0.5

    # The order is uniform: the first of two steps is equally often left and right of the second, and the place of a
    # step does not depend on its number.
    left = np.mean([text[1][0] < text[2][0] for text in texts])
    assert abs(left - 0.5) <= 3 * 0.5 / TEXTS**0.5
    middles = [np.mean([text[number][0] for text in texts]) for number in (1, 2, 3)]
    errors = np.std([text[1][0] for text in texts]) / TEXTS**0.5
    assert np.abs(np.diff(middles)).max() <= 3 * 2**0.5 * errors


def test_every_arrangement_is_equally_likely():
    """Half of six tokens are to be masked, which takes two blocks of two."""
    masking = BlockwiseMasking(0.5, 1.0, (2, 2))
    found = [tuple(steps) for steps in drawn([6] * TEXTS, masking)]
    # Two blocks of two among four units, in either order.
    kinds = sorted(set(found))
    assert len(kinds) == 12
    shares = np.array([found.count(kind) for kind in kinds]) / TEXTS
    assert np.abs(shares - 1 / 12).max() <= 3.5 * (1 / 12 * 11 / 12 / TEXTS) ** 0.5


def test_runs_are_contiguous_steps():
    steps = drawn([50], BlockwiseMasking(0.3, 1.0, (3, 3)))[0]
    assert {len(list(run)) for step, run in groupby(steps) if step} == {3}


@pytest.mark.parametrize(
    ("masking", "problems"),
    [
        (PAPER, []),
        (
            BlockwiseMasking(1.0, -0.5, (0, 0)),
            [
                "--mask-ratio must be above 0 and below 1, but is 1",
                "--block-prob must be between 0 and 1, but is -0.5",
                "--block-lengths must be a range of at least 1, such as 2-6, but is 0",
            ],
        ),
        (
            BlockwiseMasking(block_lengths=(5, 2)),
            ["--block-lengths must be a range of at least 1, such as 2-6, but is 0"],
        ),
    ],
)
def test_problems(masking, problems):
    assert masking.problems("0") == problems


# Figure 4: x1 .. x6; x4 and x5 are predicted first, then x2.
TEXT, STEPS = np.array([11, 12, 13, 14, 15, 16]), np.array([0, 2, 0, 1, 1, 0])


class Fixed:
    """Masks the given steps."""

    def __init__(self, steps=STEPS):
        self.steps = np.array(steps)

    def draw(self, text, draws):
        return self.steps


def pack(language_model="ae+par", masking=None, corruption=NO_CORRUPTION, text=TEXT, seed=1, **form):
    form = tiny_form(**{"fields": SourceFields(segments=(0, 1)), **form})
    rows = Ragged(np.array(text), np.array([len(text)]))
    draws = Draws(seed, 1, np.array([0]))
    return pseudo_masked_lm(
        rows, LANGUAGE_MODELS[language_model], masking or Fixed(), form, corruption, draws, mask=MASK
    )


def column(example, name):
    return np.concatenate([getattr(block, name) for block in example]).tolist()


def seen(text):
    """Return a mask as drawn in the figures: x where the query (row) sees the key (column)."""
    return np.array([[mark == "x" for mark in row.split()] for row in text.strip().splitlines()])


# x1 [M] x3 [M] [M] x6 | x2 x4 x5 | [P] of x2, x4 and x5
def test_columns():
    example = pack()
    assert column(example, "token") == [11, MASK, 13, MASK, MASK, 16, 12, 14, 15, MASK, MASK, MASK]
    assert column(example, "position") == [0, 1, 2, 3, 4, 5] + [1, 3, 4] * 2
    assert column(example, "step") == [0] * 6 + [2, 1, 1] * 2
    assert column(example, "group") == [0] * 9 + [2, 1, 1]
    assert column(example, "label") == [PAD, 12, PAD, 14, 15, PAD] + [PAD] * 3 + [12, 14, 15]


# Figure 5: rows and columns x1 [M] x3 [M] [M] x6 | x2 x4 x5 | [P] of x2, x4, x5.
FIGURE_5 = """
    x x x x x x . . . . . .
    x x x x x x . . . . . .
    x x x x x x . . . . . .
    x x x x x x . . . . . .
    x x x x x x . . . . . .
    x x x x x x . . . . . .
    x x x x x x x x x . . .
    x x x x x x . x x . . .
    x x x x x x . x x . . .
    x x x x x x . x x x . .
    x x x x x x . . . . x x
    x x x x x x . . . . x x
"""


def test_visibility():
    np.testing.assert_array_equal(visibility_matrix(pack()), seen(FIGURE_5))


# Figure 3: the autoregressive order is 4, then 5, then 2.
AUTOREGRESSIVE = """
    x x x x x x x x x . . .
    x x x x x x . x . . . .
    x x x x x x . x x . . .
    x x x x x x . x x x . .
    x x x x x x . . . . x .
    x x x x x x . x . . . x
"""


def test_token_by_token():
    example = pack("ae+ar")
    assert column(example, "step")[6:] == [3, 1, 2] * 2
    np.testing.assert_array_equal(visibility_matrix(example)[6:], seen(AUTOREGRESSIVE))


def test_labels_of_the_language_models():
    whole = pack("ae+par")
    (context,) = pack("ae")
    np.testing.assert_array_equal(context.token, whole[0].token)
    np.testing.assert_array_equal(context.label, whole[0].label)
    for name, flows in (("ar", ["ar"]), ("par", ["par"]), ("ae", ["ae"]), ("ae+par", ["ae", "par"])):
        assert [flow.name for flow in LANGUAGE_MODELS[name].flows] == flows
    for name in ("ar", "par"):
        example = pack(name)
        # The [M] stay in the context, as in Figure 3, but predict nothing.
        np.testing.assert_array_equal(example[0].token, context.token)
        assert (example[0].label == PAD).all()
        assert example[2].label.tolist() == [12, 14, 15]
    np.testing.assert_array_equal(pack("par")[2].group, whole[2].group)


def test_blocks_that_are_partly_masked():
    """At least one placeholder of each factorization step is masked; the others hold their tokens, without a label."""
    counts = np.zeros((3, 2), dtype=int)
    for seed in range(600):
        _, original, placeholder = pack("blocks", seed=seed)
        masked = placeholder.label != PAD
        np.testing.assert_array_equal(placeholder.token, np.where(masked, MASK, [12, 14, 15]))
        np.testing.assert_array_equal(placeholder.label[masked], original.token[masked])
        assert masked[0] and masked[1:].any()
        counts[masked[1:].sum(), 0] += 1
        counts[int(masked[1]), 1] += 1
    # One or both of the two tokens of a step, equally likely; if one, either.
    assert abs(counts[1, 0] - 300) < 3 * np.sqrt(150)
    assert abs(counts[1, 1] - 450) < 3 * np.sqrt(600 * 0.75 * 0.25)
    assert [flow.name for flow in LANGUAGE_MODELS["ae+blocks"].flows] == ["ae", "blocks"]
    np.testing.assert_array_equal(pack("ae+blocks")[0].label, pack("ae")[0].label)
    # The same steps in several texts that follow each other.
    text = Ragged(np.tile(TEXT, 2), np.array([6, 6]))
    steps = np.array([0, 2, 0, 1, 1, 1, 1, 2, 2, 0, 0, 0])
    arguments = (LANGUAGE_MODELS["blocks"], Fixed(steps), tiny_form(), NO_CORRUPTION)
    for seed in range(50):
        _, _, placeholder = pseudo_masked_lm(text, *arguments, Draws(seed, 1, np.arange(2)), mask=MASK)
        masked = placeholder.label != PAD
        assert all(masked[each].any() for each in ([0], [1, 2, 3], [4], [5, 6]))


def test_special_symbols_are_given():
    rng = np.random.default_rng(0)
    first, second = words(rng, 9), words(rng, 11)
    laid_out = np.concatenate([[CLS], first, [SEP], second, [SEP]])
    for seed in range(20):
        context, original, placeholder = pack(masking=BlockwiseMasking(0.6), text=laid_out, seed=seed)
        assert [context.token[place] for place in (0, 10, 22)] == [CLS, SEP, SEP]
        assert context.segment.tolist() == [0] * 11 + [1] * 12
        assert original.segment.tolist() == placeholder.segment.tolist() == [int(p > 10) for p in original.position]
        masked = context.label != PAD
        np.testing.assert_array_equal(context.label[masked], laid_out[masked])
        np.testing.assert_array_equal(original.token, laid_out[original.position])
        np.testing.assert_array_equal(original.position, np.flatnonzero(masked))
        # No token is lost: unmasked and masked tokens give the text.
        restored = context.token.copy()
        restored[original.position] = original.token
        np.testing.assert_array_equal(restored, laid_out)


def test_replacement():
    """80 % the mask symbol, 10 % any token, 10 % unchanged, the same in the context and as a placeholder."""
    count = 10_000
    text = Ragged(np.full(20 * count, 30), np.full(count, 20))
    corruption = replace(NO_CORRUPTION, random_prob=0.1, keep_prob=0.1)
    context, original, placeholder = pseudo_masked_lm(
        *(text, LANGUAGE_MODELS["ae+par"], BlockwiseMasking(), tiny_form(), corruption, Draws(2, 1, np.arange(count))),
        mask=MASK,
    )
    masked = context.label != PAD
    np.testing.assert_array_equal(context.token[masked], placeholder.token)
    assert (original.token == 30).all()
    assert (context.token[~masked] == 30).all()
    for token, expected in ((MASK, 0.8 + 0.1 / 50), (30, 0.1 + 0.1 / 50), (31, 0.1 / 50)):
        error = (expected * (1 - expected) / masked.sum()) ** 0.5
        assert abs((placeholder.token == token).mean() - expected) <= 3 * error


def test_a_placeholder_of_its_own():
    """[M] stays the mask symbol, [P] is the named one; random and unchanged tokens are the same at both."""
    corruption = replace(NO_CORRUPTION, random_prob=0.2, keep_prob=0.2)
    contexts, placeholders = set(), set()
    for seed in range(20):
        context, _, placeholder = pack(corruption=corruption, seed=seed, placeholder=49)
        masked = context.token[context.label != PAD]
        replaced = masked == MASK
        np.testing.assert_array_equal(np.where(replaced, 49, masked), placeholder.token)
        contexts.update(context.token.tolist())
        placeholders.update(placeholder.token[replaced].tolist())
    assert MASK in contexts and placeholders == {49}


def losses_and_gradients(example, label):
    """Return norms of the gradient of one label's loss with respect to the embedded tokens of the batch (T,)."""
    model, kept = tiny_model(2), []
    model.embeddings.register_forward_hook(lambda *call: kept.append(call[-1]) or call[-1].retain_grad())
    batch = collate([example])
    labelled = torch.from_numpy(np.flatnonzero(batch.label != PAD))
    logits = model(**model_inputs(batch), labelled=labelled)
    labels = torch.from_numpy(batch.label)[labelled]
    logits[label].log_softmax(dim=0)[labels[label]].neg().backward()
    return kept[0].grad.norm(dim=-1).numpy()


@pytest.mark.parametrize("language_model", ["ae+par", "ae+ar"])
@pytest.mark.parametrize("seed", range(4))
def test_nothing_leaks(language_model, seed):
    """The loss of a masked token has no gradient at content of its own or a later step, in random orders."""
    rng = np.random.default_rng(seed)
    text = np.concatenate([[CLS], words(rng, 10), [SEP], words(rng, 10), [SEP]])
    example = pack(language_model, BlockwiseMasking(0.4), text=text, seed=seed)
    context, original, placeholder = example
    masked = len(original.token)
    ends = np.cumsum([len(context.token), masked, masked])
    for label in range(2 * masked):
        gradient = losses_and_gradients(example, label)
        of_context, of_original, of_placeholder = np.split(gradient, ends[:-1])
        assert (of_context > 0).all()
        if label < masked:  # a [M] only sees the context
            assert (of_original == 0).all() and (of_placeholder == 0).all()
            continue
        step = placeholder.step[label - masked]
        np.testing.assert_array_equal(of_original > 0, original.step < step)
        np.testing.assert_array_equal(of_placeholder > 0, placeholder.group == step)


def test_context_does_not_depend_on_predicted_tokens():
    model = tiny_model(3)
    states = []
    for token in (12, 40):
        context, original, placeholder = pack()
        batch = collate([(context, original._replace(token=np.full(3, token)), placeholder)])
        states.append(model.encode(packed_columns(batch)))
    assert torch.equal(states[0][:6], states[1][:6])
    assert not torch.equal(states[0][6:], states[1][6:])
