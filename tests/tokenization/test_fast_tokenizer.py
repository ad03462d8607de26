"""A tokenizer written as ``tokenizer.json`` gives our ids."""

import json

import pytest
from tokenizer_folders import (
    SENTENCES,
    random_texts,
    write_byte_level,
    write_fastbpe,
    write_gpt2,
    write_modernbert,
    write_sentencepiece,
    write_wordpiece,
)

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.tokenization import unigram
from s2sft_fairseq.tokenization.fast_tokenizer import write_fast_tokenizer
from s2sft_fairseq.tokenization.folder import open_tokenizer
from s2sft_fairseq.tokenization.growth import check_growth
from s2sft_fairseq.tokenization.samples import samples
from s2sft_fairseq.tokenization.vocabulary import read_vocabulary

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

ADDED = "__de__"


def written(source, destination, prefix=(), max_source=1000):
    """Return the written tokenizer, opened by transformers, and our tokenizer's ids."""
    destination.mkdir()
    vocabulary = read_vocabulary(source)
    write_fast_tokenizer(source, vocabulary, destination, prefix, max_source)
    ours = open_tokenizer(source)
    index = ours.dictionary.index
    theirs = transformers.AutoTokenizer.from_pretrained(destination)
    return theirs, ours.dictionary, lambda text: [index(symbol) for symbol in ours.encode(text).split()]


@pytest.mark.parametrize("write", [write_sentencepiece, write_wordpiece, write_byte_level, write_modernbert])
def test_ids(write, tmp_path):
    source = write(tmp_path / "source")
    number = len(read_vocabulary(source).symbols)
    (source / "added_tokens.json").write_text(f'{{"{ADDED}": {number}}}')
    theirs, dictionary, ids = written(source, tmp_path / "fast", prefix=[ADDED])
    texts = [*SENTENCES[:4], f"{ADDED} a text {dictionary.eos_word}", "", "  two  spaces "]
    for text in texts:
        assert theirs(text)["input_ids"] == [number, *ids(text), dictionary.eos()], text
    assert theirs("a", "b")["input_ids"] == [number, *ids("a"), dictionary.eos(), *ids("b"), dictionary.eos()]
    assert set(theirs("a")) == {"input_ids", "attention_mask"}
    special = theirs.bos_token_id, theirs.pad_token_id, theirs.eos_token_id, theirs.unk_token_id, theirs.mask_token_id
    assert special == (*(getattr(dictionary, name)() for name in ("bos", "pad", "eos", "unk", "mask")),)


@pytest.mark.parametrize("write", [write_sentencepiece, write_wordpiece])
def test_any_text(write, tmp_path):
    """Only printable characters: programs differ in whether they drop others."""
    theirs, _, ids = written(write(tmp_path / "source"), tmp_path / "fast")
    texts = ["".join(filter(str.isprintable, text)) for text in random_texts(300)]
    for text in texts:
        assert theirs(text)["input_ids"][:-1] == ids(text), text


def test_long_texts_and_reading_the_file(tmp_path):
    theirs, dictionary, ids = written(write_sentencepiece(tmp_path / "source"), tmp_path / "fast", max_source=6)
    long = theirs(SENTENCES[0], truncation=True)["input_ids"]
    assert long == [*ids(SENTENCES[0])[:5], dictionary.eos()]
    text = "the dog jumps"
    assert theirs.decode(theirs(text)["input_ids"], skip_special_tokens=True) == text


def test_schemes_without_a_tokenizer_json(tmp_path):
    for number, (write, reason) in enumerate(
        [
            (write_gpt2, "ids are not those of the model"),
            (write_fastbpe, r"\(fastbpe\) that tokenizer\.json cannot describe"),
            (lambda folder: write_sentencepiece(folder, model_type="bpe"), "is no Unigram model"),
        ]
    ):
        with pytest.raises(UserError, match=reason):
            written(write(tmp_path / f"source{number}"), tmp_path / f"fast{number}")


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"normalization_rule_name": "nmt_nfkc_cf"},
        {"normalization_rule_name": "nfkc"},
        {"normalization_rule_name": "identity"},
        {"split_by_whitespace": False},
        {"control_symbols": ["<ctl>"]},
    ],
)
def test_sentencepiece_reads_every_text_as_before(options, tmp_path):
    """Blanks, marks, scripts, unknown characters, and names of pieces that no text has."""
    source = write_sentencepiece(tmp_path / "source", **options)
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary, ours = read_vocabulary(source), open_tokenizer(source)
    write_fast_tokenizer(source, vocabulary, tmp_path, [], 1000)
    library = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    library.encode_special_tokens = True
    check_growth(json.loads((tmp_path / "tokenizer.json").read_text()), tmp_path / "tokenizer.json")
    texts = [*samples(ours.dictionary), *SENTENCES[:4], "a<ctl>b", *random_texts(300)]
    for text in texts:
        expected = [ours.dictionary.index(symbol) for symbol in ours.encode(text).split()]
        assert library.encode(text, add_special_tokens=False).ids == expected, ascii(text)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"add_dummy_prefix": False}, "add_dummy_prefix=false"),
        ({"byte_fallback": True, "vocab_size": 340}, "byte_fallback=true"),
        ({"user_defined_symbols": ["<ud>"]}, "1 user-defined symbols (user_defined_symbols), such as <ud>"),
        ({"remove_extra_whitespaces": False}, "remove_extra_whitespaces=false"),
        ({"treat_whitespace_as_suffix": True}, "treat_whitespace_as_suffix=true"),
    ],
)
def test_settings_of_sentencepiece_that_the_format_lacks(options, named, tmp_path):
    source = write_sentencepiece(tmp_path / "source", **options)
    with pytest.raises(UserError) as error:
        write_fast_tokenizer(source, read_vocabulary(source), tmp_path, [], 1000)
    assert named in str(error.value)
    assert not (tmp_path / "tokenizer.json").exists()


def test_a_normalization_of_its_own(tmp_path):
    rules = tmp_path / "rules.tsv"
    rules.write_text("41\t42\n")  # A becomes B
    source = write_sentencepiece(tmp_path / "source", normalization_rule_tsv=str(rules))
    with pytest.raises(UserError, match=r"normalization other than nfkc, .*normalization_rule_name=user_defined"):
        write_fast_tokenizer(source, read_vocabulary(source), tmp_path, [], 1000)


def test_boundaries_that_no_piece_crosses():
    """A symbol is split where no piece fits; pieces that differ from it elsewhere do not count."""
    pieces = ["<s", "s", ">", "<strong>"]
    assert list(unigram._boundaries(["<s>", "</s>"], pieces)) == ["(?<=</)(?:s>)", "(?<=<s)(?:>)"]
    assert list(unigram._boundaries(["ab"], ["a", "xaby"])) == []
    assert list(unigram._boundaries(["ab"], [])) == []  # unknown characters are one token together
    assert list(unigram._boundaries(["x"], ["y"])) == []


def test_texts_that_the_format_cannot_give_their_ids(tmp_path, monkeypatch):
    """All characters of a special symbol are unknown to the model, and so its name cannot be hidden."""
    monkeypatch.setattr("tokenizer_folders.SENTENCES", ["12 34 5678 9"] * 20)
    source = write_sentencepiece(tmp_path / "source", vocab_size=20, hard_vocab_limit=False)
    with pytest.raises(UserError, match=r"cannot describe: '<s>' would be read as ▁ <s>, but is ▁ <unk>"):
        write_fast_tokenizer(source, read_vocabulary(source), tmp_path, [], 1000)
    assert not (tmp_path / "tokenizer.json").exists()
