"""A configuration with values that nobody writes by mistake: refused by name, at once and with little memory."""

import json

import pytest
from hugging_face import MODELS, save, their_model

from s2sft_fairseq.checkpoints.families.settings import NULLABLE
from s2sft_fairseq.checkpoints.source_files import open_source
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.convert import convert_encoder


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


@pytest.mark.parametrize("family", MODELS)
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
