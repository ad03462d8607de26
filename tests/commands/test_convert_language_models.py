"""s2sft convert: GGUF files, and the special symbols that a language model gets and keeps."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from gguf_files import BYTE_LEVEL, llama_tensors, metadata_of, write_gguf, write_llama

from s2sft_fairseq.checkpoints.gguf_models import read_gguf
from s2sft_fairseq.checkpoints.pretrained import PretrainedEncoder
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.checkpoints.safetensors_file import write_safetensors
from s2sft_fairseq.commands.convert import main as convert
from s2sft_fairseq.commands.export import main as export
from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.tokenization.folder import open_tokenizer
from s2sft_fairseq.tokenization.gguf_tokenizer import write_gguf_tokenizer

pytest.importorskip("tokenizers", reason="tokenizers is not installed")
TEXTS = ["the that 2021", "a<|im_end|>b", "</s> <unk>the", "", "c  d"]
PIECES = [
    "<unk>",
    "<s>",
    "</s>",
    *(f"<0x{byte:02X}>" for byte in range(256)),
    "▁",
    *"abcdefthe<>|_",
    "th",
    "the",
    "▁the",
]
PIECES = list(dict.fromkeys(PIECES))
TINY_LLAMA = {
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": PIECES,
    "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * (len(PIECES) - 259)],
    "tokenizer.ggml.scores": [-float(number) for number in range(len(PIECES))],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.padding_token_id": 2,
}


def hugging_face_folder(folder: Path, tokenizer: dict, rows: int = 0, **settings: object) -> Path:
    """Write a small Llama as a folder of Hugging Face's, with more rows than the tokenizer has tokens."""
    folder.mkdir()
    rows = rows or len(tokenizer["tokenizer.ggml.tokens"])
    file = write_gguf(folder / "a.gguf", metadata_of("llama", tokenizer), llama_tensors(rows))
    weights, config = read_gguf(file)
    write_gguf_tokenizer(file, folder)
    file.unlink()
    write_safetensors(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    stated = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps({**stated, **settings}))
    return folder


def dictionary_of(folder: Path) -> PretrainedDictionary:
    return PretrainedDictionary.load(str(folder / "dict.txt"))


@pytest.mark.parametrize("as_folder", [False, True])
def test_a_gguf_file(tmp_path, capsys, as_folder):
    (tmp_path / "in").mkdir()
    file = write_llama(tmp_path / "in" / "model.gguf")
    out = tmp_path / "out"
    convert([str(file.parent if as_folder else file), "--to", str(out)])
    assert "<|im_end|> ends texts, <|im_start|> begins them, <repo_name> is the placeholder" in capsys.readouterr().out
    assert dictionary_of(out).symbols == BYTE_LEVEL["tokenizer.ggml.tokens"]
    encoder = PretrainedEncoder.open(out)
    assert encoder.sizes["source_visibility"] == "causal"
    assert encoder.layout == {}
    weights, _ = read_gguf(file)
    ours = load_checkpoint(out / "model.pt")["model"]
    assert torch.equal(ours["embeddings.tokens.weight"], weights["model.embed_tokens.weight"])
    assert torch.equal(ours["layers.1.fc2.weight"], weights["model.layers.1.mlp.down_proj.weight"])
    assert open_tokenizer(out).encode("the 21") == "the Ġ 2 1"


