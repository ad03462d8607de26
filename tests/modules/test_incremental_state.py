"""The incremental state: which tokens are kept, who sees them, and how they follow the search; groups of sentences."""

import numpy as np
import pytest
import torch

from s2sft_fairseq.modules import incremental_state
from s2sft_fairseq.modules.incremental_state import (
    MOST_PADDING,
    IncrementalState,
    LayerCache,
    consecutive,
    similar_lengths,
    source_places,
)
from s2sft_fairseq.modules.step_layout import next_token_layout

SENTENCES, HEADS, SOURCE, SIZE, ROOM = 3, 2, 5, 4, 40
# Lengths of the sources, and the slots where they begin: the last two form a group.
LENGTHS = (5, 3, 4)
FIRST_SLOTS = (0, 2, 1)
PLACES = source_places(LENGTHS, SOURCE, torch.device("cpu"))


def keys(slots):
    """Return keys that identify the contents of each slot (N, S): (N, h, S, d)."""
    heads = torch.arange(HEADS).view(1, HEADS, 1, 1)
    return slots[:, None, :, None] * 100 + heads * 10 + torch.arange(SIZE, dtype=torch.float32)


def keys_values(labels):
    """Return those of packed sources with such labels (T,): (T, 2, h, d)."""
    # (1, h, T, d) -> (T, h, d)
    of_labels = keys(labels.unsqueeze(0)).squeeze(0).transpose(0, 1)
    return torch.stack([of_labels, of_labels + 0.5], dim=1)


def slots_of(cache, used):
    """Return the contents of the used slots, read from keys and values, which must agree in all heads."""
    contents = cache.key[:, 0, :used, 0] / 100
    filled = (contents != 0)[:, None, :, None]
    torch.testing.assert_close(cache.key[:, :, :used], keys(contents) * filled)
    torch.testing.assert_close(cache.value[:, :, :used], (keys(contents) + 0.5) * filled)
    return contents.long()


class Followed:
    """A state, and what each hypothesis should see in it: plain lists of labels of tokens."""

    def __init__(self, layers=2):
        labels = torch.arange(1, 1 + sum(LENGTHS)).float()
        self.state = IncrementalState.begin(
            torch.cat([torch.arange(length) for length in LENGTHS]),
            LENGTHS,
            layers=layers,
            heads=HEADS,
            head_dim=SIZE,
            num_tokens=ROOM,
            hypotheses=4,
            dtype=torch.float32,
        )
        for cache in self.state.layers:
            cache.store(keys_values(labels), PLACES, slice(0, SENTENCES), SOURCE)
        self.expected = [[source.long().tolist()] for source in labels.split(LENGTHS)]
        self.next = 100

    def step(self, new=1, placeholder=True):
        """Write new tokens with labels of their own, and a placeholder with label -1."""
        sentences, hypotheses = len(self.expected), len(self.expected[0])
        layout = next_token_layout(hypotheses, new, placeholder=placeholder, device=torch.device("cpu"))
        self.state.make_room(layout)
        labels = self.next + torch.arange(sentences * new * hypotheses).view(sentences, new * hypotheses)
        self.next += labels.numel()
        written = labels
        if placeholder:
            written = torch.cat([labels, labels.new_full((sentences, hypotheses), -1)], dim=1)
        for cache in self.state.layers:
            slots, end = self.state.slots_of(layout), self.state.read_by(layout)
            key, value = cache.write(keys(written.float()), keys(written.float()) + 0.5, slots, end)
            assert key.shape == value.shape == (sentences, HEADS, self.state.used + written.size(1), SIZE)
        self.state.positions[:, slots] = self.state.lengths.unsqueeze(1) + layout.offsets
        self.state.keep(layout)
        for sentence, of_sentence in zip(labels.view(sentences, new, hypotheses).tolist(), self.expected, strict=True):
            for tokens in sentence:
                for seen, token in zip(of_sentence, tokens, strict=True):
                    seen.append(token)

    def follow(self, parents):
        self.state.follow(torch.tensor(parents))
        self.expected = [
            [list(of_sentence[parent]) for parent in row]
            for of_sentence, row in zip(self.expected, parents, strict=True)
        ]

    def keep_sentences(self, left):
        self.state.keep_sentences(torch.tensor(left))
        self.expected = [self.expected[sentence] for sentence in left]

    def check(self):
        """Each hypothesis sees its own source and tokens, in their order, at their positions, and nothing else."""
        for cache in self.state.layers:
            contents = slots_of(cache, self.state.used)
            assert len(contents) == len(self.expected)
            for n, of_sentence in enumerate(self.expected):
                for k, labels in enumerate(of_sentence):
                    seen = self.state.visible[n, k]
                    assert contents[n, seen].tolist() == labels
                    assert self.state.positions[n, : self.state.used][seen].tolist() == list(range(len(labels)))
        assert not self.state.seen[:, :, self.state.used :].any()
        for rows, first in self.state.groups:
            assert not self.state.visible[rows, :, :first].any()
        assert [n for rows, _ in self.state.groups for n in range(99)[rows]] == list(range(len(self.expected)))
        assert self.state.lengths.tolist() == [len(of_sentence[0]) for of_sentence in self.expected]


