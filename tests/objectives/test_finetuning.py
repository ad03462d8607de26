"""The three methods compared with tables written by hand from Figures 1 and 2 of the s2s-ft paper; their statistics."""

from dataclasses import replace

import numpy as np
import pytest
from dense_reference import visibility_matrix
from naive_objectives import ExampleDraws, Token, naive_blocks
from tiny import CLS, MASK, PAD, SEP, VOCAB_SIZE, laid_out, pack_example, reference_example, tiny_form, words

from s2sft_fairseq.objectives.finetuning import NO_CORRUPTION, Corruption, causal
from s2sft_fairseq.objectives.objective import CORRUPTIONS, OBJECTIVES
from s2sft_fairseq.objectives.packing import collate
from s2sft_fairseq.objectives.ragged import Draws, Ragged
from s2sft_fairseq.objectives.sequence_form import SourceFields

SOURCE, TARGET = np.array([11, 12, 13]), np.array([21, 22, 23])
NOTHING = np.array([], dtype=np.int64)
ALL_MASKED = Corruption(target_mask_prob=1.0, random_prob=0.0, keep_prob=0.0)
METHOD_NAMES = ("causal", "masked", "pseudo_masked")


def pack(method, source=SOURCE, target=TARGET, corruption=None, seed=0, **form):
    corruption = NO_CORRUPTION if corruption is None and method != "masked" else corruption
    corruption = OBJECTIVES[method].corruption["paper"] if corruption is None else corruption
    return pack_example(method, source, target, tiny_form(method, **form), corruption, np.random.default_rng(seed))


def column(example, name):
    return np.concatenate([getattr(block, name) for block in example]).tolist()


def seen(text):
    """Return a visibility matrix as drawn in Figure 2: x where the query (row) sees the key (column)."""
    return np.array([[mark == "x" for mark in row.split()] for row in text.strip().splitlines()])


# Figure 1(a): [CLS] s1 s2 s3 | [SEP] t1 t2 t3, each target position predicts the next token.
def test_causal_columns():
    example = pack("causal")
    assert column(example, "token") == [CLS, 11, 12, 13, SEP, 21, 22, 23]
    assert column(example, "position") == [0, 1, 2, 3, 4, 5, 6, 7]
    assert column(example, "segment") == [0, 0, 0, 0, 1, 1, 1, 1]
    assert column(example, "step") == [0, 0, 0, 0, 1, 2, 3, 4]
    assert column(example, "group") == [0] * 8
    assert column(example, "label") == [PAD] * 4 + [21, 22, 23, SEP]


# Figure 2(a).
def test_causal_visibility():
    expected = seen(
        """
        x x x x . . . .
        x x x x . . . .
        x x x x . . . .
        x x x x . . . .
        x x x x x . . .
        x x x x x x . .
        x x x x x x x .
        x x x x x x x x
        """
    )
    np.testing.assert_array_equal(visibility_matrix(pack("causal")), expected)


# Figure 1(b): [CLS] s1 s2 s3 [SEP] | t1 t2 t3 [SEP] with some of the target masked and predicted in place.
def test_masked_columns():
    example = pack("masked", corruption=ALL_MASKED)
    assert column(example, "token") == [CLS, 11, 12, 13, SEP, MASK, MASK, MASK, MASK]
    assert column(example, "position") == [0, 1, 2, 3, 4, 5, 6, 7, 8]
    assert column(example, "segment") == [0] * 5 + [1] * 4
    assert column(example, "step") == [0] * 5 + [1, 2, 3, 4]
    assert column(example, "group") == [0] * 9
    assert column(example, "label") == [PAD] * 5 + [21, 22, 23, SEP]


@pytest.mark.parametrize("seed", range(20))
def test_masked_labels_are_exactly_where_the_target_is_masked(seed):
    example = pack("masked", seed=seed)
    content, label = example[1].token, example[1].label
    clean = np.array([21, 22, 23, SEP])
    np.testing.assert_array_equal(label, np.where(content == MASK, clean, PAD))
    np.testing.assert_array_equal(content, np.where(label == PAD, clean, MASK))


# Figure 2(b).
def test_masked_visibility():
    expected = seen(
        """
        x x x x x . . . .
        x x x x x . . . .
        x x x x x . . . .
        x x x x x . . . .
        x x x x x . . . .
        x x x x x x . . .
        x x x x x x x . .
        x x x x x x x x .
        x x x x x x x x x
        """
    )
    np.testing.assert_array_equal(visibility_matrix(pack("masked")), expected)


