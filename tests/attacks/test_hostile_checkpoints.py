"""Checkpoints that ask for much memory or whose values cannot be weights: refused by name, with little memory."""

import io
import json
import pickle
import resource
import zipfile
from argparse import Namespace

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils

from s2sft_fairseq.checkpoints.pretrained import PretrainedEncoder
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint, load_pickle
from s2sft_fairseq.checkpoints.source_files import open_source
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.convert import convert_encoder

BERT = {"model_type": "bert", "hidden_size": 4, "num_hidden_layers": 1, "num_attention_heads": 1}
BERT |= {"intermediate_size": 4, "max_position_embeddings": 4}


def save(folder, state, **config):
    """Write a file of weights and its configuration."""
    torch.save(state, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps({**BERT, **config}))
    return folder / "pytorch_model.bin"


def most_memory():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize("member", ["data.pkl", "data/0"])
def test_a_member_that_inflates(tmp_path, member):
    """PyTorch would unpack 300 MB from 300 kB."""
    whole = io.BytesIO()
    torch.save({"a": torch.zeros(4)}, whole)
    path = tmp_path / "pytorch_model.bin"
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(path, "w") as bomb:
        for entry in source.infolist():
            is_member = entry.filename.endswith(member)
            content = source.read(entry) + bytes(300_000_000) * is_member
            bomb.writestr(entry.filename, content, zipfile.ZIP_DEFLATED if is_member else zipfile.ZIP_STORED)
    assert path.stat().st_size < 10**6
    before = most_memory()
    for load in (load_checkpoint, lambda path: checkpoint_utils.load_checkpoint_to_cpu(str(path)), open_source):
        with pytest.raises(UserError, match=rf"pytorch_model\.bin: refused, .*.*/{member}' to 300,000,\d\d\d bytes"):
            load(path)
    assert most_memory() - before < 10**8


def expanded():
    return torch.zeros(1).expand(10**6, 10**6)


STRANGE = {
    "coo": (lambda: torch.eye(3).to_sparse(), r"a must be an ordinary tensor, but has the layout torch\.sparse_coo"),
    "csr": (
        lambda: torch.eye(3).to_sparse_csr(),
        r"a must be an ordinary tensor, but has the layout torch\.sparse_csr",
    ),
    "meta": (lambda: torch.zeros(10**9, 10**3, device="meta"), r"a must be an ordinary tensor, but is on .* meta"),
    "quantized": (lambda: torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.qint8), r"a must be .* is quantized"),
    "expanded": (expanded, r"a must be an ordinary tensor, but its shape is \(1000000, 1000000\), of only 1 elements"),
    "nested": (lambda: {"b": [expanded()]}, r"a\.b\.0 must be an ordinary tensor, but its shape is \(1000000, "),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:torch.quantize_per_tensor", "ignore:TypedStorage")
@pytest.mark.parametrize("name", STRANGE)
def test_tensors_that_are_no_weights(tmp_path, name):
    make, message = STRANGE[name]
    path = save(tmp_path, {"a": make()})
    for read in (load_checkpoint, open_source):
        with pytest.raises(UserError, match=rf"pytorch_model\.bin: {message}"):
            read(path)


class Rebuilt:
    """Pickled as a tensor with any offset and strides over a storage of four numbers."""

    def __init__(self, *place):
        self.place = place

    def __reduce__(self):
        return torch._utils._rebuild_tensor_v2, (torch.zeros(4).storage(), *self.place, False, {})


@pytest.mark.parametrize(
    "place", [(2**40, (4,), (1,)), (0, (4,), (2**40,)), (-1, (4,), (1,)), (0, (2**40,), (1,)), (0, (2,), (-1,))]
)
def test_tensors_outside_of_their_storage(tmp_path, place):
    path = save(tmp_path, {"a": Rebuilt(*place)})
    with pytest.raises(UserError, match=r"pytorch_model\.bin"):
        open_source(path)


@pytest.mark.parametrize(
    "name", [0, -1, (1, 2), None, 10**600, b"a", "a\nb", "\ud800", "\x1b[2J"], ids=lambda name: f"{name!r:.10}"
    if not isinstance(name, int) or abs(name) < 10 else "huge"
)  # fmt: skip
def test_names_that_are_no_plain_text(tmp_path, name):
    path = save(tmp_path, {name: torch.zeros(2)})
    with pytest.raises(UserError, match=r"pytorch_model\.bin: names must be plain text, but one is "):
        open_source(path)
    with pytest.raises(UserError, match=r"pytorch_model\.bin: names must be plain text, but one is "):
        load_checkpoint(save(tmp_path, {"cfg": {}, "model": {name: torch.zeros(2)}}))


