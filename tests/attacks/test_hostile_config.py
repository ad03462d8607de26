"""A configuration with values that nobody writes by mistake: refused by name, at once and with little memory."""

import json

import pytest
import torch
from file_readers import READERS
from hugging_face import LANGUAGE_MODELS, MODELS, save, their_model

from s2sft_fairseq.checkpoints.families.settings import NULLABLE
from s2sft_fairseq.checkpoints.source_files import open_source
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.convert import convert_encoder

FAMILIES = [*MODELS, *(name for name in LANGUAGE_MODELS if "-" not in name)]


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    """A folder saved by Hugging Face's transformers, and its configuration."""
    folder = save("bert", their_model("bert"), tmp_path_factory.mktemp("bert"))
    return folder, json.loads((folder / "config.json").read_text(encoding="utf-8"))


@pytest.fixture
def convert(bert, call_command, tmp_path):
    """Convert with another text as the configuration, and return the error output."""
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")

    def run(text):
        (tmp_path / "config.json").write_text(text, encoding="utf-8")
        done = call_command("convert", bert[0], "--config", "config.json", "--to", "out", status=2)
        assert "Traceback" not in done.stderr
        return done.stderr

    return run


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("num_hidden_layers", value) for value in (10**9, -1, "2", 2.5, True)),
        *(("hidden_size", value) for value in (10**12, 0)),
        *(("num_attention_heads", value) for value in (10**12, 0)),
        *(("max_position_embeddings", value) for value in (10**12, None)),
        *(("hidden_act", value) for value in (5, "none")),
        *(("layer_norm_eps", value) for value in ("x", None, -1, float("nan"), float("inf"))),
        *(("type_vocab_size", value) for value in ("x", [2], 10**12)),
        ("vocab_size", 10**13),
    ],
)
def test_a_value(bert, convert, name, value):
    said = convert(json.dumps({**bert[1], name: value}))
    shown = f"{value:,}" if isinstance(value, int) and abs(value) > 10**6 else str(value)
    assert shown in said or str(value) in said


@pytest.mark.parametrize(
    "text", ['{"a":' * 100_000 + "1" + "}" * 100_000, '{"hidden_size": ' + "9" * 5000 + "}", "[1]", "", "\x00"]
)
def test_no_configuration(convert, text):
    assert "config.json must" in convert(text)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layers", [None, 10**9])
def test_numbers_of_layers(family, layers, tmp_path):
    """Without the lists that have an item for each layer."""
    save(family, their_model(family), tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    (name,) = {"num_hidden_layers", "n_layer"} & config.keys()
    config.update({name: layers, **dict.fromkeys(("layer_types", "attention_windows", "no_rope_layers"))})
    path.write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(UserError, match=f"{name} must be a whole number|--encoder-layers must be at most 1,000"):
        convert_encoder(open_source(tmp_path))


@pytest.mark.parametrize("family", ["modernbert", "ultrabert", "qwen2", "smollm3", "gemma3"])
def test_more_layers_than_a_list_has(family, tmp_path):
    """The list is refused before one of that length is made to compare it with."""
    save(family, their_model(family), tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), "num_hidden_layers": 10**9}))
    with pytest.raises(UserError, match=r"the configuration's layer_types must .* 1000000000 "):
        convert_encoder(open_source(tmp_path))


@pytest.mark.parametrize("family", FAMILIES)
def test_null_is_the_same_as_leaving_it_out(family, tmp_path):
    save(family, their_model(family), tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    nulls = dict.fromkeys(NULLABLE & config.keys())
    outcomes = []
    for changed in ({name: value for name, value in config.items() if name not in nulls}, {**config, **nulls}):
        path.write_text(json.dumps(changed), encoding="utf-8")
        try:
            outcomes.append(convert_encoder(open_source(tmp_path)).sizes)
        except UserError as error:
            outcomes.append(error.problems)
    assert outcomes[0] == outcomes[1]


def write_sizes(carrier, folder, **sizes):
    """Write a checkpoint, a model folder or a converted encoder whose configuration has these sizes."""
    READERS[carrier].write(folder)
    if carrier == "checkpoint":
        state = torch.load(folder / "checkpoint.pt", weights_only=False)
        state["cfg"]["model"].update(sizes)
        torch.save(state, folder / "checkpoint.pt")
    else:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        (config["cfg"]["model"] if carrier == "model_folder" else config["sizes"]).update(sizes)
        (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")


def test_a_table_of_all_distances(tmp_path):
    """DeBERTa's has as many rows as its configuration says, and no weights."""
    save("deberta", their_model("deberta"), tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text(encoding="utf-8")), "max_relative_positions": 10**8}))
    with pytest.raises(UserError, match=r"--max-relative-position must be at most 1,000,000 .*, but is 100,000,000"):
        convert_encoder(open_source(tmp_path))


@pytest.mark.parametrize("carrier", ["checkpoint", "model_folder", "pretrained"])
@pytest.mark.parametrize(
    "sizes",
    [
        *({name: 10**12} for name in ("encoder_embed_dim", "encoder_ffn_embed_dim", "num_segments", "lm_head_dim")),
        {"encoder_layers": None, "encoder_ffn_embed_dim": 2**32},
        {"max_positions": 10**10},
        {"num_segments": 0, "num_roles": 10**11, "num_turns": 4},
        {"relative_position_bins": 10**12},
        {"head_dim": 10**12},
        {"disentangled_attention": "both", "max_relative_position": 10**12},
    ],
    ids=str,
)
def test_sizes_that_the_weights_do_not_explain(carrier, sizes, tmp_path):
    write_sizes(carrier, tmp_path, **sizes)
    with pytest.raises(UserError) as error:
        READERS[carrier].read(tmp_path)
    said = str(error.value)
    (weights,) = [path for name in ("*.pt", "*.safetensors") for path in tmp_path.glob(name)]
    assert f"{weights} ({weights.stat().st_size:,} bytes)" in said
    assert all(
        f"{name} {value!r}" in said for name, value in sizes.items() if name != "disentangled_attention" and value
    )


@pytest.mark.parametrize("carrier", ["checkpoint", "model_folder", "pretrained"])
@pytest.mark.parametrize("layers", [1_001, 10**9, 10**18])
def test_too_many_layers(carrier, layers, tmp_path):
    """Layers of any width take time."""
    write_sizes(carrier, tmp_path, encoder_layers=layers)
    with pytest.raises(UserError, match=f"encoder_layers.*1,000.*{layers:,}"):
        READERS[carrier].read(tmp_path)


@pytest.mark.parametrize("carrier", ["checkpoint", "model_folder", "pretrained"])
@pytest.mark.parametrize(
    ("value", "needed"),
    [(float("nan"), "a finite number"), (float("inf"), "a finite number"), (-1.0, "above 0"), (0.0, "above 0")],
)
def test_an_epsilon(carrier, value, needed, tmp_path):
    write_sizes(carrier, tmp_path, layer_norm_eps=value)
    with pytest.raises(UserError, match=f"--layer-norm-eps must be {needed}, but is {value:g}") as error:
        READERS[carrier].read(tmp_path)
    assert str(tmp_path) in str(error.value)


def test_sizes_may_be_null(tmp_path):
    """Null is the same as leaving a size out."""
    write_sizes("pretrained", tmp_path, num_segments=None, layer_norm_eps=None)
    READERS["pretrained"].read(tmp_path)
