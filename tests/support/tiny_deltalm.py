"""Tiny random DeltaLMs as model folders, with tokenizers of their own."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizer_folders import write_sentencepiece, write_wordpiece
from torch import nn

from s2sft_fairseq.checkpoints.model_folder import as_checkpoint
from s2sft_fairseq.commands.export import main as export
from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.models.deltalm import SIZES, DeltaLMConfig, DeltaLMModel
from s2sft_fairseq.models.model_folder import export_folder
from s2sft_fairseq.tokenization.vocabulary import read_vocabulary

TEXTS = [
    "The quick brown fox jumps over the lazy dog.",
    "Naïve café owners met in Zürich on 12 May",
    "judge my vow",
    "def encode(line)",
    "the dog",
    "How vexingly quick daft zebras jump, and  the dog doesn't mind!",
]
WRITERS = {"sentencepiece": write_sentencepiece, "wordpiece": write_wordpiece}


def write_deltalm(
    folder: Path,
    *,
    tokenizer: str = "sentencepiece",
    languages: tuple[str, ...] = (),
    search: dict[str, Any] | None = None,
    seed: int = 1,
    **sizes: Any,
) -> Path:
    """Write a model folder; its weights are large enough for its hypotheses to differ."""
    files = WRITERS[tokenizer](folder.with_name(f"{folder.name}-tokenizer"))
    symbols = [*read_vocabulary(files).symbols, *(f"__{language}__" for language in languages)]
    if languages:
        ids = {symbol: number for number, symbol in enumerate(symbols) if symbol.startswith("__")}
        text = "{" + ", ".join(f'"{symbol}": {number}' for symbol, number in ids.items()) + "}"
        (files / "added_tokens.json").write_text(text)
    dictionary = PretrainedDictionary.of(symbols)
    model, complete = random_deltalm(dictionary, seed, **sizes)
    layout = {
        "language_token": "__{}__" if languages else None,
        "languages": list(languages) or ["tgt"],
        "max_source_positions": 24,
        "max_target_positions": 30,
    }
    options = {name: getattr(complete, name) for name in SIZES} | {"_name": "deltalm"}
    cfg = {"model": options, "task": {"_name": "deltalm_seq2seq", "data": ""}}
    state = as_checkpoint({"cfg": cfg, "task_state": {"layout": layout}, "search": {}}, model.state_dict())
    checkpoint = folder.with_name(f"{folder.name}.pt")
    torch.save(state, checkpoint)
    export_folder(checkpoint, folder, files, search={"max_len_b": 28, **(search or {})})
    return folder


def random_deltalm(dictionary: PretrainedDictionary, seed: int = 1, **sizes: Any) -> tuple[DeltaLMModel, DeltaLMConfig]:
    """Return a random model and its options with all sizes; a short training makes its hypotheses end."""
    given = {
        **{"encoder_layers": 4, "decoder_layers": 2, "encoder_embed_dim": 32, "encoder_ffn_embed_dim": 48},
        **{"encoder_attention_heads": 4, "max_positions": 30, "dropout": 0.0},
        **sizes,
    }
    torch.manual_seed(seed)
    cfg = DeltaLMConfig(**given)
    model = DeltaLMModel.build_model(cfg, SimpleNamespace(source_dictionary=dictionary, target_dictionary=dictionary))
    with torch.no_grad():
        for value in model.parameters():
            if value.ndim == 1:  # biases and layer norms start as 0 and 1
                value += 0.1 * torch.randn_like(value)
    train(model, dictionary, updates=80)
    return model.eval(), cfg


def train(model: DeltaLMModel, dictionary: PretrainedDictionary, updates: int) -> None:
    """Train a model to write some tokens of its source and to end."""
    eos, pad, first = dictionary.eos(), dictionary.pad(), 5
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(updates):
        source = torch.randint(first, len(dictionary), (16, 12))
        lengths = torch.randint(2, 11, (16, 1))
        places = torch.arange(12)
        source = source.masked_fill(places > lengths, pad).masked_fill(places == lengths, eos)
        target = source[:, 1:].masked_fill(places[1:] > lengths, pad)
        given = torch.cat([torch.full((16, 1), eos), target[:, :-1]], dim=1)
        logits = model(source, lengths.squeeze(1) + 1, given)[0]
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=pad)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "bert": {"tokenizer": "wordpiece", "layer_norm_eps": 1e-12, "activation_fn": "gelu_tanh"},
    "no-norm": {"layernorm_embedding": "no", "activation_fn": "relu", "decoder_layers": 1},
    "languages": {"languages": ("de", "fr"), "search": {"beam": 3, "lenpen": 0.7}},
}
"""Options of `write_deltalm`, by name."""


def exported_pairs(folder: Path, format_: str) -> Callable[..., tuple[Path, Path]]:
    """Return a function that maps a name in `VARIANTS` to a model folder and its export, each made once."""

    def made(name: str = "plain") -> tuple[Path, Path]:
        model, exported = folder / name, folder / f"{name}-exported"
        if not model.exists():
            write_deltalm(model, **VARIANTS[name])
            export([str(model), "--format", format_, "--to", str(exported)])
        return model, exported

    return made


def assert_same(found: Any, expected: Any) -> None:
    """Compare hypotheses of `Seq2Seq`: tokens and texts are equal, scores nearly."""
    for ours, theirs in zip(expected, found, strict=True):
        assert [each.tokens for each in theirs] == [each.tokens for each in ours]
        for one, other in zip(ours, theirs, strict=True):
            assert other.score == pytest.approx(one.score, abs=1e-4)
            assert other.log_probs == pytest.approx(one.log_probs, abs=1e-4)
            assert other.text == one.text
