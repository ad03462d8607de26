"""Folders for engines whose parts belong to different models, or read files of others: refused by name, at once."""

import json
import os
import shutil
import time

import numpy as np
import pytest
from exported import write_model_folder
from tiny import VOCAB_SIZE
from tiny_deltalm import write_deltalm

from s2sft_fairseq import Seq2Seq
from s2sft_fairseq.checksums import write_checksums
from s2sft_fairseq.commands.export import main as export
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.inference.ctranslate2_folder import read_shapes
from s2sft_fairseq.inference.onnx_folder import check_graph_file

TEXT = "w5 w6 w7"


def exported(folder, format_, write):
    if format_ == "ctranslate2":
        pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    else:
        for name in ("onnxruntime", "onnx", "onnxscript"):
            pytest.importorskip(name, reason=f"{name} is not installed")
    write(folder / "model")
    export([str(folder / "model"), "--format", format_, "--to", str(folder / "exported")])
    return folder / "exported"


@pytest.fixture(scope="module")
def ctranslate2_folder(tmp_path_factory):
    return exported(tmp_path_factory.mktemp("ctranslate2"), "ctranslate2", write_deltalm)


@pytest.fixture(scope="module")
def onnx_folder(tmp_path_factory):
    return exported(tmp_path_factory.mktemp("onnx"), "onnx", write_model_folder)


@pytest.fixture(scope="module")
def onnx_deltalm_folder(tmp_path_factory):
    return exported(tmp_path_factory.mktemp("deltalm"), "onnx", write_deltalm)


def refused(folder, *named):
    """Open a folder as its sender would have it, with checksums that fit; return the message."""
    write_checksums(folder)
    start = time.monotonic()
    with pytest.raises(UserError) as error:
        Seq2Seq.from_pretrained(folder)
    assert time.monotonic() - start < 20
    for name in named:
        assert name in str(error.value), error.value
    return str(error.value)


def set_config(folder, *path_and_value):
    *path, name, value = path_and_value
    config = json.loads((folder / "config.json").read_text())
    place = config
    for part in path:
        place = place[part]
    place[name] = value
    (folder / "config.json").write_text(json.dumps(config))


@pytest.fixture
def copy_of(tmp_path):
    return lambda folder: shutil.copytree(folder, tmp_path / "received")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("add_source_eos", True),
        ("add_source_bos", True),
        ("decoder_start_token", "<s>"),
        ("bos_token", "</s>"),
        ("eos_token", "a"),
        ("unk_token", ["<unk>"]),
        ("layer_norm_epsilon", 0.5),
        ("multi_query_attention", True),
    ],
)
def test_settings_of_ctranslate2(ctranslate2_folder, copy_of, name, value):
    folder = copy_of(ctranslate2_folder)
    set_config(folder, name, value)
    refused(folder, f"config.json: {name} must be ")


def test_vocabularies_of_ctranslate2(ctranslate2_folder, copy_of):
    folder = copy_of(ctranslate2_folder)
    file = folder / "shared_vocabulary.json"
    symbols = json.loads(file.read_text())
    file.write_text(json.dumps([*symbols[:10], symbols[11], symbols[10], *symbols[12:]]))
    refused(folder, f"shared_vocabulary.json: symbol 10 must be {symbols[10]}, as in dict.txt, but is '{symbols[11]}'")
    for wrong in (symbols[:-1], {"a": 1}):
        file.write_text(json.dumps(wrong))
        refused(folder, f"must be a list of the {len(symbols)} symbols of dict.txt")
    (folder / "source_vocabulary.json").write_text(json.dumps(symbols))
    file.unlink()
    refused(folder, "source_vocabulary.json: ctranslate2 would read", "shared_vocabulary.json is missing")


def test_weights_of_another_ctranslate2_model(ctranslate2_folder, copy_of):
    folder = copy_of(ctranslate2_folder)
    for name, value in (
        ("encoder_layers", 10**6),
        ("decoder_layers", 7),
        ("encoder_embed_dim", 64),
        ("max_positions", 9),
    ):
        set_config(folder, "cfg", "model", name, value)
    refused(folder, "the encoder must have 1000000 layers", "the decoder must have 14 layers", "(82, 64)", "(9, 64)")
    content = (folder / "model.bin").read_bytes()
    for wrong in (b"", b"nothing", content[:4] + b"\x05\x00Other" + content[20:], content[:300]):
        (folder / "model.bin").write_bytes(wrong)
        refused(folder, "model.bin cannot be read by ctranslate2")
    assert read_shapes(ctranslate2_folder / "model.bin")["encoder/embeddings_0/weight"] == (82, 32)


