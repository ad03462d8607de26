"""Settings of tokenizers of another type: a text where true or false is meant."""

import json

import pytest
from tokenizer_folders import write_fastbpe, write_gemma, write_modernbert, write_sentencepiece, write_wordpiece

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.tokenization.folder import open_tokenizer


@pytest.mark.parametrize("name", ["do_lower_case", "strip_accents", "tokenize_chinese_chars", "add_prefix_space"])
@pytest.mark.parametrize("value", ["false", "", 0, 1, [], {}, 1.5])
def test_settings_that_must_be_true_or_false(tmp_path, name, value):
    write_wordpiece(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({name: value}))
    with pytest.raises(UserError) as error:
        open_tokenizer(tmp_path)
    assert f"tokenizer_config.json: {name} must be true, false or null, but is {value!r}" in str(error.value)


@pytest.mark.parametrize("value", [7, None, [1], {"a": {"a": 1}}, "x", True])
@pytest.mark.parametrize("part", ["normalizer", "added_tokens", "model"])
def test_a_tokenizer_json_with_parts_of_other_types(tmp_path, part, value):
    write_modernbert(tmp_path)
    path = tmp_path / "tokenizer.json"
    document = json.loads(path.read_text())
    (path).write_text(json.dumps({**document, part: value}))
    if (part, value) in (("normalizer", None), ("added_tokens", None)):
        return  # null is the same as leaving it out
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        open_tokenizer(tmp_path)


def change_model(folder, write, **settings):
    """Write a tokenizer.json, and change settings of its model."""
    write(folder)
    path = folder / "tokenizer.json"
    document = json.loads(path.read_text())
    document["model"].update(settings)
    path.write_text(json.dumps(document))


@pytest.mark.parametrize("prefix", ["##", "as long as no token is"])
def test_a_prefix_that_no_token_has(tmp_path, prefix):
    """The library tokenizers panics, which is no `Exception`."""
    change_model(tmp_path, write_modernbert, continuing_subword_prefix=prefix)
    with pytest.raises(UserError, match=r"tokenizer\.json cannot be used by the package tokenizers: .*"):
        open_tokenizer(tmp_path)


def test_a_limit_of_words_that_would_take_hours(tmp_path):
    change_model(tmp_path, write_modernbert, max_input_chars_per_word=10**6)
    message = r"tokenizer\.json: max_input_chars_per_word must be at most 1,000, but is 10{6}"
    with pytest.raises(UserError, match=message):
        open_tokenizer(tmp_path)


def test_a_tokenizer_json_without_the_token_for_unknown_text(tmp_path):
    """Its library finds this only when it encodes unknown text."""
    change_model(tmp_path, write_gemma, unk_token="<none>", byte_fallback=False)
    tokenizer = open_tokenizer(tmp_path)
    for encode in (tokenizer.encode_batch, tokenizer.encode_pieces):
        with pytest.raises(UserError, match=r"tokenizer\.json cannot be used by the package tokenizers: .*<none>"):
            encode(["\U00012000"])


def test_a_sentencepiece_model_without_pieces(tmp_path):
    write_sentencepiece(tmp_path)
    (tmp_path / "sentencepiece.bpe.model").write_bytes(b"")
    with pytest.raises(
        UserError, match=r"sentencepiece\.bpe\.model must have a piece for unknown text, but none of its 0 pieces"
    ):
        open_tokenizer(tmp_path)


def test_a_sentencepiece_model_with_a_piece_that_is_not_utf8(tmp_path):
    write_sentencepiece(tmp_path)
    path = tmp_path / "sentencepiece.bpe.model"
    path.write_bytes(path.read_bytes().replace(b"<unk>", b"<\xednk>"))
    with pytest.raises(UserError, match=r"sentencepiece\.bpe\.model must hold pieces in UTF-8, but piece 0 is"):
        open_tokenizer(tmp_path)


def test_invalid_codes(tmp_path):
    write_fastbpe(tmp_path)
    (tmp_path / "codes").write_text("")
    with pytest.raises(UserError, match="codes must hold pairs of pieces, a line each, but is empty"):
        open_tokenizer(tmp_path)
