"""The configuration of a checkpoint names files of this machine: none is opened."""

import logging
from argparse import Namespace

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerModel
from fairseq.tasks.translation import TranslationConfig, TranslationTask
from tiny import TINY_SIZES, tiny_model
from tokenizer_folders import write_wordpiece

from s2sft_fairseq.checkpoints.trusted_config import clear_paths, not_built
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.model_folder import export_folder

SIZES = {
    **{f"{side}_{name}": 8 for side in ("encoder", "decoder") for name in ("embed_dim", "ffn_embed_dim")},
    **{f"{side}_{name}": 1 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")},
}


@pytest.fixture
def translation():
    symbols = Dictionary()
    for number in range(6):
        symbols.add_symbol(f"w{number}")
    return TranslationTask(TranslationConfig(source_lang="a", target_lang="b"), symbols, symbols)


def save(path, model, **entries):
    history = [{"optimizer_name": "FairseqAdam", "lr_scheduler_state": {}, "num_updates": 1}]
    extra = {"train_iterator": {"epoch": 1}}
    state = {"args": None, "cfg": None, "model": model, "optimizer_history": history, "extra_state": extra}
    torch.save({**state, **entries}, path)
    return str(path)


@pytest.mark.parametrize("form", ["_name", "arch", "args"])
def test_embeddings_of_a_transformer(tmp_path, translation, caplog, form):
    absent = str(tmp_path / "absent")  # opening it is an error; a pipe would block for ever
    named = {"encoder_embed_path": absent, "decoder_embed_path": absent}
    weights = TransformerModel.build_model(Namespace(arch="transformer", **SIZES), translation).state_dict()
    config = {
        "_name": {"cfg": {"model": {"_name": "transformer", **SIZES, **named}}},
        "arch": {"cfg": {"model": Namespace(arch="transformer_tiny", **SIZES, **named)}},
        "args": {"args": Namespace(arch="transformer", task="translation", data="", **SIZES, **named)},
    }[form]
    path = save(tmp_path / "a.pt", weights, **config)
    with caplog.at_level(logging.WARNING):
        (model,), _, _ = checkpoint_utils.load_model_ensemble_and_task([path], task=translation)
    assert torch.equal(model.encoder.embed_tokens.weight, weights["encoder.embed_tokens.weight"])
    assert "embed_path names a file, which is not opened" in caplog.text


def test_a_path_of_the_command_line_is_opened(tmp_path, translation):
    weights = TransformerModel.build_model(Namespace(arch="transformer", **SIZES), translation).state_dict()
    model = {"_name": "transformer", **SIZES, "encoder_embed_path": "elsewhere"}
    path = save(tmp_path / "a.pt", weights, cfg={"model": model})
    with pytest.raises(FileNotFoundError, match="mine"):
        checkpoint_utils.load_model_ensemble_and_task([path], {"encoder_embed_path": "mine"}, task=translation)


def test_the_encoder_of_a_checkpoint_without_adapters(tmp_path, translation):
    model = tiny_model()
    options = {"_name": "unilm", **TINY_SIZES, "pretrained": str(tmp_path / "absent")}
    state = {"cfg": {"model": options}, "model": model.state_dict()}
    clear_paths("a.pt", state)
    assert state["cfg"]["model"]["pretrained"] is None
    adapters = {"cfg": {"model": {**options, "pretrained": "encoder", "lora_rank": 4}}}
    clear_paths("a.pt", adapters)
    assert adapters["cfg"]["model"]["pretrained"] == "encoder"


def test_the_tokenizer_of_a_checkpoint_without_adapters(tmp_path):
    write_wordpiece(tmp_path / "private")
    options = {"_name": "unilm", **TINY_SIZES, "pretrained": str(tmp_path / "private")}
    path = save(
        tmp_path / "a.pt", tiny_model().state_dict(), cfg={"model": options, "task": {"_name": "unilm_seq2seq"}}
    )
    with pytest.raises(UserError, match="--tokenizer-dir is needed"):
        export_folder(tmp_path / path, tmp_path / "made")


def test_every_section(caplog):
    state = {
        "cfg": {
            "common": {"user_dir": "a", "quantization_config_path": "a", "seed": 1, "plasma_path": "a"},
            "task": {"data": "a", "span_vocab": "a", "source_lang": "a"},
            "bpe": {"_name": "sentencepiece", "sentencepiece_model": "a"},
            "model": {"_name": "unilm", "drop_path": 0.5, "encoder": {"embed_path": "a"}},
        },
    }
    with not_built("model", "task", "criterion", "tokenizer", "bpe"):
        clear_paths("a.pt", state)
    assert state["cfg"]["common"]["user_dir"] == "a"  # a training reads no configuration of a file
    clear_paths("a.pt", state)
    assert state["cfg"] == {
        "common": {"user_dir": None, "quantization_config_path": "", "seed": 1, "plasma_path": ""},
        "task": {"data": "a", "span_vocab": None, "source_lang": "a"},
        "bpe": {"_name": "sentencepiece", "sentencepiece_model": ""},
        "model": {"_name": "unilm", "drop_path": 0.5, "encoder": {"embed_path": ""}},
    }
    assert "a.pt: cfg.task.span_vocab names a file, which is not opened" in caplog.text