def test_another_tokenizer_for_a_gguf_file(tmp_path):
    file = write_llama(tmp_path / "model.gguf", **{"tokenizer.ggml.pre": "unheard"})
    with pytest.raises(UserError, match=r"tokenizer\.ggml\.pre must be one of"):
        convert([str(file), "--to", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()
    (tmp_path / "tokenizer").mkdir()
    write_gguf_tokenizer(write_llama(tmp_path / "other.gguf"), tmp_path / "tokenizer")
    convert([str(file), "--to", str(tmp_path / "out"), "--tokenizer-dir", str(tmp_path / "tokenizer")])
    assert dictionary_of(tmp_path / "out").eos_word == "<|im_end|>"


def test_two_gguf_files_in_a_folder(tmp_path):
    (tmp_path / "in").mkdir()
    for name in ("a.gguf", "b.gguf"):
        write_llama(tmp_path / "in" / name)
    with pytest.raises(UserError, match=r"must hold the weights of one model, but holds a\.gguf, b\.gguf"):
        convert([str(tmp_path / "in"), "--to", str(tmp_path / "out")])


def test_symbols_that_the_vocabulary_lacks_are_added(tmp_path, capsys):
    folder, out = hugging_face_folder(tmp_path / "in", TINY_LLAMA), tmp_path / "out"
    convert([str(folder), "--to", str(out)])
    number = len(PIECES)
    assert f"added: <pad> (id {number}), <mask> (id {number + 1})" in capsys.readouterr().out
    dictionary = dictionary_of(out)
    assert dictionary.symbols == [*PIECES, "<pad>", "<mask>"]
    assert (dictionary.bos(), dictionary.eos(), dictionary.unk(), dictionary.pad()) == (1, 2, 0, number)
    table = load_checkpoint(out / "model.pt")["model"]["embeddings.tokens.weight"]
    torch.testing.assert_close(table[number], table[:number].mean(dim=0))
    tokenizer = open_tokenizer(out)
    assert tokenizer.encode("the<mask>").split() == ["▁the", "<", *["<0x6D>", "a", "<0x73>", "<0x6B>", ">"]]
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_rows_beyond_the_tokenizer(tmp_path):
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *BYTE_LEVEL["tokenizer.ggml.tokens"][6:]]
    tokenizer = {**BYTE_LEVEL, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.pre": "qwen2"}
    tokenizer["tokenizer.ggml.token_type"] = BYTE_LEVEL["tokenizer.ggml.token_type"][3:]
    folder = hugging_face_folder(tmp_path / "in", tokenizer, rows=len(tokens) + 4)
    convert([str(folder), "--to", str(tmp_path / "out")])
    dictionary = dictionary_of(tmp_path / "out")
    assert dictionary.symbols == [*tokens, *(f"madeupword{number:04d}" for number in range(4))]
    assert dictionary.symbols[dictionary.mask()] == "madeupword0000"
    assert dictionary.pad_word == "madeupword0001"
    assert open_tokenizer(tmp_path / "out").encode("the") == "the"


def test_a_model_whose_texts_begin_with_the_symbol_that_ends_them(tmp_path):
    ends = "<|endoftext|>"
    folder = hugging_face_folder(tmp_path / "in", BYTE_LEVEL, bos_token=ends, eos_token=ends, pad_token=None)
    convert([str(folder), "--to", str(tmp_path / "out")])
    assert PretrainedEncoder.open(tmp_path / "out").layout == {"source_start": "sep"}
    assert dictionary_of(tmp_path / "out").eos_word == ends


def test_a_special_token_without_a_row(tmp_path, capsys):
    """As Gemma's for images, which its tokenizer has beside models of texts alone."""
    folder, out, number = hugging_face_folder(tmp_path / "in", TINY_LLAMA), tmp_path / "out", len(PIECES)
    document = json.loads((folder / "tokenizer.json").read_text())
    added = document["added_tokens"]
    document["added_tokens"] = [*added, {**added[0], "id": number, "content": "<image>"}]
    (folder / "tokenizer.json").write_text(json.dumps(document))
    (folder / "added_tokens.json").write_text(json.dumps({"<image>": number}))
    convert([str(folder), "--to", str(out)])
    assert "tokens without a row in the model: <image>\n" in capsys.readouterr().out
    assert open_tokenizer(out).dictionary.symbols == [*PIECES, "<pad>", "<mask>"]
    assert open_tokenizer(out).encode("<image>").split()[:2] == ["▁", "<"]
    # A token of texts must have a row.
    document["added_tokens"][-1]["special"] = False
    (folder / "tokenizer.json").write_text(json.dumps(document))
    with pytest.raises(UserError, match=f"the tokenizer has {number + 1} tokens, but .* was made with {number}"):
        convert([str(folder), "--to", str(tmp_path / "other")])


def test_files_of_gpt2_beside_a_tokenizer_json(tmp_path):
    """SmolLM2's folder has both, and only the tokenizer.json splits numbers into digits."""
    folder = hugging_face_folder(tmp_path / "in", BYTE_LEVEL, tokenizer_class="GPT2Tokenizer")
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"]))
    (folder / "merges.txt").write_text(
        "".join(f"{' '.join(pair)}\n" for pair in [["#version:", "0.2"], *model["merges"]])
    )
    convert([str(folder), "--to", str(tmp_path / "out")])
    assert not (tmp_path / "out" / "vocab.json").exists()
    assert open_tokenizer(tmp_path / "out").encode("a 21") == "a Ġ 2 1"


def test_no_symbol_ends_texts(tmp_path):
    folder = hugging_face_folder(tmp_path / "in", BYTE_LEVEL, eos_token=None)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "eos_token_id": None}))
    with pytest.raises(UserError, match="must state the symbol that ends texts"):
        convert([str(folder), "--to", str(tmp_path / "out")])


@pytest.mark.parametrize("tokenizer", [BYTE_LEVEL, TINY_LLAMA], ids=["SmolLM2", "TinyLlama"])
def test_the_tokenizer_goes_back(tmp_path, tokenizer):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    folder, out, back = hugging_face_folder(tmp_path / "in", tokenizer), tmp_path / "out", tmp_path / "back"
    convert([str(folder), "--to", str(out)])
    export([str(out), "--format", "hugging_face", "--to", str(back)])
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (back / name).read_bytes() == (folder / name).read_bytes()
    before, after = map(transformers.AutoTokenizer.from_pretrained, (folder, back))
    ours, config = open_tokenizer(out), transformers.AutoConfig.from_pretrained(back)
    assert (after.bos_token_id, after.eos_token_id) == (config.bos_token_id, config.eos_token_id)
    for text in TEXTS:
        ids = [ours.dictionary.index(symbol) for symbol in ours.encode(text).split()]
        options = {"add_special_tokens": False, "split_special_tokens": True}
        assert before(text, **options)["input_ids"] == after(text, **options)["input_ids"] == ids
    # And the folder can be converted again.
    shutil.rmtree(out)
    convert([str(back), "--to", str(out)])
    assert dictionary_of(out).special == ours.dictionary.special
    assert dictionary_of(out).symbols == ours.dictionary.symbols
