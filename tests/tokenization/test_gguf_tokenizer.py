"""Tokenizers in the metadata of GGUF files give the pieces of the tokenizers that they were made from."""

import json
from pathlib import Path

import pytest
from gguf_files import BYTE_LEVEL, write_gguf
from tokenizer_folders import SENTENCES, random_texts

from s2sft_fairseq.data.dictionary import DICTIONARY, PretrainedDictionary
from s2sft_fairseq.tokenization.folder import open_tokenizer
from s2sft_fairseq.tokenization.gguf_tokenizer import write_gguf_tokenizer
from s2sft_fairseq.tokenization.language_models import language_model_symbols
from s2sft_fairseq.tokenization.samples import SAMPLES
from s2sft_fairseq.tokenization.symbols import write_symbol
from s2sft_fairseq.tokenization.vocabulary import read_vocabulary, stated_symbols

tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<reponame>"]
TEXTS = [*SENTENCES[:4], *SAMPLES, "in 2021 12345 ½ IV", "a\r\r b", "I'LL we'll DON'T", *random_texts(200)]
LETTERS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+"
OTHERS = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
WORDS = {
    "gpt-2": None,
    "smollm": tokenizers.pre_tokenizers.Digits(individual_digits=True),
    "llama-bpe": rf"{LETTERS}|\p{{N}}{{1,3}}|{OTHERS}",
    "qwen2": rf"{LETTERS}|\p{{N}}|{OTHERS}",
}


def opened(path: Path, folder: Path):
    """Write the tokenizer of a file and its dictionary, as s2sft convert does, and open it."""
    folder.mkdir(exist_ok=True)
    write_gguf_tokenizer(path, folder)
    vocabulary = read_vocabulary(folder)
    special = language_model_symbols(stated_symbols(folder), vocabulary.symbols, {})
    symbols = list(dict.fromkeys([*vocabulary.symbols, *vars(special).values()]))
    PretrainedDictionary.of(symbols, special).save(str(folder / DICTIONARY))
    return open_tokenizer(folder)


def byte_level(name: str):
    """Return a small tokenizer with the words of a way to split texts."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE(ignore_merges=name == "llama-bpe"))
    steps, words = tokenizers.pre_tokenizers, WORDS[name]
    made.normalizer = tokenizers.normalizers.NFC() if name == "qwen2" else None
    bytes_of = steps.ByteLevel(add_prefix_space=False, use_regex=not isinstance(words, str))
    first = steps.Split(tokenizers.Regex(words), "isolated") if isinstance(words, str) else words
    made.pre_tokenizer = steps.Sequence([first, bytes_of]) if first else bytes_of
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = steps.ByteLevel.alphabet()
    made.train_from_iterator(
        [*SENTENCES, "in 2021 12345 years"],
        tokenizers.trainers.BpeTrainer(
            vocab_size=400, initial_alphabet=alphabet, special_tokens=SPECIAL, show_progress=False
        ),
    )
    return made


def metadata_of(made, name: str) -> dict:
    model = json.loads(made.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    merges = [" ".join(pair) if isinstance(pair, list) else pair for pair in model["merges"]]
    return {
        **BYTE_LEVEL,
        "tokenizer.ggml.pre": name,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in SPECIAL else 1 for token in tokens],
        "tokenizer.ggml.merges": merges,
    }


@pytest.mark.parametrize("name", WORDS)
def test_byte_level_bpe(tmp_path, name):
    original = byte_level(name)
    ours = opened(write_gguf(tmp_path / "a.gguf", metadata_of(original, name), {}), tmp_path / "out")
    original.encode_special_tokens = True
    for text, found in zip(TEXTS, ours.encode_batch(TEXTS), strict=True):
        assert found.split() == original.encode(text).tokens
        if name != "qwen2":
            assert ours.decode(found) == text


def test_special_symbols_in_texts_are_text(tmp_path):
    ours = opened(write_gguf(tmp_path / "a.gguf", metadata_of(byte_level("smollm"), "smollm"), {}), tmp_path / "out")
    for symbol in SPECIAL:
        found = ours.encode(f"a {symbol}b")
        assert not {*found.split()} & {*SPECIAL}
        assert ours.decode(found) == f"a {symbol}b"


def test_files_for_other_programs(tmp_path):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    template = {"tokenizer.chat_template": "{{ messages }}", "tokenizer.ggml.add_bos_token": True}
    metadata = metadata_of(byte_level("smollm"), "smollm") | template
    ours = opened(write_gguf(tmp_path / "a.gguf", metadata, {}), tmp_path / "out")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (theirs.bos_token, theirs.eos_token, theirs.pad_token) == ("<|im_start|>", "<|im_end|>", "<|im_end|>")
    assert theirs.chat_template == "{{ messages }}"
    for text in TEXTS[:40]:
        ids = [ours.dictionary.index(symbol) for symbol in ours.encode(text).split()]
        assert theirs(text, split_special_tokens=True)["input_ids"] == [1, *ids]
        assert theirs.decode(ids) == text


def sentencepiece_model(folder: Path, **options):
    sentencepiece = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_prefix=str(folder / "m"),
        model_type="bpe",
        vocab_size=400,
        byte_fallback=True,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        minloglevel=2,
        **options,
    )
    return sentencepiece.SentencePieceProcessor(str(folder / "m.model"))


def pieces_of(model, *, begins_with_blank: bool, user_defined=()) -> dict:
    """Return the metadata that llama.cpp writes for a model."""
    numbers = range(model.get_piece_size())
    pieces = [model.id_to_piece(number) for number in numbers]
    types = [4 if piece in user_defined else 1 for piece in pieces]
    for kind, belongs in ((2, model.is_unknown), (3, model.is_control), (6, model.is_byte)):
        types = [kind if belongs(number) else types[number] for number in numbers]
    # Tokens that only fill the matrix come last.
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [*pieces, "[PAD400]", "[PAD401]"],
        "tokenizer.ggml.token_type": [*types, 5, 5],
        "tokenizer.ggml.scores": [*(float(model.get_score(number)) for number in numbers), -1.0, -1.0],
        "tokenizer.ggml.add_space_prefix": begins_with_blank,
        "tokenizer.ggml.unknown_token_id": model.unk_id(),
        "tokenizer.ggml.bos_token_id": model.bos_id(),
        "tokenizer.ggml.eos_token_id": model.eos_id(),
    }


@pytest.mark.parametrize("begins_with_blank", [True, False], ids=["Llama 2", "Gemma"])
def test_bpe_of_sentencepiece(tmp_path, begins_with_blank):
    user_defined = [] if begins_with_blank else ["▁▁", "▁▁▁", "<table>", "\t\t"]
    model = sentencepiece_model(tmp_path, add_dummy_prefix=begins_with_blank, user_defined_symbols=user_defined)
    metadata = pieces_of(model, begins_with_blank=begins_with_blank, user_defined=user_defined)
    ours = opened(write_gguf(tmp_path / "a.gguf", metadata, {}), tmp_path / "out")
    assert ours.dictionary.symbols == [*map(write_symbol, map(model.id_to_piece, range(400))), "<pad>", "<mask>"]
    texts = [*TEXTS, "a   b    c", "<table>x</table>", " x", "日本 12 😀"]
    for text in texts:
        expected = list(map(write_symbol, model.encode(text, out_type=str)))
        found = ours.encode(text)
        if "\x00" not in text:  # which SentencePiece cuts texts at
            assert found.split() == expected, text
        assert ours.decode(found) == text.replace("▁", " ")
