"""The vocabulary of a folder, and its ids."""

import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from tokenizer_folders import ROBERTA_SPECIAL, SPECIAL, write_sentencepiece

from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.tokenization.vocabulary import read_config, read_vocabulary

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data" / "vocab"


def write(folder: Path, **files: object) -> Path:
    """Write texts, or anything else as JSON; an underscore in a name stands for a dot."""
    for name, content in files.items():
        path = folder / ".".join(name.rsplit("_", 1))
        path.write_bytes((content if isinstance(content, str) else json.dumps(content)).encode())
    return folder


def fails(folder: Path) -> str:
    with pytest.raises(UserError) as caught:
        read_vocabulary(folder)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "scheme", "files"),
    [
        ("wordpiece", "wordpiece", ["vocab.txt"]),
        ("byte_level", "byte_level_bpe", ["vocab.json", "merges.txt"]),
        ("gpt2", "byte_level_bpe", ["encoder.json", "vocab.bpe"]),
        ("sentencepiece", "sentencepiece", ["sentencepiece.bpe.model"]),
        ("fastbpe", "fastbpe", ["codes"]),
        ("modernbert", "tokenizer_json", ["tokenizer.json"]),
        ("gemma", "tokenizer_json", ["tokenizer.json"]),
    ],
)
def test_every_scheme_makes_a_dictionary(tokenizer_folder, tmp_path, name, scheme, files):
    vocabulary = read_vocabulary(tokenizer_folder(name))
    assert (vocabulary.scheme, vocabulary.files) == (scheme, files)
    assert vocabulary.lower is (True if name == "wordpiece" else None)
    # A dict.txt of these symbols is loaded with the same ids.
    PretrainedDictionary.of(vocabulary.symbols).save(str(tmp_path / "dict.txt"))
    assert PretrainedDictionary.load(str(tmp_path / "dict.txt")).symbols == vocabulary.symbols


def test_a_token_that_comes_twice_shifts_no_id(tmp_path):
    write(tmp_path, vocab_txt="\n".join([*SPECIAL, "[unused99]", "a", "[unused99]", "b"]) + "\n")
    symbols = read_vocabulary(tmp_path).symbols
    assert symbols[5:] == ["[unused99]", "a", "[unused99]", "b"]
    assert PretrainedDictionary.of(symbols).index("b") == 8


def test_ids_after_tabs(tmp_path):
    lines = [f"{token}\t{number}\n" for number, token in enumerate([*SPECIAL, "的", "##a"])]
    assert read_vocabulary(write(tmp_path, vocab_txt="".join(lines))).symbols == [*SPECIAL, "的", "##a"]
    write(tmp_path, vocab_txt="".join([*lines, "x\t9\n"]))
    assert fails(tmp_path) == f"{tmp_path}/vocab.txt, line 8: the id after the tab must be 7, but is 9"


def test_white_space_and_empty_lines_of_a_vocabulary(tmp_path):
    write(tmp_path, vocab_txt="\r\n".join([*SPECIAL, "\u2028", "", "madeupword0000", "##\u3000"]))
    assert read_vocabulary(tmp_path).symbols[5:] == ["<U+2028>", "madeupword0001", "madeupword0000", "##<U+3000>"]


def test_gaps_between_ids(tmp_path):
    ids = {token: number for number, token in enumerate(ROBERTA_SPECIAL[:4])} | {"<mask>": 7, "a": 5}
    write(tmp_path, vocab_json=ids, merges_txt="#version: 0.2\n")
    expected = [*ROBERTA_SPECIAL[:4], "madeupword0000", "a", "madeupword0001", "<mask>"]
    assert read_vocabulary(tmp_path).symbols == expected
    write(tmp_path, vocab_json={"a": 0, "b": 10**9})
    assert "vocab.json must give its 2 tokens ids from 0 on, but goes up to 1000000000" in fails(tmp_path)


