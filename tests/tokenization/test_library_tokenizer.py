"""Byte-level BPE, with the pieces of its original tokenizers, and tokenizers fully described by a tokenizer.json."""

import gzip
import json
import shutil
from itertools import islice
from pathlib import Path

import pytest
from tokenizer_folders import SENTENCES, random_texts

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.tokenization.folder import open_tokenizer
from s2sft_fairseq.tokenization.symbols import write_symbol


@pytest.mark.parametrize("name", ["modernbert", "gemma"])
def test_pieces_are_those_of_transformers(tokenizer_folder, name):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    path = tokenizer_folder(name) / "tokenizer.json"
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path))
    ours = open_tokenizer(path.parent)
    for text in [*SENTENCES[:4], *random_texts(300)]:
        expected = [write_symbol(token) for token in theirs.tokenize(text, split_special_tokens=True)]
        assert ours.encode(text).split(" ") == (expected or [""])


def test_white_space_within_tokens(tokenizer_folder):
    modernbert, gemma = (open_tokenizer(tokenizer_folder(name)) for name in ("modernbert", "gemma"))
    assert modernbert.encode("a    b").split() == ["a", "<U+0020>" * 4, "b"]
    assert modernbert.decode("a <U+0020><U+0020> b") == "a  b"
    assert gemma.encode("ab\n\n\tab").split() == ["ab", "<U+000A><U+000A>", "<U+0009>", "ab"]
    assert gemma.decode("ab <U+000A> ▁ab") == "ab\n ab"


def test_unigram(tmp_path):
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "▁the", "▁do", "g", "▁"]
    model = tokenizers.models.Unigram([(token, -float(number)) for number, token in enumerate(tokens)], unk_id=3)
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer, made.decoder = tokenizers.pre_tokenizers.Metaspace(), tokenizers.decoders.Metaspace()
    made.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>", "<mask>"])
    made.save(str(tmp_path / "tokenizer.json"))
    tokenizer = open_tokenizer(tmp_path)
    assert tokenizer.encode("the dog</s>zz") == "▁the ▁do g <unk>"
    assert tokenizer.decode("▁the ▁do g") == "the dog"


def test_a_tokenizer_without_a_decoder(tmp_path, tokenizer_folder):
    document = json.loads((tokenizer_folder("modernbert") / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**document, "decoder": None}))
    assert open_tokenizer(tmp_path).decode("a b") == "a b"


def test_a_file_that_the_library_cannot_use(tokenizer_folder, tmp_path):
    shutil.copy(tokenizer_folder("modernbert") / "tokenizer.json", tmp_path)
    document = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").write_text(json.dumps({**document, "pre_tokenizer": {"type": "Unheard"}}))
    with pytest.raises(UserError, match=r"tokenizer\.json cannot be used by the package tokenizers: "):
        open_tokenizer(tmp_path)


SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture
def roberta(tokenizer_folder, tmp_path) -> Path:
    """A folder that tests may change."""
    return Path(shutil.copytree(tokenizer_folder("byte_level"), tmp_path / "roberta"))


def test_pieces_of_byte_level_bpe_are_those_of_transformers(roberta):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    ours, theirs = open_tokenizer(roberta), transformers.RobertaTokenizer.from_pretrained(roberta)
    for text in [*SENTENCES[:4], *random_texts(500)]:
        assert ours.encode(text).split(" ") == (theirs.tokenize(text, split_special_tokens=True) or [""])


def test_a_dictionary_of_numbers_gets_numbers(tokenizer_folder):
    pieces, numbers = (open_tokenizer(tokenizer_folder(name)) for name in ("byte_level", "gpt2"))
    ids = json.loads((tokenizer_folder("gpt2") / "encoder.json").read_text())
    for text in [*SENTENCES[:4], *random_texts(100)]:
        expected = [str(ids.get(piece, piece)) for piece in pieces.encode(text).split()]
        assert numbers.encode(text).split() == expected


def test_a_dictionary_of_pieces_gets_pieces(roberta):
    pieces = open_tokenizer(roberta).encode(SENTENCES[1])
    symbols = list(json.loads((roberta / "vocab.json").read_text()))
    (roberta / "dict.txt").write_text("".join(f"{symbol} 1\n" for symbol in symbols))
    assert open_tokenizer(roberta).encode(SENTENCES[1]) == pieces