def test_pipes_in_a_ctranslate2_folder(ctranslate2_folder, copy_of):
    folder = copy_of(ctranslate2_folder)
    for name in ("model.bin", "shared_vocabulary.json", "dict.txt"):
        (folder / name).unlink()
        os.mkfifo(folder / name)
        with pytest.raises(UserError, match=f"{name} must be a file, but is a pipe"):
            Seq2Seq.from_pretrained(folder)


@pytest.mark.parametrize("engine", [[], {}, 5, True, "tensorrt"])
def test_engines_of_another_kind(onnx_folder, copy_of, engine):
    folder = copy_of(onnx_folder)
    set_config(folder, "engine", engine)
    refused(folder, "config.json: engine must be one of ctranslate2, onnx, but is ")


@pytest.mark.parametrize("value", [10**6, 10**12, 0, -1, "2", None, 1.5, True, []])
def test_sizes_in_the_configuration_of_an_onnx_folder(onnx_folder, copy_of, value):
    folder = copy_of(onnx_folder)
    set_config(folder, "cfg", "model", "encoder_layers", value)
    refused(folder, "encoder_layers must be a whole number" if value not in (10**6, 10**12) else f"of {value} layers")


@pytest.mark.parametrize("value", [10**12, -1, "2", 1.5, True, [1]])
def test_the_width_of_heads_in_the_configuration_of_an_onnx_folder(onnx_folder, copy_of, value):
    folder = copy_of(onnx_folder)
    set_config(folder, "cfg", "model", "head_dim", value)
    refused(folder, "keys_0 must be" if value == 10**12 else "head_dim must be a whole number from 0 on")


@pytest.mark.parametrize("name", ["encoder_embed_dim", "encoder_attention_heads", "max_positions", "head_dim"])
def test_other_sizes_than_those_of_the_graph(onnx_folder, copy_of, name):
    folder = copy_of(onnx_folder)
    set_config(folder, "cfg", "model", name, 128)
    refused(folder, "model.onnx")


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("activation_fn", "${oc.env:HOME}", "cfg.model.activation_fn is '${oc.env:HOME}', but an option must be"),
        ("dropout", "${oc.env:HOME}", "cfg.model.dropout is '${oc.env:HOME}', but an option must be"),
        ("activation_fn", "os.system", "an option has another type: Invalid value 'os.system'"),
        ("dropout", "two", "an option has another type: Value 'two'"),
        ("source_visibility", "left", "an option has another type: Invalid value 'left'"),
        ("_name", ["unilm"], "cfg.model._name is ['unilm'], but a checkpoint may name only a model"),
        ("_name", None, "cfg.model must name its class by _name or arch"),
        ("_name", "transformer", "--arch must be unilm or one of its sizes for unilm_seq2seq, but is transformer"),
    ],
)
def test_options_in_the_configuration_of_an_onnx_folder(onnx_folder, copy_of, name, value, problem):
    """They are checked as those of a checkpoint: their values refer to nothing on this machine."""
    folder = copy_of(onnx_folder)
    set_config(folder, "cfg", "model", name, value)
    message = refused(folder, "config.json: ", problem)
    assert os.environ["HOME"] not in message


def test_a_damaged_configuration_of_an_onnx_folder(onnx_folder, copy_of):
    """The folder is that of a model all the same: the error is about its file."""
    folder = copy_of(onnx_folder)
    (folder / "config.json").write_text("{")
    refused(folder, "config.json must be JSON")


def test_paths_in_the_configuration_of_an_onnx_folder(onnx_folder, copy_of, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    folder = copy_of(onnx_folder)
    for name in ("pretrained", "span_vocab"):
        set_config(folder, "cfg", "model", name, str(tmp_path / "pipe"))
    write_checksums(folder)
    assert isinstance(Seq2Seq.from_pretrained(folder).generate(TEXT, max_len=2), str)


def edit(file, change):
    """Change a graph and write it back with all of its weights in the file."""
    onnx = pytest.importorskip("onnx")
    model = onnx.load(str(file))
    change(model.graph)
    file.with_name(f"{file.name}.data").unlink(missing_ok=True)
    onnx.save(model, str(file))


def rename(graph, old, new):
    for each in (*graph.input, *graph.output):
        each.name = new if each.name == old else each.name
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]


def cut_symbols(graph, rows):
    """Leave the first rows of every table of all symbols."""
    from onnx import numpy_helper

    for tensor in graph.initializer:
        if VOCAB_SIZE in tensor.dims:
            array = numpy_helper.to_array(tensor)
            axis = array.shape.index(VOCAB_SIZE)
            tensor.CopyFrom(numpy_helper.from_array(np.take(array, range(rows), axis).copy(), tensor.name))
    for output in graph.output:
        for dim in output.type.tensor_type.shape.dim:
            if dim.dim_value == VOCAB_SIZE:
                dim.ClearField("dim_value")