def test_ids_of_xlmr(tokenizer_folder):
    from sentencepiece import SentencePieceProcessor

    folder = tokenizer_folder("sentencepiece")
    model = SentencePieceProcessor(str(folder / "sentencepiece.bpe.model"))
    symbols = read_vocabulary(folder).symbols
    assert symbols[:4] == ROBERTA_SPECIAL[:4]
    assert symbols[-1] == "<mask>"
    assert len(symbols) == len(model) + 2
    assert [symbols.index(model.id_to_piece(number)) for number in (3, 9)] == [4, 10]  # in fairseq one more


def test_another_model_has_its_own_ids(tmp_path):
    names = {"pad": 0, "bos": 1, "eos": 2, "unk": 3}
    options = {f"{name}_id": number for name, number in names.items()}
    pieces = {"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"}
    write_sentencepiece(tmp_path, "spm", **options, **pieces)
    write(tmp_path, added_tokens_json={"[MASK]": 80})
    vocabulary = read_vocabulary(tmp_path)
    assert vocabulary.files == ["spm.model", "added_tokens.json"]
    assert vocabulary.symbols[:4] == ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    assert (len(vocabulary.symbols), vocabulary.symbols[80]) == (81, "[MASK]")


def test_unigram_of_a_tokenizer_json(tmp_path):
    vocab = [[token, -1.0] for token in [*ROBERTA_SPECIAL[:4], "▁a"]]
    added = [{"id": 5, "content": "<mask>"}, {"id": 0, "content": "<s>"}]
    write(tmp_path, tokenizer_json={"model": {"type": "Unigram", "vocab": vocab}, "added_tokens": added})
    vocabulary = read_vocabulary(tmp_path)
    assert vocabulary.symbols == [*ROBERTA_SPECIAL[:4], "▁a", "<mask>"]
    assert vocabulary.scheme == "tokenizer_json"


@pytest.mark.parametrize("lower", [True, False])
def test_wordpiece_of_a_tokenizer_json(tmp_path, lower):
    model = {"vocab": {token: number for number, token in enumerate(SPECIAL)}, "continuing_subword_prefix": "##"}
    normalizer = {"type": "Sequence", "normalizers": [{"type": "BertNormalizer", "lowercase": lower}]}
    write(tmp_path, tokenizer_json={"model": model, "normalizer": normalizer})
    vocabulary = read_vocabulary(tmp_path)
    assert (vocabulary.scheme, vocabulary.files, vocabulary.lower) == ("wordpiece", ["tokenizer.json"], lower)


def test_added_tokens_follow_the_vocabulary(tmp_path):
    write(tmp_path, vocab_txt="\n".join([*SPECIAL, "a"]), tokenizer_config_json={})
    write(tmp_path, added_tokens_json={"<b c>": 7, "<new>": 6, "[SEP]": 3})
    vocabulary = read_vocabulary(tmp_path)
    assert vocabulary.symbols == [*SPECIAL, "a", "<new>", "<b<U+0020>c>"]
    assert vocabulary.added == ["[SEP]", "<new>", "<b c>"]
    assert vocabulary.files == ["vocab.txt", "tokenizer_config.json", "added_tokens.json"]
    # The dict.txt of a converted folder has them already.
    write(tmp_path, dict_txt="".join(f"{symbol} 1\n" for symbol in vocabulary.symbols))
    assert read_vocabulary(tmp_path).symbols == vocabulary.symbols

    write(tmp_path, added_tokens_json={"<new>": 9, "b": 5})
    text = fails(tmp_path)
    assert "added_tokens.json: b has the id 5, which is that of a" in text
    assert "added_tokens.json: <new> must have the next free id, 8, but has 9" in text


def test_dict_txt_decides(tokenizer_folder, tmp_path):
    vocabulary = read_vocabulary(tokenizer_folder("gpt2"))
    lines = (tokenizer_folder("gpt2") / "dict.txt").read_text().splitlines()
    numbers = [line.split(" ")[0] for line in lines]
    assert vocabulary.symbols == [*ROBERTA_SPECIAL[:4], *numbers, "<mask>"]
    write(tmp_path, dict_txt="a 1\n")
    alone = read_vocabulary(tmp_path)
    assert (alone.symbols, alone.scheme, alone.files) == ([*ROBERTA_SPECIAL[:4], "a", "<mask>"], None, [])