def test_places_of_sources():
    """Each has five slots: the second source begins two slots later, the third one."""
    assert PLACES.tolist() == [0, 1, 2, 3, 4, 7, 8, 9, 11, 12, 13, 14]


def test_padding_holds_numbers():
    """Values with a weight of 0 must be finite; slots after the sources are not changed."""
    size = (SENTENCES, HEADS, SOURCE + 1, SIZE)
    cache = LayerCache(torch.full(size, float("nan")), torch.full(size, float("nan")))
    cache.store(torch.ones(sum(LENGTHS), 2, HEADS, SIZE), PLACES, slice(0, SENTENCES), SOURCE)
    for kept in (cache.key, cache.value):
        for sentence, first in enumerate(FIRST_SLOTS):
            assert kept[sentence, :, :first].eq(0).all()
            assert kept[sentence, :, first:SOURCE].eq(1).all()
        assert kept[:, :, SOURCE].isnan().all()


def test_sentences_attend_with_neighbours_of_similar_length():
    followed = Followed(layers=1)
    assert followed.state.groups == [(slice(0, 1), 0), (slice(1, 3), 1)]
    followed.keep_sentences([1, 2])
    assert followed.state.groups == [(slice(0, 2), 1)]


def test_new_tokens_are_seen_by_the_hypotheses_they_continue():
    followed = Followed()
    followed.check()
    followed.step(new=0)
    followed.check()
    followed.follow([[0, 0], [0, 0], [0, 0]])
    followed.step()
    followed.step(new=2)
    followed.step(placeholder=False)
    followed.check()
    assert followed.state.used == SOURCE + 2 * 4


def test_the_slot_of_a_placeholder_is_overwritten():
    followed = Followed()
    followed.step()
    assert (slots_of(followed.state.layers[0], SOURCE + 2)[:, -1] == -1).all()
    followed.step()
    assert (slots_of(followed.state.layers[0], SOURCE + 2)[:, -1] > 0).all()


def test_hypotheses_continue_each_other_without_moving_keys():
    followed = Followed()
    followed.follow([[0] * 3] * SENTENCES)
    followed.step()
    before = slots_of(followed.state.layers[0], followed.state.used)
    # Cycles and repetitions.
    followed.follow([[1, 2, 0], [1, 0, 0], [2, 2, 2]])
    followed.check()
    torch.testing.assert_close(slots_of(followed.state.layers[0], followed.state.used), before)
    followed.step()
    followed.check()


def test_sentences_leave_with_all_their_hypotheses():
    for left in ([0, 2], [2], [1, 2], [2, 1, 0], [0, 1, 2]):
        followed = Followed()
        followed.follow([[0, 0]] * SENTENCES)
        followed.step()
        followed.keep_sentences(left)
        followed.check()
        followed.step()
        followed.check()