# Figure 1(c): [CLS] s1 s2 s3 [SEP] | t1 t2 t3 [SEP] | [P] [P] [P] [P], the pseudo masks at their tokens' positions.
def test_pseudo_masked_columns():
    example = pack("pseudo_masked")
    assert column(example, "token") == [CLS, 11, 12, 13, SEP, 21, 22, 23, SEP, MASK, MASK, MASK, MASK]
    assert column(example, "position") == [0, 1, 2, 3, 4, 5, 6, 7, 8, 5, 6, 7, 8]
    assert column(example, "segment") == [0] * 5 + [1] * 8
    assert column(example, "step") == [0] * 5 + [1, 2, 3, 4] * 2
    assert column(example, "group") == [0] * 9 + [1, 2, 3, 4]
    assert column(example, "label") == [PAD] * 9 + [21, 22, 23, SEP]


# Figure 2(c): a pseudo mask sees the source, the target tokens before its own, and itself; no other token sees it.
def test_pseudo_masked_visibility():
    expected = seen(
        """
        x x x x x . . . . . . . .
        x x x x x . . . . . . . .
        x x x x x . . . . . . . .
        x x x x x . . . . . . . .
        x x x x x . . . . . . . .
        x x x x x x . . . . . . .
        x x x x x x x . . . . . .
        x x x x x x x x . . . . .
        x x x x x x x x x . . . .
        x x x x x . . . . x . . .
        x x x x x x . . . . x . .
        x x x x x x x . . . . x .
        x x x x x x x x . . . . x
        """
    )
    np.testing.assert_array_equal(visibility_matrix(pack("pseudo_masked")), expected)


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_over_long_texts_are_cut_and_keep_sep(method):
    example = pack(method, corruption=NO_CORRUPTION, max_source=4, max_target=3)
    context, content = example[0].token.tolist(), example[1].token.tolist()
    if method == "causal":
        assert (context, content) == ([CLS, 11, 12, 13], [SEP, 21, 22])
        assert example[1].label.tolist() == [21, 22, SEP]
    else:
        assert context == [CLS, 11, 12, SEP]
        assert content[-1] in (SEP, MASK)
        assert len(content) == 3
    if method == "pseudo_masked":
        assert example[2].label.tolist() == [21, 22, SEP]
    assert example[1].position.tolist() == [4, 5, 6]


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_empty_source_and_target(method):
    example = pack(method, NOTHING, NOTHING, corruption=ALL_MASKED)
    specials = [CLS] if method == "causal" else [CLS, SEP]
    assert example[0].token.tolist() == specials
    assert example[-1].label.tolist() == [SEP]
    assert example[-1].position.tolist() == [len(specials)]
    assert all(len(block.token) == 1 for block in example[1:])


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_given_segments_and_placeholder(method):
    example = pack(method, corruption=ALL_MASKED, fields=SourceFields((4,)), target_segment=5, placeholder=9)
    assert set(example[0].segment) == {4}
    assert all(set(block.segment) == {5} for block in example[1:])
    corrupted = example[1].token[1:] if method == "causal" else example[-1].token
    assert set(corrupted) == {9}


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_size_is_what_the_method_says(method):
    example = pack(method)
    placed = sum(len(block.token) for block in example[1:])
    assert placed == OBJECTIVES[method].positions_per_target * len(example[1].token)


def test_reference_scores_every_token_and_corrupts_none():
    clean = [21, 22, 23, SEP]
    shifted = reference_example(SOURCE, TARGET, tiny_form("causal"))
    assert shifted[1].token.tolist() == [SEP, 21, 22, 23]
    assert shifted[1].label.tolist() == clean
    for method in ("masked", "pseudo_masked"):
        context, content, placeholders = reference_example(SOURCE, TARGET, tiny_form(method))
        assert context.token.tolist() == [CLS, 11, 12, 13, SEP]
        assert content.token.tolist() == clean
        assert placeholders.token.tolist() == [MASK] * 4
        assert placeholders.label.tolist() == clean


# Statistics. A share p of n draws is within three standard errors, sqrt(p (1 - p) / n), of its probability.


def assert_share(hits, draws, probability):
    assert abs(hits / draws - probability) <= 3 * np.sqrt(probability * (1 - probability) / draws)


def shares(clean, drawn):
    """Return how many tokens stayed, became the placeholder, or became another token."""
    kept, placeholder = drawn == clean, drawn == MASK
    return kept.sum(), placeholder.sum(), (~kept & ~placeholder).sum()