@pytest.mark.parametrize(("name", "lower"), [("uncased", True), ("cased", False), ("chinese", True)])
def test_the_case_of_real_vocabularies(tmp_path, name, lower):
    path = SHARED / f"bert-base-{name}-vocab.txt"
    if not path.is_file():
        pytest.skip("../shared/data, the folder with real vocabularies and text, is not beside this checkout")
    shutil.copy(path, tmp_path / "vocab.txt")
    assert read_vocabulary(tmp_path).lower is lower
    write(tmp_path, tokenizer_config_json={"do_lower_case": not lower})
    assert read_vocabulary(tmp_path).lower is not lower


def test_a_folder_without_a_tokenizer(tmp_path):
    assert fails(tmp_path / "none") == f"tokenizer folder {tmp_path}/none does not exist"
    path = tmp_path / "file"
    path.write_text("")
    assert fails(path) == f"tokenizer folder {path} must be a folder"
    write(tmp_path, merges_txt="")
    text = fails(tmp_path)
    assert text.startswith(f"{tmp_path} must hold a tokenizer, one of:\n  - vocab.txt (WordPiece)\n  - vocab.json and")
    assert text.endswith("found file, merges.txt")


def test_incomplete_and_contradictory_files(tmp_path):
    write(tmp_path, encoder_json={}, vocab_bpe="")
    assert fails(tmp_path).startswith(f"{tmp_path} must hold dict.txt beside encoder.json, vocab.bpe")
    for name in ("encoder.json", "vocab.bpe"):
        (tmp_path / name).unlink()
    write(tmp_path, a_codes="", b_codes="")
    assert fails(tmp_path).endswith("must hold one of its 2 files of fastBPE codes: a.codes, b.codes")


@pytest.mark.parametrize(
    ("files", "text"),
    [
        ({"vocab_json": "{", "merges_txt": ""}, "vocab.json must be JSON: "),
        ({"vocab_json": ["a"], "merges_txt": ""}, "vocab.json must hold a JSON object of tokens and their ids"),
        ({"vocab_json": {"a": "0"}, "merges_txt": ""}, "vocab.json must hold a JSON object of tokens and their ids"),
        ({"tokenizer_json": {}}, "tokenizer.json must be a file of Hugging Face's tokenizers"),
        ({"tokenizer_json": {"model": {"vocab": 3}}}, "tokenizer.json must hold the tokens of"),
        ({"vocab_txt": "a\n", "tokenizer_config_json": []}, "tokenizer_config.json must hold a JSON object"),
        ({"x_model": "no model"}, "x.model must be a SentencePiece model, but is another file or damaged"),
        ({"codes": "a b 1\n", "dict_txt": "no count\n"}, "needs '<symbol> <count>'"),
    ],
)
def test_damaged_files(tmp_path, files, text):
    assert text in fails(write(tmp_path, **files))


def test_a_vocabulary_that_is_not_utf8(tmp_path):
    (tmp_path / "vocab.txt").write_bytes(b"[PAD]\n\xff\n")
    assert fails(tmp_path) == f"{tmp_path}/vocab.txt must be UTF-8, but byte 6 is not"


def test_sentencepiece_is_not_installed(tokenizer_folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(UserError, match=re.escape("sentencepiece, which is not installed: pip install")):
        read_vocabulary(tokenizer_folder("sentencepiece"))


def test_a_tokenizer_without_a_maximum_length(tmp_path):
    """Its model_max_length, as transformers writes it, has more than 64 bits."""
    transformers = pytest.importorskip("transformers")
    (tmp_path / "vocab.txt").write_text("\n".join([*SPECIAL, "a", ""]))
    transformers.BertTokenizerFast(str(tmp_path / "vocab.txt")).save_pretrained(tmp_path)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["model_max_length"] == int(1e30)
    assert read_config(tmp_path)["model_max_length"] == 1e30
    read_vocabulary(tmp_path)
