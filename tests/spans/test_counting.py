"""Counts and t-statistics equal a direct computation, however the work is divided."""

import gzip
import random
from pathlib import Path

import pytest
from naive_spans import exact_t, naive_counts, naive_t

from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.spans import counting
from s2sft_fairseq.spans.counting import Resources, find_collocations
from s2sft_fairseq.spans.ngrams import words_of_keys
from s2sft_fairseq.spans.words import TokenText, WordRule, ids_of
from s2sft_fairseq.tokenization.folder import open_tokenizer

LETTERS = "abcdefghij"
SYMBOLS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS, *(f"##{letter}" for letter in LETTERS)]
SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
ALL = {2: 10**6, 3: 10**6}


@pytest.fixture(scope="module")
def dictionary() -> PretrainedDictionary:
    return PretrainedDictionary.of(SYMBOLS)


def random_lines(seed: int, number: int) -> list[str]:
    """Return lines of words of one to five pieces, some frequent and many rare, and a few special symbols."""
    draw = random.Random(seed)
    words = [
        " ##".join(draw.choices(LETTERS, weights=range(10, 0, -1), k=draw.choice((1, 1, 1, 2, 3, 5))))
        for _ in range(300)
    ]
    words[5] = "[UNK]"
    words[9] = "[SEP]"
    weights = [1 / (rank + 1) for rank in range(len(words))]
    return [" ".join(draw.choices(words, weights, k=draw.randint(0, 12))) for _ in range(number)]


def rule_of(dictionary: PretrainedDictionary) -> WordRule:
    return WordRule.of(dictionary, (i for i, symbol in enumerate(dictionary.symbols) if symbol.startswith("##")))


def find(paths, dictionary, folder, *, workers=1, max_memory=1 << 30, wanted=ALL, min_count=1):
    """Return the totals, and for each order the n-grams as tuples of words, with their counts and t-statistics."""
    folder.mkdir()
    found = find_collocations(
        paths,
        0,
        TokenText(dictionary),
        rule_of(dictionary),
        wanted,
        min_count,
        Resources(workers, max_memory, folder),
    )
    spelled = [tuple(dictionary.symbols[token] for token in ids_of(spelling)) for spelling in found.spellings]
    ngrams = {
        order: list(
            zip(
                [tuple(spelled[n] for n in numbers) for numbers in words_of_keys(some.keys, order).tolist()],
                some.counts.tolist(),
                some.t.tolist(),
                strict=True,
            )
        )
        for order, some in found.ngrams.items()
    }
    return found.totals.tolist(), ngrams


def expected(lines, dictionary, *, wanted=ALL, min_count=1):
    """Return the same, computed directly."""
    counts = naive_counts(lines)
    totals = {order: counter.total() for order, counter in counts.items()}
    ngrams = {}
    for order, number in wanted.items():
        all_of_order = [
            (ngram, count, naive_t(counts, totals, ngram))
            for ngram, count in counts[order].items()
            if count >= min_count
        ]

        def rank(entry):
            return -entry[2], [[dictionary.indices[symbol] for symbol in word] for word in entry[0]]

        ngrams[order] = [entry for entry in sorted(all_of_order, key=rank) if entry[2] > 0][:number]
    return list(totals.values()), ngrams


def write(path: Path, lines: list[str]) -> Path:
    content = "".join(f"{line}\n" for line in lines).encode()
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("min_count", [1, 3])
@pytest.mark.parametrize("seed", range(3))
def test_equal_to_a_direct_computation(dictionary, tmp_path, seed, min_count):
    lines = random_lines(seed, 800)
    path = write(tmp_path / "text", lines)
    for number, wanted in enumerate((ALL, {2: 40, 3: 7}, {2: 0, 3: 1})):
        options = {"wanted": wanted, "min_count": min_count}
        found = find([path], dictionary, tmp_path / str(number), **options)
        assert found == expected(lines, dictionary, **options)


def test_t_equals_the_one_in_fractions(dictionary, tmp_path):
    lines = random_lines(1, 500)
    counts = naive_counts(lines)
    totals = {order: counter.total() for order, counter in counts.items()}
    _, ngrams = find([write(tmp_path / "text", lines)], dictionary, tmp_path / "folder")
    for entries in ngrams.values():
        assert len(entries) > 100
        for ngram, _, t in entries:
            assert t == pytest.approx(exact_t(counts, totals, ngram), rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("workers", [1, *(pytest.param(number, marks=pytest.mark.process) for number in (2, 3))])
def test_workers_memory_and_files_do_not_change_the_result(dictionary, tmp_path, workers):
    lines = random_lines(7, 1500)
    whole = find([write(tmp_path / "whole", lines)], dictionary, tmp_path / "1", min_count=2)
    assert whole == expected(lines, dictionary, min_count=2)
    parts = [
        write(tmp_path / "c.gz", lines[900:]),
        write(tmp_path / "a", lines[:400]),
        write(tmp_path / "b", lines[400:900]),
    ]
    max_memory = 16_000 * workers
    found = find(parts, dictionary, tmp_path / "2", workers=workers, max_memory=max_memory, min_count=2)
    assert found == whole
    # So little memory that all work was divided.
    assert len(list((tmp_path / "2").glob("2-*.npy"))) > 20
    assert len(list((tmp_path / "2").glob("words-*.txt"))) > 1


@pytest.mark.process
def test_real_text(tmp_path):
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    if not SHARED.is_dir():
        pytest.skip("../shared/data, the folder with the real data sets, is not beside this checkout")
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "vocab.txt").symlink_to(SHARED / "vocab" / "bert-base-uncased-vocab.txt")
    tokenizer = open_tokenizer(tmp_path / "tokenizer")
    text = gzip.decompress((SHARED / "books" / "valid.txt.gz").read_bytes()).decode().splitlines()
    lines = tokenizer.encode_batch(text)
    path = write(tmp_path / "text", lines)
    found = find([path], tokenizer.dictionary, tmp_path / "folder", workers=2, max_memory=2_000_000, min_count=2)
    assert found == expected(lines, tokenizer.dictionary, min_count=2)


