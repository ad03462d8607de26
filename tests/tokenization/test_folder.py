"""Properties of all tokenizers, whatever the scheme of their folder; ``--bpe pretrained`` of fairseq."""

import json
import sys
import unicodedata
from argparse import Namespace

import pytest
from fairseq import options
from fairseq.data import encoders
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tokenizer import tokenize_line
from tokenizer_folders import SENTENCES, WRITERS, random_texts

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.tokenization.folder import open_tokenizer

TEXTS = [*SENTENCES[:4], "", " ", "a  b", *random_texts(300)]


@pytest.fixture(params=WRITERS)
def tokenizer(request, tokenizer_folder):
    return open_tokenizer(tokenizer_folder(request.param))


def test_every_symbol_is_in_the_dictionary(tokenizer):
    for text in TEXTS:
        symbols = tokenizer.encode(text).split(" ") if tokenizer.encode(text) else []
        assert all(symbol in tokenizer.dictionary for symbol in symbols), (text, symbols)
        # fairseq reads as many symbols as were written
        assert tokenize_line(" ".join(symbols)) == symbols


def test_a_batch_is_its_lines(tokenizer):
    assert tokenizer.encode_batch(TEXTS) == [tokenizer.encode(text) for text in TEXTS]
    assert tokenizer.encode_batch([]) == []


def test_ordinary_text_is_restored(tokenizer):
    text = "the quick brown fox, and the dog"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode("") == tokenizer.decode("") == ""


def test_special_symbols_in_text_are_text(tokenizer):
    """Text that spells them becomes other symbols; decoding leaves the symbols themselves whole."""
    special = tokenizer.dictionary.special_symbols()
    unknown = {tokenizer.dictionary.unk_word}
    for symbol in special:
        for text in (symbol, f"the {symbol} dog{symbol}", symbol.lower(), f"x{symbol}{symbol}"):
            assert special.intersection(tokenizer.encode(text).split()) <= unknown, text
            (pieces,) = tokenizer.encode_pieces([text])
            assert special.intersection(pieces.symbols) <= unknown, text
        the, dog = tokenizer.encode("the"), tokenizer.encode("dog")
        decoded = tokenizer.decode(f"{the} {symbol} {dog}")
        assert decoded.replace(" ", "") == f"the{symbol}dog"


@pytest.mark.parametrize("name", ["byte_level", "gpt2", "gemma"])
def test_any_text_is_restored_from_bytes(tokenizer_folder, name):
    tokenizer = open_tokenizer(tokenizer_folder(name))
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_any_text_is_restored_by_a_tokenizer_json_up_to_normalization(tokenizer_folder):
    tokenizer = open_tokenizer(tokenizer_folder("modernbert"))
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == unicodedata.normalize("NFC", text)


@pytest.mark.parametrize("name", ["wordpiece", "byte_level", "modernbert"])
def test_the_library_that_is_not_installed_is_named(tokenizer_folder, monkeypatch, name):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UserError, match="needs the package tokenizers, which is not installed: pip install tokenizers"):
        open_tokenizer(tokenizer_folder(name))


def test_a_dictionary_alone_does_not_tokenize(tmp_path):
    (tmp_path / "dict.txt").write_text("a 1\n")
    with pytest.raises(UserError, match=r"holds dict\.txt, but to tokenize it needs one of these beside it") as caught:
        open_tokenizer(tmp_path)
    assert "sentencepiece.bpe.model" in str(caught.value)


TEXTS_WITH_PLACES = [*SENTENCES[:4], "", "  two  spaces\tand\u00a0more ", "Zürich [SEP] </s> naïve", "a\nb"]


