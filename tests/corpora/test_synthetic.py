"""Each synthetic task against its definition."""

import pytest

from s2sft_fairseq.corpora.synthetic import SHORTEST, Maker
from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.errors import UserError

WORDS = [f"w{number}" for number in range(30)]


def dictionary(words=WORDS):
    return PretrainedDictionary.of(["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])


@pytest.fixture
def made():
    """Sources without the symbol of the task, and targets, by the name of the task."""
    maker = Maker(dictionary(), seed=1)
    names = {symbol: task.__name__ for symbol, task in maker.tasks.items()}
    found = {name: [] for name in names.values()}
    for (name, *source), target in maker.pairs(500, longest=40):
        assert SHORTEST / 2 <= len(source) < 40 and 0 < len(target) <= len(source)
        assert set(target) <= set(maker.symbols)
        found[names[name]].append((source, target))
    assert min(map(len, found.values())) > 50
    return found


def test_tasks(made):
    for source, target in made["copy"]:
        assert target == source
    for source, target in made["reverse"]:
        assert target == [*reversed(source)]
    for source, target in made["set"]:
        assert len(set(target)) == len(target) and set(target) == set(source)
        assert [source.index(symbol) for symbol in target] == sorted(source.index(symbol) for symbol in target)
    for (deleted, *text), target in made["delete"]:
        assert deleted in text and deleted not in target
        assert len(target) + text.count(deleted) == len(text)
        rest = iter(text)
        assert all(symbol in rest for symbol in target)  # the same order
    masks = tokens = 0
    for source, target in made["first_sentence"]:
        masked, *sentences = " ".join(source).removesuffix(" w0").split(" w0 ")
        assert " ".join(target) in sentences and 2 <= len(sentences) <= 4
        assert all(read in ("[MASK]", true) for read, true in zip(masked.split(), target, strict=True))
        masks, tokens = masks + masked.split().count("[MASK]"), tokens + len(target)
    assert 0.4 < masks / tokens < 0.6


def test_symbols_repeat_in_sources(made):
    assert any(len(target) < len(source) / 2 for source, target in made["set"])


def test_seeds():
    one, same, other = (list(Maker(dictionary(), seed).pairs(20, 40)) for seed in (1, 1, 2))
    assert one == same != other


def test_dictionaries_without_words():
    with pytest.raises(UserError, match=r"11 symbols .* 10$"):
        Maker(dictionary(WORDS[:10]), 1)