def test_words_that_belong_together_come_first(dictionary, tmp_path):
    draw = random.Random(3)
    lines = []
    for _ in range(1000):
        words = draw.choices("abcdef", k=8)
        if draw.random() < 0.3:
            words.insert(draw.randrange(9), "g ##a h")
        if draw.random() < 0.2:
            words.insert(draw.randrange(9), "i j ##b ##c j")
        lines.append(" ".join(words))
    _, ngrams = find([write(tmp_path / "text", lines)], dictionary, tmp_path / "folder")
    g, h, i, j, jbc = ("g", "##a"), ("h",), ("i",), ("j",), ("j", "##b", "##c")
    assert ngrams[2][0][0] == (g, h)
    assert {ngram for ngram, _, _ in ngrams[2][1:3]} == {(i, jbc), (jbc, j)}
    assert ngrams[3][0][0] == (i, jbc, j)


def test_all_ngrams_the_same(dictionary, tmp_path):
    _, ngrams = find([write(tmp_path / "text", ["a b"] * 3)], dictionary, tmp_path / "1")
    assert ngrams == {2: [((("a",), ("b",)), 3, float("inf"))], 3: []}
    _, ngrams = find([write(tmp_path / "text", ["a a a"] * 3)], dictionary, tmp_path / "2")
    assert ngrams == {2: [], 3: []}  # exactly the frequency expected by chance


@pytest.mark.parametrize("lines", [["[SEP] [UNK]", ""], ["", " "], ["a", "b ##c"]])
def test_no_ngrams(dictionary, tmp_path, lines):
    found = find([write(tmp_path / "text", lines)], dictionary, tmp_path / "folder")
    assert found == expected(lines, dictionary)
    assert found[0][1:] == [0, 0]


def test_a_last_line_without_an_end(dictionary, tmp_path):
    (tmp_path / "a").write_bytes(b"a b\r\n\nc ##a d\na")
    (tmp_path / "b").write_bytes(b"b c")
    totals, ngrams = find([tmp_path / "a", tmp_path / "b"], dictionary, tmp_path / "folder")
    assert totals == [7, 3, 0]
    assert {ngram for ngram, _, _ in ngrams[2]} == {(("a",), ("b",)), (("c", "##a"), ("d",)), (("b",), ("c",))}


def test_unknown_symbols(dictionary, tmp_path):
    write(tmp_path / "good", ["a b"] * 9)
    write(tmp_path / "bad", ["a b", "a the", "", "b the c dog"])
    with pytest.raises(UserError) as caught:
        find([tmp_path / "good", tmp_path / "bad"], dictionary, tmp_path / "folder", workers=2)
    assert str(caught.value).splitlines() == [
        "--input needs files that s2sft tokenize wrote with this --tokenizer-dir, but its vocabulary lacks 2 symbols "
        "or more:",
        f"  - {tmp_path}/bad, line 2: 'the'",
        f"  - {tmp_path}/bad, line 4: 'dog'",
    ]


def test_line_numbers_of_later_chunks(dictionary, tmp_path):
    write(tmp_path / "bad", [*["a b c d"] * 500, "a the"])
    with pytest.raises(UserError, match=r"bad, line 501: 'the'"):
        find([tmp_path / "bad"], dictionary, tmp_path / "folder", max_memory=16_000)


def test_too_many_different_words(dictionary, tmp_path, monkeypatch):
    monkeypatch.setattr(counting, "MAX_WORDS", 3)
    path = write(tmp_path / "text", ["a b a b", "c c d d", "d"])
    with pytest.raises(UserError) as caught:
        find([path], dictionary, tmp_path / "1", min_count=2)
    assert str(caught.value) == (
        "--min-count must be higher: 4 words occur 2 times or more, and at most 3 can be told apart"
    )
    assert find([path], dictionary, tmp_path / "2", min_count=3) == expected(
        ["a b a b", "c c d d", "d"], dictionary, min_count=3
    )


def test_memory_decides_how_the_work_is_divided(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"x" * (40 << 20))
    assert Resources(2, 1 << 30, tmp_path).chunk_size([path]) == (40 << 20) // 16
    assert Resources(2, 32 << 20, tmp_path).chunk_size([path]) == 1 << 20
    assert Resources(1, 1, tmp_path).chunk_size([path]) == 1
    assert Resources(2, 1 << 30, tmp_path).range_size() == 1 << 23
