"""``s2sft span-vocab``: from tokenized text to the file of a span vocabulary."""

import gzip
import json
import signal
import time

import numpy as np
import pytest
from tokenizer_folders import write_fastbpe, write_gpt2, write_wordpiece

from s2sft_fairseq.objectives.ragged import Ragged
from s2sft_fairseq.spans.vocabulary import load_spans
from s2sft_fairseq.tokenization.folder import open_tokenizer


@pytest.fixture
def span_vocab(call_command, tmp_path):
    """Run ``s2sft span-vocab`` in `tmp_path` with a small WordPiece folder, or another one in ``tokenizer``."""
    write_wordpiece(tmp_path / "tokenizer")

    def run(*words: object, status: int = 0):
        return call_command(
            "span-vocab", "--tokenizer-dir", "tokenizer", "--output", "spans.txt", *words, status=status
        )

    return run


def test_a_text_by_hand(span_vocab, tmp_path):
    # 20 words and 10 bigrams: t = (6 / 10 - (8 / 20)^2) / sqrt(0.24 / 10)
    (tmp_path / "a.src").write_text("the quick\n" * 6)
    (tmp_path / "a.tgt.gz").write_bytes(gzip.compress(b"a the\na the\ntoken ##ization quick\nb quick\n"))
    (tmp_path / "temporary").mkdir()
    done = span_vocab("--input", "a.src", "a.tgt.gz", "--temporary-dir", "temporary")
    assert done.stdout.splitlines()[-1] == (
        "spans.txt: 1 bigrams (t 2.84 to 2.84) of 10, 0 trigrams of 0; 20 words in 10 lines"
    )
    first, *ngrams, last = (tmp_path / "spans.txt").read_text().splitlines()
    assert json.loads(first) == {
        "format": "s2sft span vocabulary",
        "version": 1,
        "corpus": {"lines": 10, "words": 20, "bigrams": 10, "trigrams": 0},
        "options": {"bigrams": 200_000, "trigrams": 50_000, "min_count": 4},
        "listed": {"bigrams": 1, "trigrams": 0},
    }
    assert ngrams == ["the quick\t6\t2.8402"]
    assert last.startswith("continuing\t##ization ##a ##b")
    assert list((tmp_path / "temporary").iterdir()) == []


def test_numbers_of_ngrams_and_least_count(span_vocab, tmp_path):
    (tmp_path / "a.src").write_text("the quick a\ntoken ##ization , c\nthe d ##x\n" * 2)
    span_vocab("--input", "a.src", "--min-count", 3)
    assert len((tmp_path / "spans.txt").read_text().splitlines()) == 2
    span_vocab("--input", "a.src", "--min-count", 1, "--bigrams", 2, "--trigrams", 1, "--workers", 1)
    lines = (tmp_path / "spans.txt").read_text().splitlines()
    # Among equal ones, words with smaller ids come first.
    assert [line.split("\t")[:2] for line in lines[1:-1]] == [
        *(["quick a", "2"], ["token ##ization ,", "2"]),
        ["token ##ization , c", "2"],
    ]


def test_numbered_pieces_of_tokenized_text(span_vocab, call_command, tmp_path):
    write_gpt2(tmp_path / "tokenizer")
    (tmp_path / "tokenizer" / "vocab.txt").unlink()
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw" / "a.txt").write_text(
        "I see the lazy dog!\nso the lazy dog met.\n" * 5 + "so quick\nwe met\n" * 20
    )
    call_command("tokenize", "--tokenizer-dir", "tokenizer", "--input", "raw/a.txt", "--output-dir", "tokens")
    span_vocab("--input", "tokens/a.txt", "--bigrams", 100, "--trigrams", 100)
    tokenizer = open_tokenizer(tmp_path / "tokenizer")
    vocabulary = load_spans(tmp_path / "spans.txt", tokenizer.dictionary)

    def spans(text: str) -> list[str]:
        ids = np.array([tokenizer.dictionary.index(symbol) for symbol in tokenizer.encode(text).split()])
        starts = np.unique(vocabulary.boundaries(Ragged.of([ids])))
        parts = np.split(ids, starts[1:])
        return [tokenizer.decode(" ".join(tokenizer.dictionary.symbols[i] for i in part)).strip() for part in parts]

    assert spans("we see the lazy dog met.") == ["we", "see the lazy", "dog met."]
    assert spans("I met the lazy dogs") == ["I", "met", "the lazy", "dogs"]


def test_options_that_do_not_fit(span_vocab, tmp_path):
    (tmp_path / "spans.txt").write_text("a\n")
    done = span_vocab(
        *("--input", "spans.txt", "b.src", "./b.src", "--bigrams", -1, "--trigrams", -2, "--min-count", 0),
        *("--workers", 0, "--max-memory", 0, "--temporary-dir", "nowhere"),
        status=2,
    )
    assert done.stderr.splitlines() == [
        "error: 8 problems:",
        "  - --bigrams must be at least 0, but is -1",
        "  - --trigrams must be at least 0, but is -2",
        "  - --min-count must be at least 1, but is 0",
        "  - --workers must be at least 1, but is 0",
        "  - --max-memory must be above 0, but is 0.0",
        "  - --temporary-dir must be a folder, but nowhere is not one",
        "  - --output spans.txt is an input too; give another name",
        f"  - --input names {tmp_path}/b.src twice",
    ]
    done = span_vocab("--input", "a.src", "--output", "tokenizer", "--max-memory", "nan", status=2)
    assert done.stderr.splitlines()[1:] == [
        "  - --max-memory must be above 0, but is nan",
        "  - --output tokenizer must be a file, but is a folder",
    ]


def test_files_that_do_not_fit(span_vocab, tmp_path):
    (tmp_path / "latin.src").write_bytes(b"\xff\n")
    (tmp_path / "raw.src").write_text("The quick\n")
    done = span_vocab("--input", "latin.src", "no.src", status=2)
    assert "latin.src: 1 line(s) are not valid UTF-8: line 1" in done.stderr
    assert "no.src: cannot be read: No such file or directory" in done.stderr
    done = span_vocab("--input", "raw.src", status=2)
    assert done.stderr.splitlines()[-1] == "  - raw.src, line 1: 'The'"
    write_fastbpe(tmp_path / "bpe")
    done = span_vocab("--input", "raw.src", "--tokenizer-dir", "bpe", status=2)
    assert "error: --tokenizer-dir needs pieces that show where words begin" in done.stderr
    assert not (tmp_path / "spans.txt").exists()


def test_interrupted(start_command, tmp_path):
    write_wordpiece(tmp_path / "tokenizer")
    (tmp_path / "many.src").write_text("the quick token ##ization , a b c\n" * 400_000)
    (tmp_path / "temporary").mkdir()
    (tmp_path / "spans.txt").write_text("former\n")
    process = start_command(
        *("span-vocab", "--tokenizer-dir", "tokenizer", "--input", "many.src", "--output", "spans.txt"),
        *("--workers", 2, "--temporary-dir", "temporary"),
    )
    deadline = time.monotonic() + 120
    while not list((tmp_path / "temporary").glob("*/*.npy")):
        assert process.poll() is None and time.monotonic() < deadline, process.communicate()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stderr.splitlines()[-1] == "s2sft span-vocab: interrupted"
    assert "Traceback" not in stderr
    assert list((tmp_path / "temporary").iterdir()) == []
    assert (tmp_path / "spans.txt").read_text() == "former\n"
    assert not list(tmp_path.glob("*.partial"))