def set_type(graph, name, number):
    for each in graph.input:
        if each.name == name:
            each.type.tensor_type.elem_type = number


def open_dimension(graph):
    for each in graph.input:
        if each.name == "keys_0":
            each.type.tensor_type.shape.dim[1].dim_param = "heads"


def unused_input(graph):
    graph.input.append(graph.input[0])
    graph.input[-1].name = "more"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda graph: rename(graph, "predicted", "wanted"), ["no input 'wanted'", "must have the input predicted"]),
        (lambda graph: rename(graph, "logits", "scores"), ["must have the output logits"]),
        (lambda graph: rename(graph, "keys_1", "key_1"), ["must have the keys of 2 layers"]),
        (lambda graph: cut_symbols(graph, 10), ["cannot be run by onnxruntime"]),
        (lambda graph: set_type(graph, "segments", 6), ["segments must be a tensor(int64)", "but is a tensor(int32)"]),
        (open_dimension, ["the input keys_0 must be a tensor(float) of (any, 2, any, 8)"]),
        (unused_input, ["must have no input 'more'"]),
    ],
)
def test_graphs_of_other_models(onnx_folder, copy_of, change, named):
    folder = copy_of(onnx_folder)
    edit(folder / "model.onnx", change)
    refused(folder, "model.onnx", *named)


def test_an_output_for_fewer_symbols(onnx_deltalm_folder, copy_of):
    """The dictionary has more symbols than the graph scores."""
    folder = copy_of(onnx_deltalm_folder)
    with (folder / "dict.txt").open("a") as file:
        file.write("another 1\n")
    with pytest.raises(UserError, match=r"encoder\.onnx cannot be run by onnxruntime: "):
        write_checksums(folder)
        Seq2Seq.from_pretrained(folder)


def test_the_graphs_of_an_encoder_decoder(onnx_deltalm_folder, copy_of):
    folder = copy_of(onnx_deltalm_folder)
    shutil.copy(folder / "encoder.onnx", folder / "model.onnx")
    shutil.copy(folder / "encoder.onnx.data", folder / "model.onnx.data")
    refused(folder, "model.onnx must have the keys of 2 layers")


@pytest.mark.parametrize("location", ["../secret", "/etc/hostname", "sub/weights", "", "."])
def test_weights_outside_the_folder(onnx_folder, copy_of, location):
    """Whatever the version of onnxruntime: old ones open such files."""
    onnx = pytest.importorskip("onnx")
    folder = copy_of(onnx_folder)
    model = onnx.load(str(folder / "model.onnx"), load_external_data=False)
    tensor = next(each for each in model.graph.initializer if each.external_data)
    next(each for each in tensor.external_data if each.key == "location").value = location
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    refused(folder, f"model.onnx: its weights must be in files of its folder, but are in '{location}'")


def test_weights_in_a_link_or_missing(onnx_folder, copy_of, tmp_path):
    folder = copy_of(onnx_folder)
    (folder / "model.onnx.data").rename(tmp_path / "elsewhere")
    with pytest.raises(UserError, match=r"model\.onnx\.data, which has weights of model\.onnx, is missing"):
        check_graph_file(folder / "model.onnx")
    (folder / "model.onnx.data").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(
        UserError, match=r"model\.onnx\.data must be a file of its folder, but is a link that leads out"
    ):
        check_graph_file(folder / "model.onnx")


@pytest.mark.parametrize("content", [b"", b"\x0a", b"\x3a\xff\x01", b"\xff" * 20, b"\x3a\x02\x2a\x01"])
def test_no_graph(onnx_folder, copy_of, content):
    folder = copy_of(onnx_folder)
    (folder / "model.onnx").write_bytes(content)
    refused(folder, "model.onnx cannot be read by onnxruntime")


def test_layers_without_end_in_a_folder_for_pytorch(tmp_path):
    """So narrow that their parameters are few."""
    write_model_folder(tmp_path / "model")
    for name in ("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim"):
        set_config(tmp_path / "model", "cfg", "model", name, 10**6 if name == "encoder_layers" else 1)
    refused(tmp_path / "model", "encoder_layers must be at most 1,000, but is 1,000,000")


def test_graphs_within_graphs(tmp_path):
    """Nested more deeply than Python's own stack."""

    def message(number, content):
        length, bytes_ = len(content), b""
        while length > 0x7F:
            bytes_, length = bytes_ + bytes([length & 0x7F | 0x80]), length >> 7
        return bytes([number << 3 | 2]) + bytes_ + bytes([length]) + content

    content = b""
    for _ in range(2000):
        content = message(1, message(5, message(6, content)))
    (tmp_path / "model.onnx").write_bytes(message(7, content))
    with pytest.raises(UserError, match="nested too deeply"):
        check_graph_file(tmp_path / "model.onnx")
