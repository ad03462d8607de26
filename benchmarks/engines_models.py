"""The models of `engines.py` and their exports: random weights, and a vocabulary of words ``w0``, ``w1``, ..."""

import contextlib
import io
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn

from s2sft_fairseq.checkpoints.model_folder import as_checkpoint
from s2sft_fairseq.commands.export import main as export
from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.models.architectures import ARCHITECTURES, DELTALM_ARCHITECTURES
from s2sft_fairseq.models.deltalm import SIZES, DeltaLMConfig, DeltaLMModel
from s2sft_fairseq.models.model_folder import export_folder
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.models.unilm_config import UnilmConfig, complete_sizes
from s2sft_fairseq.tokenization.vocabulary import read_vocabulary

EXPORTS = {
    "unilm": {
        "onnx-float32": ("--format", "onnx"),
        "onnx-int8": ("--format", "onnx", "--quantize", "int8"),
        "transformers-float32": ("--format", "hugging_face", "--self-contained"),
    },
    "deltalm": {
        "ctranslate2-float32": ("--format", "ctranslate2"),
        "ctranslate2-int8": ("--format", "ctranslate2", "--quantize", "int8"),
        "onnx-float32": ("--format", "onnx"),
        "onnx-int8": ("--format", "onnx", "--quantize", "int8"),
        "transformers-float32": ("--format", "hugging_face"),
    },
}
"""Folder and options of ``s2sft export`` for each export, by the kind of model."""
POSITIONS = 512
MOST_TOKENS = 48
"""Most tokens of a target of a unilm model, in which source and target share the positions."""
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def model_path(folder: Path, config: str, vocab: int, seed: int) -> Path:
    """Return the folder that holds the folders of a model and its exports."""
    return folder / f"{config}-{vocab}-{seed}"


def make_folders(config: str, kind: str, vocab: int, seed: int, folder: Path) -> None:
    """Write the model folder, ``model``, and its exports, unless they exist."""
    place = model_path(folder, config, vocab, seed)
    if not (place / "model").exists():
        words = [*SPECIAL, *(f"w{number}" for number in range(vocab - len(SPECIAL)))]
        files = place / "tokenizer"
        files.mkdir(parents=True, exist_ok=True)
        (files / "vocab.txt").write_text("".join(f"{word}\n" for word in words), encoding="utf-8")
        dictionary = PretrainedDictionary.of(read_vocabulary(files).symbols)
        torch.manual_seed(seed)
        model, options = (deltalm if kind == "deltalm" else unilm)(config, dictionary)
        if kind == "deltalm":
            layout = {"language_token": None, "languages": ["tgt"]}
            layout |= {"max_source_positions": POSITIONS, "max_target_positions": POSITIONS}
        else:
            limits = {"max_source_positions": POSITIONS - MOST_TOKENS, "max_target_positions": MOST_TOKENS}
            layout = {"finetune_method": "pseudo_masked", **limits}
        cfg = {"model": {**options, "_name": kind}, "task": {"_name": f"{kind}_seq2seq", "data": ""}}
        state = as_checkpoint({"cfg": cfg, "task_state": {"layout": layout}, "search": {}}, model.state_dict())
        torch.save(state, place / "model.pt")
        export_folder(place / "model.pt", place / "model", files)
        (place / "model.pt").unlink()
    (place / "text.txt").write_text("w1 w2 w3\n", encoding="utf-8")
    for name, words in EXPORTS[kind].items():
        if not (place / name).exists():
            verify = ("--verify", str(place / "text.txt"))
            with contextlib.redirect_stdout(io.StringIO()):
                export([str(place / "model"), *words, "--to", str(place / name), *verify])


def unilm(config: str, dictionary: PretrainedDictionary) -> tuple[nn.Module, dict[str, object]]:
    """Make an encoder that generates, and return it with its options."""
    cfg = UnilmConfig(**ARCHITECTURES[config])
    complete_sizes(cfg)
    model = UnilmModel(cfg, vocab_size=len(dictionary), pad=dictionary.pad())
    return model, dict(vars(cfg))


def deltalm(config: str, dictionary: PretrainedDictionary) -> tuple[nn.Module, dict[str, object]]:
    """Make an encoder-decoder, and return it with its options."""
    cfg = DeltaLMConfig(**DELTALM_ARCHITECTURES[config], max_positions=POSITIONS)
    task = SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary)
    model = DeltaLMModel.build_model(cfg, task)
    return model, {name: getattr(cfg, name) for name in SIZES}