def test_ids_of_the_real_gpt2(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    folder = SHARED / "vocab" / "gpt2"
    if not folder.is_dir():
        pytest.skip("../shared/data, the folder with real vocabularies and text, is not beside this checkout")
    ours = open_tokenizer(folder)
    for name, other in (("encoder.json", "vocab.json"), ("vocab.bpe", "merges.txt")):
        shutil.copy(folder / name, tmp_path / other)
    theirs = transformers.GPT2Tokenizer.from_pretrained(tmp_path)
    with gzip.open(SHARED / "squad_qg" / "valid.src.gz", "rt", encoding="utf-8") as file:
        texts = [line.rstrip("\n") for line in islice(file, 0, 4000, 100)]
    texts += [text.replace("<mask>", "").replace("</s>", "") for text in random_texts(200)]
    for text in texts:
        assert ours.encode(text).split() == list(map(str, theirs.encode(text)))


def test_a_space_before_the_first_word_is_removed_again(roberta):
    (roberta / "tokenizer_config.json").write_text(json.dumps({"add_prefix_space": True}))
    tokenizer = open_tokenizer(roberta)
    assert tokenizer.encode("the dog").startswith("Ġ")
    assert tokenizer.decode(tokenizer.encode("the dog")) == "the dog"


def test_added_tokens_stay_whole(roberta):
    symbols = len(json.loads((roberta / "vocab.json").read_text()))
    (roberta / "added_tokens.json").write_text(json.dumps({"<é ö>": symbols}))
    tokenizer = open_tokenizer(roberta)
    assert "<é<U+0020>ö>" in tokenizer.encode("a <é ö>b").split()
    assert tokenizer.decode(tokenizer.encode("a <é ö>b")) == "a <é ö>b"


def test_symbols_that_are_not_pieces_are_kept(roberta):
    assert open_tokenizer(roberta).decode("a <<unk>> Ġb") == "a<<unk>> b"
    assert open_tokenizer(roberta).decode("ð") == "\ufffd"


def test_a_byte_that_the_vocabulary_lacks_is_unknown(tmp_path):
    ids = {token: number for number, token in enumerate(["<s>", "<pad>", "</s>", "<unk>", "<mask>", "a"])}
    (tmp_path / "vocab.json").write_text(json.dumps(ids))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    assert open_tokenizer(tmp_path).encode("aba") == "a <unk> a"


@pytest.mark.parametrize("unknown", [None, "<unk>"])
def test_a_character_that_a_bpe_without_unknown_token_lacks(tmp_path, unknown):
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "a", "b"]
    ids = {token: number for number, token in enumerate(tokens)}
    added = [{"id": 7, "content": "<more>", "special": False}]
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    model = {"type": "BPE", "vocab": ids, "merges": [], "unk_token": unknown}
    document = {"version": "1.0", "added_tokens": [{**token, **flags} for token in added], "model": model}
    (tmp_path / "tokenizer.json").write_text(json.dumps(document))
    tokenizer = open_tokenizer(tmp_path)
    assert tokenizer.encode("axb<more>") == "a <unk> b <more>"
    (pieces,) = tokenizer.encode_pieces(["axb"])
    assert pieces.offsets == [(0, 1), (1, 2), (2, 3)]


def test_damaged_merges(roberta):
    path = roberta / "merges.txt"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], "one", "a b c", *lines[1:]]))
    with pytest.raises(UserError) as caught:
        open_tokenizer(roberta)
    assert str(caught.value).splitlines() == [
        f"2 malformed lines in {path}:",
        f"  - {path}, line 2: needs two pieces to merge, found 'one'",
        f"  - {path}, line 3: needs two pieces to merge, found 'a b c'",
    ]
    path.write_text("#version: 0.2\nnot known\n")
    with pytest.raises(UserError, match=r"merges\.txt cannot be used by the package tokenizers: "):
        open_tokenizer(roberta)
    path.write_bytes(b"#version\n\xff \xff\n")
    with pytest.raises(UserError, match=r"merges\.txt: cannot be read as UTF-8 text"):
        open_tokenizer(roberta)
