"""Dictionaries whose ids are easily misread: repeated symbols, fairseq's flags, byte order marks, line ends."""

import json

import pytest
from fairseq.data import Dictionary
from tokenizer_folders import write_byte_level, write_fastbpe, write_sentencepiece, write_wordpiece

from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.tokenization.folder import open_tokenizer
from s2sft_fairseq.tokenization.vocabulary import read_vocabulary

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
MARK = "\ufeff"


def test_a_repeated_token_has_the_id_of_the_training(tmp_path):
    """The programs of BERT and ERNIE, transformers and tokenizers let the last line count."""
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, "a", "b", "a", "c"]))
    tokenizer = open_tokenizer(tmp_path)
    assert [tokenizer.dictionary.index(symbol) for symbol in tokenizer.encode("a b c").split()] == [7, 6, 8]
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    legacy = pytest.importorskip("transformers.models.bert.tokenization_bert_legacy")
    assert transformers.BertTokenizerFast(str(tmp_path / "vocab.txt")).convert_tokens_to_ids(["a", "b"]) == [7, 6]
    assert legacy.BertTokenizerLegacy(str(tmp_path / "vocab.txt")).convert_tokens_to_ids(["a", "b"]) == [7, 6]


def test_a_symbol_that_fairseq_overwrites(tmp_path):
    """It has two ids, of which the text gets the last one, as in fairseq."""
    path = tmp_path / "dict.txt"
    path.write_text("a 3\nb 2\na 1 #fairseq:overwrite\nc 1\n")
    theirs, ours = Dictionary.load(str(path)), PretrainedDictionary.load(str(path))
    assert [ours.index(symbol) for symbol in "abc"] == [theirs.index(symbol) for symbol in "abc"] == [6, 5, 7]


def test_special_symbols_that_fairseq_overwrites(tmp_path):
    """They get further ids after the first four; this moved all ids by four before."""
    path = tmp_path / "dict.txt"
    lines = [f"{symbol} 1 #fairseq:overwrite" for symbol in ("<s>", "<pad>", "</s>", "<unk>")]
    path.write_text("\n".join([*lines, "a 1", ""]))
    assert Dictionary.load(str(path)).index("a") == 8
    with pytest.raises(UserError, match="gives symbols that fairseq puts first another id") as caught:
        PretrainedDictionary.load(str(path))
    assert [problem.split(": ")[0] for problem in caught.value.problems] == [f"{path}, line {n}" for n in (1, 2, 3, 4)]


def test_line_ends_within_a_symbol(tmp_path):
    """Other programs end a line there: a file of one line for us, of three for them."""
    path = tmp_path / "dict.txt"
    path.write_bytes(b"a 1\rb 1\rc 1\n")
    assert Dictionary.load(str(path)).index("c") == 6
    with pytest.raises(UserError, match="line 1: needs '<symbol> <count>'"):
        PretrainedDictionary.load(str(path))


@pytest.mark.parametrize(
    "options",
    [{"bos_id": -1, "eos_id": 1}, {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3}, {"control_symbols": ["<pad>"]}],
)
def test_first_pieces_that_are_not_those_of_xlmr(tmp_path, options):
    """Its ids would move, or a piece of text would become unknown."""
    with pytest.raises(UserError, match=r"sentencepiece\.bpe\.model must have <unk>, <s>, </s> as its first pieces"):
        open_tokenizer(write_sentencepiece(tmp_path, **options))


@pytest.mark.parametrize("lines", [["a 1", "b 1", "a 1"], ["<s> 1", "a 1"]])
def test_symbols_that_fairseq_refuses(tmp_path, lines):
    path = tmp_path / "dict.txt"
    path.write_text("\n".join([*lines, ""]))
    with pytest.raises(RuntimeError, match="Duplicate word"):
        Dictionary.load(str(path))
    with pytest.raises(UserError, match="repeats symbols without the flag #fairseq:overwrite"):
        PretrainedDictionary.load(str(path))


def test_ids_of_several_tokens(tmp_path):
    write_byte_level(tmp_path)
    ids = json.loads((tmp_path / "vocab.json").read_text())
    (tmp_path / "vocab.json").write_text(json.dumps({**ids, "another": 7}))
    with pytest.raises(UserError, match=r"vocab.json: .* and 'another' have the id 7"):
        read_vocabulary(tmp_path)


def marked(path):
    path.write_text(MARK + path.read_text())


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (write_wordpiece, "vocab.txt"),
        (write_byte_level, "vocab.json"),
        (write_byte_level, "merges.txt"),
        (write_fastbpe, "codes"),
        (write_fastbpe, "dict.txt"),
    ],
)
def test_a_byte_order_mark(tmp_path, write, name):
    write(tmp_path)
    marked(tmp_path / name)
    with pytest.raises(UserError, match=rf"{name}: starts with a byte order mark \(U\+FEFF\), a BOM"):
        open_tokenizer(tmp_path)


@pytest.mark.parametrize("name", ["added_tokens.json", "tokenizer_config.json"])
def test_a_byte_order_mark_in_companions(tmp_path, name):
    write_wordpiece(tmp_path)
    (tmp_path / name).write_text(f"{MARK}{{}}")
    with pytest.raises(UserError, match=rf"{name}: starts with a byte order mark"):
        open_tokenizer(tmp_path)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["", "{end}", "{end}{end}"])
def test_line_ends_of_a_vocabulary(tmp_path, end, last):
    """Empty lines in between are ids without a token, as in BERT; at the end of the file they are nothing."""
    text = end.join([*SPECIAL, "a", "", "b"]) + last.format(end=end)
    (tmp_path / "vocab.txt").write_bytes(text.encode())
    assert read_vocabulary(tmp_path).symbols == [*SPECIAL, "a", "madeupword0000", "b"]


def test_line_ends_of_merges_and_codes(tmp_path):
    for write, name in ((write_byte_level, "merges.txt"), (write_fastbpe, "codes"), (write_fastbpe, "dict.txt")):
        folder = write(tmp_path / name)
        expected = open_tokenizer(folder).encode("the quick dog")
        text = (folder / name).read_text().rstrip("\n")
        (folder / name).write_bytes(text.replace("\n", "\r\n").encode())
        assert open_tokenizer(folder).encode("the quick dog") == expected