def assert_80_10_10(clean, drawn):
    kept, placeholder, other = shares(clean, drawn)
    # A random token is the placeholder or the old one with probability 1 / V each.
    assert_share(placeholder, len(clean), 0.8 + 0.1 / VOCAB_SIZE)
    assert_share(kept, len(clean), 0.1 + 0.1 / VOCAB_SIZE)
    assert_share(other, len(clean), 0.1 * (1 - 2 / VOCAB_SIZE))


def one_row(values):
    return Ragged.of([values])


EIGHTY_TEN_TEN = Corruption(target_mask_prob=1.0, random_prob=0.1, keep_prob=0.1)


def test_draws_are_80_10_10():
    rng = np.random.default_rng(1)
    clean = words(rng, 40_000)
    drawn = EIGHTY_TEN_TEN.draw(one_row(clean), tiny_form(), Draws(1, 1, np.array([0])))
    assert_80_10_10(clean, drawn)


def test_random_tokens_are_uniform_over_the_whole_vocabulary():
    corruption = Corruption(target_mask_prob=1.0, random_prob=1.0, keep_prob=0.0)
    drawn = corruption.draw(one_row(np.full(50_000, 20)), tiny_form(), Draws(2, 1, np.array([0])))
    counts = np.bincount(drawn, minlength=VOCAB_SIZE)
    assert len(counts) == VOCAB_SIZE
    expected = 50_000 / VOCAB_SIZE
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    # Chi-squared with 49 degrees of freedom: mean 49, standard deviation sqrt(98).
    assert abs(chi_squared - (VOCAB_SIZE - 1)) <= 3 * np.sqrt(2 * (VOCAB_SIZE - 1))


def many(method, corruption, draws, length=9, seed=3, source=NOTHING):
    """Pack the same pair many times; return the target, and tokens and labels of its sections: [(draws, length)]."""
    target = words(np.random.default_rng(seed), length)
    form = tiny_form(method, max_source=64)
    copies = [Ragged.of([each.values] * draws) for each in laid_out(source, target, form)]
    blocks = OBJECTIVES[method].pack(*copies, form, corruption, Draws(seed, 1, np.arange(draws)))
    tokens = [block.token.reshape(draws, -1) for block in blocks]
    return target, tokens, [block.label.reshape(draws, -1) for block in blocks]


def test_causal_corrupts_all_tokens_but_the_first():
    target, (_, content), _ = many("causal", replace(EIGHTY_TEN_TEN, target_mask_prob=0.5), 3000)
    assert (content[:, 0] == SEP).all()
    clean = np.tile(target, (3000, 1))
    _, placeholder, other = shares(clean, content[:, 1:])
    assert_share(placeholder, clean.size, 0.5 * (0.8 + 0.1 / VOCAB_SIZE))
    assert_share(other, clean.size, 0.5 * 0.1 * (1 - 2 / VOCAB_SIZE))


def test_causal_of_the_paper_corrupts_nothing():
    target, (_, content), _ = many("causal", OBJECTIVES["causal"].corruption["paper"], 10)
    assert (content == [SEP, *target]).all()


def test_pseudo_masked_writes_the_placeholders_tokens_over_the_target():
    program = OBJECTIVES["pseudo_masked"].corruption["original"]
    target, (_, content, placeholder), _ = many("pseudo_masked", program, 3000)
    clean = np.tile([*target, SEP], (3000, 1))
    assert_80_10_10(clean.flatten(), placeholder.flatten())
    changed = content != clean
    np.testing.assert_array_equal(content[changed], placeholder[changed])
    assert_share(changed.sum(), clean.size, 0.5 * (0.9 - 0.1 / VOCAB_SIZE))


def test_pseudo_masked_of_the_paper_masks_half_of_the_content():
    """Appendix A: 40 to 70 % of the target are masked."""
    target, (_, content, placeholder), _ = many("pseudo_masked", OBJECTIVES["pseudo_masked"].corruption["paper"], 3000)
    clean = np.tile([*target, SEP], (3000, 1))
    assert (content[content != clean] == MASK).all()
    assert_share((content != clean).sum(), clean.size, 0.5)
    assert (placeholder == MASK).all()


