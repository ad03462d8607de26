"""The files of a folder do not tell its tokenizer: what it says about itself counts, or is refused by name."""

import json
import logging
import shutil

import pytest
from hugging_face import our_model
from tokenizer_folders import SPECIAL, write_byte_level, write_sentencepiece, write_wordpiece

from s2sft_fairseq.commands.convert import main as convert
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.tokenization.folder import open_tokenizer
from s2sft_fairseq.tokenization.vocabulary import read_vocabulary

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")


def configure(folder, **settings):
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def refused(folder) -> str:
    with pytest.raises(UserError) as caught:
        open_tokenizer(folder)
    return str(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"tokenizer_class": "BertJapaneseTokenizer"},
        {"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "mecab"},
        {"tokenizer_class": "BertTokenizer", "subword_tokenizer_type": "character"},
        {"do_word_tokenize": False},
        {"mecab_kwargs": {"mecab_dic": "unidic_lite"}},
        {"tokenizer_class": "PhobertTokenizer"},
        {"tokenizer_class": "BertweetTokenizer"},
        {"tokenizer_class": "KoBertTokenizer"},
        {"tokenizer_class": "OwnTokenizer", "auto_map": {"AutoTokenizer": ["own.OwnTokenizer", None]}},
    ],
)
def test_steps_that_no_file_describes(tmp_path, settings):
    """Also where a tokenizer.json lies beside them, which transformers would not read."""
    configure(write_wordpiece(tmp_path), **settings)
    (value,) = [value for name, value in settings.items() if name != "tokenizer_class"] or [settings["tokenizer_class"]]
    text = refused(tmp_path)
    assert str(tmp_path / "tokenizer_config.json") in text
    name = next(reversed(settings))
    assert f"{name} is {value!r}" in text or f"{name} is {value}" in text or "auto_map names" in text
    (tmp_path / "tokenizer.json").write_text("{}")
    assert refused(tmp_path) == text


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (write_wordpiece, "HerbertTokenizer"),
        (write_wordpiece, "RoFormerTokenizerFast"),
        (write_byte_level, "CLIPTokenizer"),
        (write_byte_level, "HerbertTokenizerFast"),
        (write_sentencepiece, "CamembertTokenizer"),
        (write_sentencepiece, "BarthezTokenizerFast"),
        (write_sentencepiece, "FNetTokenizer"),
        (write_sentencepiece, "AlbertTokenizer"),
    ],
)
def test_classes_of_other_steps_or_ids(tmp_path, write, name):
    configure(write(tmp_path), tokenizer_class=name)
    assert f"but is {name.removesuffix('Fast')}" in refused(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "config.json").write_text(json.dumps({"tokenizer_class": name}))
    assert f"{tmp_path}/config.json: tokenizer_class must be one of" in refused(tmp_path)
    (tmp_path / "config.json").write_text("{")  # an error of the model, not of the tokenizer
    read_vocabulary(tmp_path)


@pytest.mark.parametrize(
    ("write", "settings", "name"),
    [
        (write_wordpiece, {"do_basic_tokenize": False}, "do_basic_tokenize"),
        (write_wordpiece, {"never_split": ["xyz"]}, "never_split"),
        (write_sentencepiece, {"sp_model_kwargs": {"enable_sampling": True}}, "sp_model_kwargs"),
        (write_sentencepiece, {"tokenizer_class": "DebertaV2Tokenizer", "do_lower_case": True}, "do_lower_case"),
    ],
)
def test_steps_that_are_missing(tmp_path, write, settings, name):
    configure(write(tmp_path), **settings)
    assert f"tokenizer_config.json: {name} is " in refused(tmp_path)


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (write_wordpiece, "BertTokenizerFast"),
        (write_wordpiece, "ElectraTokenizer"),
        (write_byte_level, "RobertaTokenizer"),
        (write_sentencepiece, "XLMRobertaTokenizerFast"),
        (write_sentencepiece, "PreTrainedTokenizerFast"),
    ],
)
def test_classes_of_these_files(tmp_path, write, name):
    configure(write(tmp_path), tokenizer_class=name)
    open_tokenizer(tmp_path)


def with_json(folder, lower: bool, *added: str, **settings):
    """Write a BERT tokenizer of both kinds, whose tokenizer.json has further tokens."""
    tokens = [*SPECIAL, "the", "The", "dog", *added]
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens[:8]))
    (folder / "all.txt").write_text("".join(f"{token}\n" for token in tokens))
    made = tokenizers.BertWordPieceTokenizer(str(folder / "all.txt"), lowercase=lower)
    (folder / "all.txt").unlink()
    made.add_tokens(list(added))
    made.save(str(folder / "tokenizer.json"))
    return configure(folder, **settings) if settings else folder


def test_a_token_that_only_the_library_has(tmp_path):
    with_json(tmp_path, False, "<new>", do_lower_case=False)
    tokenizer = open_tokenizer(tmp_path)
    assert read_vocabulary(tmp_path).files == ["tokenizer.json", "tokenizer_config.json"]
    assert tokenizer.encode("The<new>dog") == "The <new> dog"
    assert tokenizer.dictionary.index("<new>") == 8


