"""Tokenizers in the format of transformers: the ids of texts equal those of this package."""

import pytest
from tokenizer_folders import SENTENCES, WRITERS

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from s2sft_fairseq.data.dictionary import PretrainedDictionary  # noqa: E402
from s2sft_fairseq.errors import UserError  # noqa: E402
from s2sft_fairseq.exports.self_contained import write_tokenizer_of_sources  # noqa: E402
from s2sft_fairseq.tokenization.folder import open_tokenizer  # noqa: E402
from s2sft_fairseq.tokenization.vocabulary import read_vocabulary  # noqa: E402


@pytest.mark.parametrize("scheme", ["wordpiece", "byte_level", "gpt2", "sentencepiece", "modernbert", "gemma"])
def test_the_same_ids(tmp_path, scheme):
    folder = WRITERS[scheme](tmp_path / "folder")
    (tmp_path / "out").mkdir()
    write_tokenizer_of_sources(folder, tmp_path / "out", 20)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    ours, dictionary = open_tokenizer(folder), PretrainedDictionary.of(read_vocabulary(folder).symbols)
    sep = dictionary.eos_word
    texts = [*SENTENCES[:4], "", f"the quick {sep} token", f"{sep} {sep}", "ab a b"]
    for text in texts:
        expected = [dictionary.index(symbol) for symbol in ours.encode(text).split()]
        assert theirs(text)["input_ids"] == [dictionary.bos(), *expected, dictionary.eos()]
    cut = theirs(SENTENCES[0], truncation=True)
    assert (len(cut["input_ids"]), cut["input_ids"][-1]) == (20, dictionary.eos())
    assert set(cut) == {"input_ids", "attention_mask"}
    first, second = (theirs(text)["input_ids"] for text in SENTENCES[:2])
    pair = theirs(*SENTENCES[:2])["input_ids"]
    assert pair == [*first, *second[1:]]
    padded = theirs(SENTENCES[:2], padding=True)["input_ids"]
    assert dictionary.pad() in padded[0] + padded[1]


def test_decoded_texts(tmp_path):
    for scheme, text in (("wordpiece", "the quick tokenization, abc."), ("byte_level", SENTENCES[0])):
        folder = WRITERS[scheme](tmp_path / scheme / "folder")
        write_tokenizer_of_sources(folder, tmp_path / scheme, 99)
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / scheme)
        assert theirs.decode(theirs(text)["input_ids"], skip_special_tokens=True).strip() == text


def test_what_transformers_lacks(tmp_path):
    folder = WRITERS["fastbpe"](tmp_path / "fastbpe")
    with pytest.raises(UserError, match=r"has a tokenizer \(fastbpe\) that tokenizer.json cannot describe"):
        write_tokenizer_of_sources(folder, tmp_path, 20)
    folder = WRITERS["wordpiece"](tmp_path / "moved")
    symbols = read_vocabulary(folder).symbols
    (folder / "dict.txt").write_text("".join(f"{symbol} 1\n" for symbol in [*symbols[:5], *symbols[:4:-1]]))
    with pytest.raises(UserError, match="has a tokenizer whose ids are not those of the model"):
        write_tokenizer_of_sources(folder, tmp_path, 20)
