"""Windows of raw text, of all lines or of one shard."""

import gzip
import json
import threading

import pytest
from tokenizer_folders import write_wordpiece

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.inference.files import RawText, read_ahead
from s2sft_fairseq.tokenization.folder import open_tokenizer
from s2sft_fairseq.tokenization.tokenize_files import Job, TextTokenizer

LINES = ["the quick", "", "a token b", "[SEP]", "quick the", "x y|z", "1"]


@pytest.fixture
def tokenizer(tmp_path):
    return open_tokenizer(write_wordpiece(tmp_path / "tokenizer"))


@pytest.fixture
def opened(tmp_path, tokenizer):
    """Open lines, as text or as JSON with some keys."""

    def open_text(lines, *shard, name="in.txt", keys=(), separator=None):
        content = "".join(f"{line}\n" for line in lines).encode()
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        job = Job((tmp_path / name,), keys, {tmp_path / "out": tuple(range(len(keys) or 1))})
        return RawText.open(job, TextTokenizer(tokenizer, separator), *shard)

    return open_text


def symbols(tokenizer, windows):
    """Return the number of the first line and the symbols of all lines of each window."""
    names = tokenizer.dictionary.symbols
    return [(first, [" ".join(names[i] for i in source) for source in sources]) for first, sources, _ in windows]


def test_windows_of_all_lines(opened, tokenizer):
    text = opened(LINES)
    assert symbols(tokenizer, text.windows(3)) == [
        (0, ["the quick", "", "a token b"]),
        (3, ["[SEP]", "quick the", "x y [UNK] z"]),
        (6, ["1"]),
    ]
    assert symbols(tokenizer, text.windows(3, done=6)) == [(6, ["1"])]
    assert list(text.windows(3, done=7)) == []
    assert [[len(source) for source in window.sources] for window in text.windows(9)] == [[2, 0, 3, 1, 2, 4, 1]]


@pytest.mark.parametrize("shards", [1, 2, 3, 7, 9])
def test_shards_are_consecutive_and_similar_in_size(opened, shards):
    parts = [opened(LINES, shards, shard) for shard in range(shards)]
    assert [number for part in parts for number in part.lines] == list(range(7))
    sizes = [len(part.lines) for part in parts]
    assert max(sizes) - min(sizes) <= 1
    for part in parts:
        assert [window.first for window in part.windows(2)] == list(part.lines)[::2]


def test_fields(opened, tokenizer):
    text = opened(LINES[5:], separator="|", name="in.txt.gz")
    assert symbols(tokenizer, text.windows(9)) == [(0, ["x y [SEP] z", "1"])]
    assert text.stats.divided == 1
    examples = [json.dumps({"b": "a\nb", "a": ["token"]}), json.dumps({"a": "", "b": "1"})]
    text = opened(examples, name="in.jsonl", keys=("a", "b"))
    assert symbols(tokenizer, text.windows(9)) == [(0, ["token [SEP] a b", "[SEP] 1"])]
    assert text.stats.divided == 0


def test_mistakes_are_found_before_a_window_is_read(opened):
    with pytest.raises(UserError, match=r'1 line\(s\) lack "b": line 2'):
        opened(['{"b": ""}', '{"a": ""}'], name="in.jsonl", keys=("b",))


def test_reading_ahead_by_one():
    made, taken = [], threading.Event()

    def items():
        for item in range(4):
            made.append(item)
            if item == 2:
                taken.wait(10)
            yield item

    ahead = read_ahead(items())
    assert next(ahead) == 0
    assert next(ahead) == 1  # while 2 is being made
    assert 3 not in made
    taken.set()
    assert list(ahead) == [2, 3]


def test_mistakes_of_the_reader_reach_the_caller():
    def items():
        yield 1
        raise UserError("text")

    ahead = read_ahead(items())
    assert next(ahead) == 1
    with pytest.raises(UserError, match="text"):
        next(ahead)


@pytest.mark.parametrize(("name", "keys"), [("in.txt", ()), ("in.txt.gz", ()), ("in.jsonl", ("src",))])
def test_a_file_without_lines(opened, name, keys):
    """Such as an empty shard of a corpus."""
    for shard in ((), (2, 1)):
        text = opened([], *shard, name=name, keys=keys)
        assert (list(text.lines), list(text.windows(3))) == ([], [])