def test_unused_slots_are_freed(monkeypatch):
    """Tokens of dropped hypotheses are freed, and those of a common ancestor are shared."""
    monkeypatch.setattr(incremental_state, "STEPS_BETWEEN_COMPACTIONS", 1)
    rng = torch.Generator().manual_seed(0)
    followed = Followed()
    followed.follow([[0] * 4] * SENTENCES)
    for step in range(12):
        followed.step()
        followed.check()
        if step % 4 == 3:
            followed.follow([[2] * 4] * len(followed.expected))
        else:
            followed.follow(torch.randint(0, 4, (len(followed.expected), 4), generator=rng).tolist())
        if step == 6:
            followed.keep_sentences([0, 2])
    followed.follow([[1] * 4] * 2)
    # There is no room for separate slots of all hypotheses: 12 steps of 4.
    assert followed.state.capacity == SOURCE + ROOM
    followed.step()
    followed.step()
    followed.check()
    # The four hypotheses have all tokens in common except those of the last two steps.
    assert followed.state.used <= SOURCE + 12 + 2 * 4


def test_capacity_grows_if_hypotheses_share_nothing():
    followed = Followed()
    followed.follow([[0] * 4] * SENTENCES)
    for _ in range(12):
        followed.step()
    followed.check()
    assert followed.state.used == SOURCE + 12 * 4
    assert followed.state.capacity > SOURCE + ROOM
    assert followed.state.layers[1].key.size(2) == followed.state.capacity


def test_visibility_of_new_tokens():
    followed = Followed(layers=1)
    followed.follow([[0, 0]] * SENTENCES)
    followed.step()
    layout = next_token_layout(2, 1, placeholder=True, device=torch.device("cpu"))
    # Sentence 1: three source positions after padding, then the token of each hypothesis; the new tokens, and the two
    # placeholders, which see what the new tokens of their hypotheses see, and themselves.
    slots, end = followed.state.slots_of(layout), followed.state.read_by(layout)
    assert followed.state.seen_by(layout, slots, end)[1].int().tolist() == [
        [0, 0, 1, 1, 1, 1, 0, 1, 0, 0, 0],
        [0, 0, 1, 1, 1, 0, 1, 0, 1, 0, 0],
        [0, 0, 1, 1, 1, 1, 0, 1, 0, 1, 0],
        [0, 0, 1, 1, 1, 0, 1, 0, 1, 0, 1],
    ]


def padding(lengths):
    return 1 - sum(lengths) / (max(lengths) * len(lengths))


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_every_sentence_once_with_little_padding(seed, ordered):
    lengths = np.random.default_rng(seed).integers(1, 300, 50).tolist()
    if ordered:
        lengths.sort(reverse=True)
    groups = list(similar_lengths(lengths))
    assert [index for rows, _ in groups for index in range(50)[rows]] == list(range(50))
    for rows, longest in groups:
        assert longest == max(lengths[rows])
        assert padding(lengths[rows]) <= MOST_PADDING
        # The next sentence would not have fitted.
        assert rows.stop == 50 or padding(lengths[rows.start : rows.stop + 1]) > MOST_PADDING
    assert len(groups) < (20 if ordered else 45)


def test_a_short_sentence_among_many_stays_in_their_group():
    assert list(similar_lengths([8] * 7 + [1] + [8] * 7)) == [(slice(0, 15), 8)]
    assert list(similar_lengths([8, 1, 8])) == [(slice(0, 1), 8), (slice(1, 2), 1), (slice(2, 3), 8)]


def test_one_length_and_no_sentences():
    assert list(similar_lengths([7, 7, 7])) == [(slice(0, 3), 7)]
    assert list(similar_lengths([])) == []


def test_consecutive_groups_by_positions():
    assert list(consecutive([3, 4, 2, 9, 1, 1], 8)) == [
        (slice(0, 2), slice(0, 7)),
        (slice(2, 3), slice(7, 9)),
        (slice(3, 4), slice(9, 18)),  # alone, a sentence can be longer
        (slice(4, 6), slice(18, 20)),
    ]
    assert list(consecutive([], 8)) == []
    assert list(consecutive([5], 1)) == [(slice(0, 1), slice(0, 5))]