def test_names_of_a_paddle_file(tmp_path):
    (tmp_path / "a.pdparams").write_bytes(pickle.dumps({(1, 2): np.zeros(3)}, protocol=2))
    with pytest.raises(UserError, match=r"a\.pdparams: names must be plain text, but one is \(1, 2\)"):
        load_pickle(tmp_path / "a.pdparams")


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"args": ["unilm"]}, "args must be a Namespace, but is a list"),
        ({"args": "unilm"}, "args must be a Namespace, but is a str"),
        ({"cfg": [("model", {})]}, "cfg must be a dict, but is a list"),
        ({"cfg": {}, "model": [torch.zeros(1)]}, "model must be a dict, but is a list"),
        ({"cfg": {}, "task_state": [1]}, "task_state must be a dict, but is a list"),
    ],
)
def test_parts_of_another_kind(tmp_path, entries, message):
    path = save(tmp_path, {"model": {"a": torch.zeros(1)}, **entries})
    for read in (load_checkpoint, open_source, lambda path: checkpoint_utils.load_checkpoint_to_cpu(str(path))):
        with pytest.raises(UserError, match=rf"pytorch_model\.bin: {message}"):
            read(path)


@pytest.mark.parametrize("cfg", [{"model": "unilm"}, {"model": [1]}])
def test_options_of_another_kind(tmp_path, cfg):
    path = save(tmp_path, {"model": {"a": torch.zeros(1)}, "cfg": cfg})
    with pytest.raises(UserError, match=r"pytorch_model\.bin: cfg\.model must be a dict, but is a (str|list)"):
        open_source(path)


def test_a_list_that_is_ten_billion_values(tmp_path):
    """Each list refers ten times to the next one; the file is smaller than 2 kB."""
    value = ["x"]
    for _ in range(10):
        value = [value] * 10
    path = save(tmp_path, {"model": {}, "cfg": {"model": {"_name": value}, "task": {"more": value}}, "args": None})
    assert path.stat().st_size < 2000
    with pytest.raises(UserError, match=r"pytorch_model\.bin: cfg must be a dictionary of options, but is nested"):
        checkpoint_utils.load_checkpoint_to_cpu(str(path))


@pytest.mark.parametrize("name", ["layers", "activation_fn"])
def test_a_number_of_600_digits(tmp_path, name):
    options = Namespace(arch="unilm", **{name: 10**600})
    path = save(tmp_path, {"model": {"a": torch.zeros(1)}, "args": options})
    with pytest.raises(UserError, match=rf"args\.{name} must be a number.* but is a whole number of 1,994 bits"):
        checkpoint_utils.load_checkpoint_to_cpu(str(path))


@pytest.mark.parametrize(
    "name", ["model.layers.999999999.attn.Wqkv.weight", f"bert.layer.{'9' * 5000}.a", "decoder.layers.999999999.fc3.w"]
)
def test_names_that_imply_a_billion_layers(tmp_path, name):
    before = most_memory()
    with pytest.raises(UserError):
        convert_encoder(open_source(save(tmp_path, {name: torch.zeros(2)}, model_type="unknown")))
    assert most_memory() - before < 10**8


@pytest.mark.parametrize(
    ("name", "missing"),
    [
        ("model.safetensors.index.json", r"model\.safetensors\.index\.json"),
        ("../outside.bin", r"\.\./outside\.bin"),
        ("/etc/passwd", "/etc/passwd"),
        ("sub/inside.bin", r"sub/inside\.bin"),
        ("x" * 5000 + ".bin", "'xxx"),
        ("a\x00.bin", r"'a\\x00\.bin'"),
    ],
)
def test_an_index_with_paths_to_other_folders(tmp_path, name, missing):
    folder = tmp_path / "folder"
    (folder / "sub").mkdir(parents=True)
    for file in (tmp_path / "outside.bin", folder / "sub" / "inside.bin"):
        torch.save({"a": torch.zeros(1)}, file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(UserError, match=rf"index\.json names 1 files, .* missing beside it: {missing}"):
        open_source(folder)


@pytest.mark.parametrize(
    "content", ["[]", "{}", '{"weight_map": []}', '{"weight_map": {"a": 1}}', '{"weight_map": {"a": {}}}']
)
def test_an_invalid_index(tmp_path, content):
    (tmp_path / "model.safetensors.index.json").write_text(content)
    with pytest.raises(UserError, match=r"index\.json must h"):
        open_source(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sizes", [1]),
        ("vocab_size", "50"),
        ("vocab_size", True),
        ("newly_initialized", {"a": 1}),
        ("layout", []),
        ("files", [1]),
        ("model", None),
    ],
)
def test_the_configuration_of_a_converted_encoder(tmp_path, name, value):
    described = {"sizes": {}, "vocab_size": 50, "newly_initialized": [], name: value}
    (tmp_path / "config.json").write_text(json.dumps(described))
    for file in ("model.pt", "dict.txt"):
        (tmp_path / file).write_text("")
    with pytest.raises(UserError, match=rf"config\.json was not written by 's2sft convert': {name} must be "):
        PretrainedEncoder.open(tmp_path)
