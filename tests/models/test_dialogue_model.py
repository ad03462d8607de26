"""Role and turn embeddings in place of segments: sizes, and initialization from a pretrained encoder's segments."""

from types import SimpleNamespace

import pytest
import torch
from tiny import PAD, VOCAB_SIZE, tiny_config, tiny_dictionary, tiny_model

from s2sft_fairseq.checkpoints.conversion import Conversion
from s2sft_fairseq.checkpoints.pretrained import PretrainedEncoder, write_pretrained
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.exports.hugging_face import export_to_hugging_face as export
from s2sft_fairseq.models.convert import parameter_shapes
from s2sft_fairseq.models.trained_parameters import freeze
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.models.unilm_config import SIZES, UnilmConfig, complete_sizes

SEGMENTS, TABLES = "embeddings.segments.weight", {"embeddings.roles.weight", "embeddings.turns.weight"}


@pytest.fixture(params=[4, 0], ids=["segments", "no segments"])
def encoder(request, tmp_path):
    """The folder of an encoder, and its model."""
    model = tiny_model(1, num_segments=request.param)
    # As in a folder that was converted before roles existed.
    sizes = {name: getattr(model.cfg, name) for name in SIZES if name not in ("num_roles", "num_turns")}
    folder = tmp_path / "encoder"
    write_pretrained(folder, Conversion("BERT", dict(model.state_dict()), sizes))
    tiny_dictionary().save(str(folder / "dict.txt"))
    return folder, model


def build(folder, **options):
    cfg = UnilmConfig(pretrained=str(folder), **options)
    return UnilmModel.build_model(cfg, SimpleNamespace(source_dictionary=tiny_dictionary()))


def test_sizes():
    cfg = UnilmConfig(num_roles=3, num_turns=16)
    complete_sizes(cfg)
    assert (cfg.num_segments, cfg.num_roles, cfg.num_turns) == (0, 3, 16)
    shapes = parameter_shapes({name: getattr(cfg, name) for name in SIZES}, 10)
    assert {name: shapes[name] for name in TABLES} == dict(zip(sorted(TABLES), [(3, 768), (16, 768)], strict=True))
    assert SEGMENTS not in shapes


@pytest.mark.parametrize(
    ("options", "problems"),
    [
        ({"num_roles": 3}, ["--num-roles and --num-turns must both be given or both be 0, but are 3 and 0"]),
        ({"num_turns": 16}, ["--num-roles and --num-turns must both be given or both be 0, but are 0 and 16"]),
        ({"num_roles": 3, "num_turns": 16, "num_segments": 2},
         ["--num-segments must be 0 with --num-roles, whose embedding takes the place of the segments', but is 2"]),
        ({"num_roles": -1, "num_turns": -1},
         ["--num-roles must be at least 0, but is -1", "--num-turns must be at least 0, but is -1"]),
    ],
)  # fmt: skip
def test_sizes_that_are_impossible(options, problems, tmp_path):
    with pytest.raises(UserError) as raised:
        complete_sizes(UnilmConfig(**options))
    assert raised.value.problems == problems
    if options.get("num_roles") != -1:
        model = tiny_model()
        sizes = {name: getattr(model.cfg, name) for name in SIZES}
        write_pretrained(tmp_path, Conversion("BERT", dict(model.state_dict()), sizes))
        tiny_dictionary().save(str(tmp_path / "dict.txt"))
        with pytest.raises(UserError) as raised:
            build(tmp_path, **options)
        assert raised.value.problems == problems


def test_from_a_pretrained_encoder(encoder, caplog):
    folder, plain = encoder
    with caplog.at_level("INFO"):
        model = build(folder, num_roles=3, num_turns=4)
    messages = [record.getMessage() for record in caplog.records]
    assert (
        "newly initialised, for the pretrained encoder lacks them: embeddings.roles.weight, embeddings.turns.weight"
        in messages
    )
    left_out = f"left out, for the model has no such part: {SEGMENTS}"
    assert (left_out in messages) == (plain.cfg.num_segments > 0)
    own = model.state_dict()
    for name, value in plain.state_dict().items():
        if name != SEGMENTS:
            assert torch.equal(own[name], value), name
    assert own.keys() - plain.state_dict().keys() == TABLES
    assert 0.01 < own["embeddings.turns.weight"].std() < 0.03
    assert (model.cfg.num_segments, model.cfg.num_roles, model.cfg.num_turns) == (0, 3, 4)
    assert model.cfg.pretrained is None

    # The next model starts from the one with roles and takes its tables.
    sizes = {name: getattr(model.cfg, name) for name in SIZES}
    write_pretrained(folder, Conversion("BERT", dict(own), sizes))
    again = build(folder, num_roles=3, num_turns=4)
    assert all(torch.equal(value, own[name]) for name, value in again.state_dict().items())
    assert PretrainedEncoder.open(folder).with_roles(3, 4) == PretrainedEncoder.open(folder)


def test_the_tables_are_trained_with_adapters(encoder):
    folder, _ = encoder
    model = build(folder, num_roles=3, num_turns=4, lora_rank=2)
    kept = model.state_dict()
    assert kept.keys() >= TABLES
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert trained >= TABLES
    assert not any("tokens" in name for name in trained)
    # A checkpoint of adapters names its encoder, which is loaded too.
    other = build(folder, num_roles=3, num_turns=4, num_segments=0, lora_rank=2)
    other.load_state_dict(kept)
    assert all(torch.equal(value, kept[name]) for name, value in other.state_dict().items())


def test_frozen_embeddings_are_all_frozen():
    model = UnilmModel(tiny_config(num_segments=0, num_roles=3, num_turns=4), vocab_size=VOCAB_SIZE, pad=PAD)
    freeze(model, tiny_config(num_segments=0, num_roles=3, num_turns=4, freeze_embeddings=True))
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    assert frozen == {"embeddings.tokens.weight", "embeddings.positions.weight", *TABLES}


def test_hugging_face_has_no_such_model(tmp_path):
    model = tiny_model(num_segments=0, num_roles=3, num_turns=4)
    sizes = {name: getattr(model.cfg, name) for name in SIZES}
    write_pretrained(tmp_path / "encoder", Conversion("BERT", dict(model.state_dict()), sizes))
    tiny_dictionary().save(str(tmp_path / "encoder" / "dict.txt"))
    with pytest.raises(UserError) as raised:
        export(tmp_path / "encoder", tmp_path / "out")
    path = tmp_path / "encoder" / "model.pt"
    assert str(raised.value) == f"{path} has role and turn embeddings (--num-roles), which no Hugging Face model has"
    assert not (tmp_path / "out").exists()