def test_masked_by_chance():
    """Bernoulli: the number of masked tokens is binomial, but never 0; all tokens are equally likely."""
    corruption = Corruption(target_mask_prob=0.3, random_prob=0.0, keep_prob=0.0)
    _, _, (_, labels) = many("masked", corruption, 4000)
    counts = (labels != PAD).sum(axis=1)
    assert counts.min() == 1
    assert counts.max() > 5
    none = 0.7**10
    assert_share((counts == 1).sum(), 4000, 10 * 0.3 * 0.7**9 + none)
    assert abs(counts.mean() - (3 + none)) <= 3 * np.sqrt(10 * 0.3 * 0.7 / 4000)
    for where in (labels != PAD).T:
        assert_share(where.sum(), 4000, (3 + none) / 10)


def test_masked_with_an_exact_count():
    corruption = Corruption(target_mask_prob=0.35, random_prob=0.0, keep_prob=0.0, exact_count=True)
    _, _, (_, labels) = many("masked", corruption, 2000)
    assert set((labels != PAD).sum(axis=1)) == {3}
    for where in (labels != PAD).T:
        assert_share(where.sum(), 2000, 0.3)


@pytest.mark.parametrize("exact_count", [True, False])
def test_at_least_one_token_is_masked(exact_count):
    corruption = Corruption(target_mask_prob=0.0, random_prob=0.0, keep_prob=0.0, exact_count=exact_count)
    _, _, (_, labels) = many("masked", corruption, 300)
    assert set((labels != PAD).sum(axis=1)) == {1}
    # Also in a target that only has [SEP].
    _, (_, content), (_, labels) = many("masked", corruption, 3, length=0)
    assert (labels.tolist(), content.tolist()) == ([[SEP]] * 3, [[MASK]] * 3)


@pytest.mark.parametrize("exact_count", [True, False])
def test_the_number_of_masked_tokens_is_limited(exact_count):
    corruption = Corruption(1.0, 0.0, 0.0, exact_count=exact_count, max_masked_tokens=4)
    _, _, (_, labels) = many("masked", corruption, 100)
    assert set((labels != PAD).sum(axis=1)) == {4}


def test_masked_tokens_of_the_program_are_80_10_10():
    target, (_, content), (_, labels) = many("masked", OBJECTIVES["masked"].corruption["original"], 4000)
    assert set((labels != PAD).sum(axis=1)) == {5}
    clean = np.tile([*target, SEP], (4000, 1))
    chosen = labels != PAD
    np.testing.assert_array_equal(content[~chosen], clean[~chosen])
    assert_80_10_10(clean[chosen], content[chosen])


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_source_corruption(method):
    source = words(np.random.default_rng(4), 30)
    corruption = replace(EIGHTY_TEN_TEN, target_mask_prob=0.0, source_mask_prob=0.25)
    _, (context, *_), (context_labels, *_) = many(method, corruption, 1000, length=2, source=source)
    clean = tiny_form(method, max_source=64).source(source)
    # Special symbols never change, and no source token is predicted.
    specials = (clean == CLS) | (clean == SEP)
    assert specials.sum() == tiny_form(method).source_specials
    assert (context[:, specials] == clean[specials]).all()
    assert (context_labels == PAD).all()
    ordinary = np.tile(clean[~specials], (1000, 1))
    _, placeholder, other = shares(ordinary, context[:, ~specials])
    assert_share(placeholder, ordinary.size, 0.25 * (0.8 + 0.1 / VOCAB_SIZE))
    assert_share(other, ordinary.size, 0.25 * 0.1 * (1 - 2 / VOCAB_SIZE))


@pytest.mark.parametrize("method", METHOD_NAMES)
@pytest.mark.parametrize("preset", CORRUPTIONS)
def test_the_source_is_left_alone_by_default(method, preset):
    _, (context, *_), _ = many(method, OBJECTIVES[method].corruption[preset], 20, source=SOURCE)
    assert (context == tiny_form(method).source(SOURCE)).all()


# A batch compared with the naive objectives, one example after the other with the same random numbers.

SETTINGS = {
    "paper": {},
    "original": {},
    "all at once": {"keep_prob": 0.2, "random_prob": 0.3, "source_mask_prob": 0.4, "target_mask_prob": 0.6},
    "exact count": {"exact_count": True, "target_mask_prob": 0.3, "keep_prob": 0.5},
    "few masked": {"max_masked_tokens": 2, "target_mask_prob": 0.9},
    "none masked": {"target_mask_prob": 0.0},
    "noise": {"noise_prob": 0.4},
    "one noise symbol": {"noise_prob": 0.4, "noise_symbol": 8, "target_mask_prob": 0.0},
}