@pytest.mark.parametrize("scheme", WRITERS)
def test_places(scheme, tmp_path):
    tokenizer = open_tokenizer(WRITERS[scheme](tmp_path / scheme))
    for text, pieces in zip(TEXTS_WITH_PLACES, tokenizer.encode_pieces(TEXTS_WITH_PLACES), strict=True):
        assert " ".join(pieces.symbols) == tokenizer.encode(text)
        assert len(pieces.offsets) == len(pieces.symbols)
        assert all(0 <= start <= end <= len(text) for start, end in pieces.offsets)
        # Only white space is left out, and the pieces come in order.
        covered = {place for start, end in pieces.offsets for place in range(start, end)}
        assert not "".join(text[place] for place in range(len(text)) if place not in covered).strip()
        starts = [start for start, _ in pieces.offsets]
        assert starts == sorted(starts)


@pytest.mark.parametrize("scheme", ["wordpiece", "byte_level", "sentencepiece", "fastbpe"])
def test_the_text_of_a_word(scheme, tmp_path):
    tokenizer = open_tokenizer(WRITERS[scheme](tmp_path / scheme))
    text = "Naïve owners met, the quick dog"
    (pieces,) = tokenizer.encode_pieces([text])
    start = text.index("quick")
    inside = [place for place in pieces.offsets if place[0] < start + 5 and place[1] > start]
    assert text[inside[0][0] : inside[-1][1]].strip() == "quick"


def generation_options(*words: str) -> Namespace:
    parser = options.get_interactive_generation_parser(default_task="translation")
    return options.parse_args_and_arch(parser, ["data", "--path", "x.pt", "--bpe", "pretrained", *words])


def build_bpe(*words: str):
    return encoders.build_bpe(convert_namespace_to_omegaconf(generation_options(*words)).bpe)


@pytest.mark.parametrize("name", WRITERS)
def test_every_scheme_is_a_bpe_of_fairseq(tokenizer_folder, name):
    folder = tokenizer_folder(name)
    bpe, tokenizer = build_bpe("--tokenizer-dir", str(folder)), open_tokenizer(folder)
    symbols = tokenizer.encode(SENTENCES[0])
    assert bpe.encode(SENTENCES[0]) == symbols
    assert bpe.decode(symbols) == tokenizer.decode(symbols)


def test_fields_of_a_source_of_fairseq(tokenizer_folder, caplog):
    caplog.set_level("INFO")
    bpe = build_bpe("--tokenizer-dir", str(tokenizer_folder("byte_level")))
    assert bpe.encode("the [SEP] dog") == f"{bpe.encode('the')} </s> {bpe.encode('dog')}"
    assert "[SEP], which begins another field: 2 fields" in caplog.text


def test_the_folder_is_missing():
    with pytest.raises(UserError, match=r"--bpe pretrained needs --tokenizer-dir, .* found none"):
        build_bpe()


@pytest.fixture
def letters(tiny_corpus, tmp_path):
    """A byte-level tokenizer of the letters in `tiny_data`, without merges."""
    symbols = [line.split()[0] for line in (tiny_corpus / "dict.txt").read_text().splitlines()]
    (tmp_path / "vocab.json").write_text(json.dumps({symbol: number for number, symbol in enumerate(symbols)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    return tmp_path


def test_generates_plain_text_from_raw_text(call_command, tiny_data, tiny_training, letters):
    (letters / "lines.txt").write_text("abc\njihg[SEP]a\n")
    words = ("--path", tiny_training.checkpoint, "--cpu", "--min-len", 3, "--bpe", "pretrained", "--tokenizer-dir", ".")
    interactive = call_command("interactive", tiny_data, *words, "--input", "lines.txt").stdout.splitlines()
    assert "S-0\ta b c" in interactive
    assert "S-1\tj i h g [SEP] a" in interactive
    generated = call_command("generate", tiny_data, *words, "--batch-size", 10).stdout.splitlines()
    for lines in (interactive, generated):
        texts = {line[:3]: line.split("\t")[-1] for line in lines if line[:2] in ("H-", "D-")}
        assert len(texts["H-0"]) > 1
        assert texts["D-0"] == texts["H-0"].replace(" ", "")


def test_the_command_line_knows_it(run_command):
    assert "--tokenizer-dir" in run_command("interactive", "--bpe", "pretrained", "--help").stdout
