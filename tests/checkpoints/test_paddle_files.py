"""Models of PaddlePaddle that are not read, at each door that takes an encoder or a model."""

import pickle
from argparse import Namespace

import numpy as np
import pytest

from s2sft_fairseq.api.loading import load
from s2sft_fairseq.checkpoints.paddle_files import paddle_model
from s2sft_fairseq.checkpoints.pretrained import PretrainedEncoder
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.checkpoints.source_files import open_source
from s2sft_fairseq.commands.convert import main as convert
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.deltalm_start import open_start
from s2sft_fairseq.models.pretrained_checkpoint import open_pretrained

STATIC = ("word_embedding", "pos_embedding", "encoder_layer_0_ffn_fc_0.b_0", "encoder_layer_0_ffn_fc_0.w_0")
STATIC += ("pre_encoder_layer_norm_scale", "word_embedding_moment1_0")


@pytest.fixture(params=["params", "in params", "program"])
def ernie(request, tmp_path):
    """A release of Baidu, and what is said of it."""
    folder = tmp_path / "ernie"
    (folder / "params").mkdir(parents=True)
    (folder / "ernie_config.json").write_text("{}")
    (folder / "vocab.txt").write_text("[PAD]\n[CLS]\n[SEP]\n[UNK]\n[MASK]\n")
    if request.param == "program":
        (folder / "inference.pdmodel").write_bytes(b"")
        (folder / "inference.pdiparams").write_bytes(b"")
        return folder, "a program of PaddlePaddle for inference \\(inference.pdiparams\\)"
    for name in STATIC:
        (folder / "params" / name).write_bytes(b"\0" * 8)
    static = "the parameters of a static graph of PaddlePaddle"
    return (folder / "params" if request.param == "in params" else folder), static


@pytest.mark.parametrize(
    "door",
    [
        open_source,
        load_checkpoint,
        PretrainedEncoder.open,
        open_pretrained,
        lambda folder: open_start(str(folder), Namespace()),
        lambda folder: load(folder, None, "cpu", "float32", None),
    ],
)
def test_doors(ernie, door):
    folder, what = ernie
    with pytest.raises(UserError, match=rf"{folder}\b.* {what}"):
        door(folder)


def test_commands(ernie, tmp_path, call_command):
    folder, what = ernie
    with pytest.raises(UserError, match=rf"{folder}\b.* {what}") as raised:
        convert([str(folder), "--to", str(tmp_path / "made")])
    if folder.name == "ernie":
        assert len(raised.value.problems) == 1
    (tmp_path / "train.tsv").write_text("a\tb\n")
    done = call_command(
        "finetune", "--train", tmp_path / "train.tsv", "--encoder", folder, "--output", tmp_path / "out", status=2
    )
    assert what.partition(" \\(")[0] in done.stderr and not (tmp_path / "out").exists()


def test_predictions(ernie, tmp_path, call_command):
    folder, what = ernie
    done = call_command("predict", tmp_path, "--path", folder, "--output", tmp_path / "out", status=2)
    assert what.partition(" \\(")[0] in done.stderr


def test_recipes(ernie, tmp_path, call_command):
    folder, what = ernie
    done = call_command("recipe", "e2e", "--raw", tmp_path, "--encoder", folder, "--output", tmp_path / "out", status=2)
    assert what.partition(" \\(")[0] in done.stderr


def test_files(tmp_path):
    file = tmp_path / "model.pdmodel"
    file.write_bytes(b"")
    with pytest.raises(UserError, match=rf"{file} is a program of PaddlePaddle"):
        open_source(file)
    name = "ernie.encoder.layers.0.self_attn.q_proj.weight"
    (tmp_path / "model_state.pdparams").write_bytes(pickle.dumps({name: np.zeros((2, 2), np.float32)}, protocol=2))
    (tmp_path / "model_config.json").write_text("{}")
    with pytest.raises(UserError, match=rf"model_state\.pdparams: this is a model of PaddleNLP, .*{name}") as raised:
        open_source(tmp_path / "model_state.pdparams")
    assert len(raised.value.problems) == 1


def test_other_folders(tmp_path):
    assert paddle_model(tmp_path) is None and paddle_model(tmp_path / "absent") is None
    (tmp_path / "word_embedding").write_text("")  # one file is no model
    assert paddle_model(tmp_path) is None


def test_an_encoder_without_weights(tmp_path):
    """Alternatives are one problem."""
    (tmp_path / "encoder").mkdir()
    with pytest.raises(UserError) as raised:
        convert([str(tmp_path / "encoder"), "--to", str(tmp_path / "made")])
    weights, tokenizer = raised.value.problems
    assert "must hold model.safetensors" in weights and "must hold a tokenizer" in tokenizer
    (tmp_path / "encoder" / "vocab.txt").write_text("[PAD]\n[CLS]\n[SEP]\n[UNK]\n[MASK]\n")
    with pytest.raises(UserError) as raised:
        convert([str(tmp_path / "encoder"), "--to", str(tmp_path / "made")])
    assert len(raised.value.problems) == 1