@pytest.mark.parametrize("setting", list(SETTINGS))
@pytest.mark.parametrize("method", METHOD_NAMES)
def test_a_batch_equals_the_naive_examples(method, setting):
    rng = np.random.default_rng(11)
    form = tiny_form(method, fields=SourceFields((4,)), target_segment=5, vocab_size=9)
    corruption = replace(
        OBJECTIVES[method].corruption[setting if setting in CORRUPTIONS else "original"], **SETTINGS[setting]
    )
    numbers = rng.permutation(1000)[:40]
    pairs = [(words(rng, rng.integers(0, 20)), words(rng, rng.integers(0, 14))) for _ in numbers]
    source = Ragged.of([form.source(source) for source, _ in pairs])
    target = Ragged.of([form.target(target) for _, target in pairs])
    batch = collate([OBJECTIVES[method].pack(source, target, form, corruption, Draws(7, 3, numbers))])
    expected = [
        naive_blocks(method, source.tolist(), target.tolist(), form, corruption, ExampleDraws(7, 3, int(number)))
        for number, (source, target) in zip(numbers, pairs, strict=True)
    ]
    assert batch.lengths == tuple(tuple(map(len, blocks)) for blocks in expected)
    tokens = [token for blocks in expected for block in blocks for token in block]
    for name, column in zip(Token._fields, zip(*tokens, strict=True), strict=True):
        assert getattr(batch, name).tolist() == list(column), name


@pytest.mark.parametrize("objective", OBJECTIVES.values(), ids=OBJECTIVES)
def test_presets_are_valid(objective):
    assert sorted(objective.corruption) == sorted(CORRUPTIONS)
    assert all(not corruption.problems() for corruption in objective.corruption.values())


def test_all_invalid_probabilities_are_reported():
    corruption = Corruption(
        target_mask_prob=1.5, random_prob=-0.1, keep_prob=float("nan"), source_mask_prob=2, max_masked_tokens=-1
    )
    assert corruption.problems() == [
        "--target-mask-prob must be between 0 and 1, but is 1.5",
        "--random-prob must be between 0 and 1, but is -0.1",
        "--keep-prob must be between 0 and 1, but is nan",
        "--source-mask-prob must be between 0 and 1, but is 2",
        "--max-masked-tokens must not be negative, but is -1",
    ]


def test_probabilities_that_add_up_to_more_than_one():
    problems = Corruption(target_mask_prob=0.5, random_prob=0.6, keep_prob=0.5).problems()
    assert problems == ["--random-prob and --keep-prob must add up to 1 at most, but add up to 1.1"]
    assert not Corruption(target_mask_prob=0.5, random_prob=0.9, keep_prob=0.1).problems()


def test_noise_of_causal_content_changes_its_tokens_alone():
    """ERNIE-GEN's Table 8, rows 4 to 6: labels, positions and who sees whom are those of clean content."""
    form = tiny_form("causal")
    pair = laid_out(SOURCE, TARGET, form)
    noisy = replace(NO_CORRUPTION, noise_prob=1.0, noise_symbol=9)
    packed = [causal(*pair, form, corruption, Draws(1, 1, np.array([0]))) for corruption in (NO_CORRUPTION, noisy)]
    clean, noised = map(collate, ([example] for example in packed))
    for name in Token._fields:
        if name != "token":
            np.testing.assert_array_equal(getattr(clean, name), getattr(noised, name))
    np.testing.assert_array_equal(*map(visibility_matrix, packed))
    assert packed[1][0].token.tolist() == packed[0][0].token.tolist()
    assert packed[1][1].token.tolist() == [SEP] + [9] * len(TARGET)


def test_sources_may_be_predicted_too():
    """Each source token predicts the clean next one, the last the first content; the other columns are as without."""
    form = tiny_form("causal")
    sources = Ragged.of([form.source(SOURCE), form.source(NOTHING), form.source(SOURCE[:1])])
    targets = Ragged.of([form.target(TARGET)] * 3)
    corruption = replace(NO_CORRUPTION, source_mask_prob=1.0)
    pair = (sources, targets, form, corruption, Draws(1, 1, np.arange(3)))
    plain, both = causal(*pair), causal(*pair, predicts_sources=True)
    assert both[0].label.tolist() == [11, 12, 13, SEP, SEP, 11, SEP]
    assert both[0].token.tolist() == [CLS, MASK, MASK, MASK, CLS, CLS, MASK]
    for section, of_both in zip(plain, both, strict=True):
        for name in Token._fields:
            if name != "label" or section is plain[1]:
                np.testing.assert_array_equal(getattr(section, name), getattr(of_both, name))
