"""SentencePiece models, with the pieces of the library itself."""

import json
import shutil
from pathlib import Path

import pytest
from tokenizer_folders import SENTENCES, random_texts, write_sentencepiece

from s2sft_fairseq.tokenization.folder import open_tokenizer

pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")


def test_ids_are_those_of_the_model_plus_one(tokenizer_folder):
    tokenizer = open_tokenizer(tokenizer_folder("sentencepiece"))
    for text in [*SENTENCES[:4], *(text.replace("</s>", "").replace("<mask>", "") for text in random_texts(300))]:
        expected = [3 if number == 0 else number + 1 for number in tokenizer.model.encode(text)]  # 0, 3: unknown
        line = tokenizer.encode(text)
        assert [tokenizer.dictionary.index(symbol) for symbol in line.split()] == expected


def test_decode_is_that_of_the_model(tokenizer_folder):
    tokenizer = open_tokenizer(tokenizer_folder("sentencepiece"))
    for text in SENTENCES[:4]:
        pieces = tokenizer.model.encode(text, out_type=str)
        assert tokenizer.decode(" ".join(pieces)) == tokenizer.model.decode(pieces)


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_any_text_is_restored_by_a_model_with_bytes_and_without_normalization(tmp_path, kind):
    options = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "add_dummy_prefix": False}
    write_sentencepiece(tmp_path, model_type=kind, byte_fallback=True, vocab_size=340, **options)
    tokenizer = open_tokenizer(tmp_path)
    for text in random_texts(300):
        text = text.replace("</s>", "").replace("<mask>", "").replace("▁", "")
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_tokens_that_stay_whole(tokenizer_folder, tmp_path):
    folder = Path(shutil.copytree(tokenizer_folder("sentencepiece"), tmp_path / "added"))
    (folder / "added_tokens.json").write_text(json.dumps({"<new>": 82, "<new> one": 83}))
    tokenizer = open_tokenizer(folder)
    assert tokenizer.encode("<new> one<new>") == "<new><U+0020>one <new>"
    pieces = tokenizer.encode("the dog<new>the fox")
    assert pieces.split().count("<new>") == 1
    assert tokenizer.decode(pieces) == "the dog <new> the fox"


def test_a_piece_that_the_dictionary_lacks_is_unknown(tokenizer_folder, tmp_path):
    folder = Path(shutil.copytree(tokenizer_folder("sentencepiece"), tmp_path / "smaller"))
    pieces = open_tokenizer(folder).encode("the dog").split()
    (folder / "dict.txt").write_text("".join(f"{piece} 1\n" for piece in set(pieces[1:]) - {pieces[0]}))
    assert open_tokenizer(folder).encode("the dog").split()[0] == "<unk>"