def test_a_token_that_only_the_configuration_has(tmp_path):
    tokens = {"3": {"content": "[SEP]", "special": True}, "4": {"content": "other"}, "x": {}, "9": 7}
    number = len((write_wordpiece(tmp_path) / "vocab.txt").read_text().splitlines())
    tokens[str(number)] = {"content": "<first>", "special": True}
    tokens[str(number + 1)] = {"content": "<new>", "special": False}
    tokens[str(number + 3)] = {"content": "<beyond>"}
    configure(tmp_path, added_tokens_decoder=tokens)
    tokenizer = open_tokenizer(tmp_path)
    assert tokenizer.encode("the<new>quick") == "the <new> quick"
    assert tokenizer.dictionary.symbols[number:] == ["<first>", "<new>"]
    assert "[SEP]" not in tokenizer.encode("[SEP]").split()


@pytest.mark.parametrize("lower", [True, False])
def test_lower_casing_is_not_guessed(tmp_path, lower):
    """The vocabulary has a capital letter, so a guess would be that text keeps its case."""
    with_json(tmp_path, lower)
    assert open_tokenizer(tmp_path).encode("The") == ("the" if lower else "The")
    assert read_vocabulary(tmp_path).lower is lower


def test_contradictory_lower_casing(tmp_path):
    with_json(tmp_path, True, "<new>", do_lower_case=False)
    assert "do_lower_case is False, but the normalizer of tokenizer.json beside it says True" in refused(tmp_path)


def test_equal_files_stay_as_they_are(tmp_path):
    with_json(tmp_path, True, do_lower_case=True)
    assert read_vocabulary(tmp_path).files == ["vocab.txt", "tokenizer_config.json"]


def saved_model(folder, size):
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.BertConfig(vocab_size=size, max_position_embeddings=16, **sizes)
    transformers.BertForMaskedLM(config).save_pretrained(folder)


def test_convert_compares_samples(tmp_path, caplog):
    """The files agree on the ids, but not on Chinese characters; the model was trained with what the library does."""
    folder = tmp_path / "bert"
    folder.mkdir()
    with_json(folder, True, do_lower_case=True)
    document = json.loads((folder / "tokenizer.json").read_text())
    document["normalizer"]["handle_chinese_chars"] = False
    (folder / "tokenizer.json").write_text(json.dumps(document))
    saved_model(folder, 8)
    caplog.set_level(logging.WARNING)
    convert([str(folder), "--to", str(tmp_path / "out")])
    assert "by tokenizer.json, which is used" in caplog.text
    assert sorted(path.name for path in (tmp_path / "out").glob("*o*.*")) == ["config.json", "model.pt", *JSON]
    assert our_model(tmp_path / "out").embeddings.tokens.weight.shape == (8, 8)
    assert open_tokenizer(tmp_path / "out").encode("the dog") == "the dog"


JSON = ["tokenizer.json", "tokenizer_config.json"]


def test_convert_keeps_equal_files(tmp_path, caplog):
    folder = tmp_path / "bert"
    folder.mkdir()
    with_json(folder, False, do_lower_case=False)
    saved_model(folder, 8)
    convert([str(folder), "--to", str(tmp_path / "out")])
    assert (tmp_path / "out" / "vocab.txt").exists() and not (tmp_path / "out" / "tokenizer.json").exists()
    assert "which is used" not in caplog.text


def test_convert_keeps_sentencepiece(tmp_path, caplog):
    """A tokenizer.json imitates the program of the training: a difference is told."""
    folder = write_sentencepiece(tmp_path / "xlmr")
    vocabulary = [[symbol, -1.0] for symbol in read_vocabulary(folder).symbols]
    model = {"type": "Unigram", "unk_id": 3, "vocab": vocabulary}
    (folder / "tokenizer.json").write_text(json.dumps({"model": model, "added_tokens": []}))
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.XLMRobertaConfig(
        vocab_size=len(vocabulary), pad_token_id=1, bos_token_id=0, eos_token_id=2, max_position_embeddings=18, **sizes
    )
    transformers.XLMRobertaForMaskedLM(config).save_pretrained(folder)
    convert([str(folder), "--to", str(tmp_path / "out")])
    assert "by tokenizer.json, which is not used" in caplog.text
    shutil.rmtree(tmp_path / "out")


@pytest.mark.parametrize("text", ["日本語のテキスト", "中" * 9])
def test_text_of_unknown_pieces(tmp_path, call_command, text):
    write_wordpiece(tmp_path / "tokenizer")
    (tmp_path / "train.src").write_text(f"{text}\n")
    done = call_command("tokenize", "--tokenizer-dir", "tokenizer", "--input", "train.src", "--output-dir", "out")
    assert f"symbols are unknown to the vocabulary, such as in '{text}', which becomes [UNK]" in done.stdout


@pytest.mark.parametrize("name", ["tokenizer_config.json", "special_tokens_map.json"])
@pytest.mark.parametrize("value", ["the", {"content": "the"}])
def test_another_unknown_symbol(tmp_path, name, value):
    write_wordpiece(tmp_path)
    (tmp_path / name).write_text(json.dumps({"unk_token": value}))
    assert "the tokenizer's unk_token must be [UNK], but is the" in refused(tmp_path)


def test_convert_tells_other_special_symbols(tmp_path, capsys):
    """Sequences end with [SEP] here, whatever a training on the other symbol had."""
    folder = tmp_path / "bert"
    folder.mkdir()
    with_json(folder, False, do_lower_case=False, cls_token="[CLS]", sep_token="dog")
    (folder / "special_tokens_map.json").write_text(json.dumps({"mask_token": {"content": "The"}}))
    saved_model(folder, 8)
    convert([str(folder), "--to", str(tmp_path / "out")])
    printed = capsys.readouterr().out
    assert "the tokenizer's sep_token is dog, but [SEP] is used" in printed
    assert "the tokenizer's mask_token is The, but [MASK] is used" in printed
    assert "cls_token" not in printed
