"""Settings that a family fixes and a configuration states: they are used, or refused by name."""

import json

import pytest
import torch
from hugging_face import (
    POSITIONS,
    has_head,
    our_model,
    our_output,
    save,
    segments_of,
    texts,
    their_model,
    their_output,
)
from neobert import write_neobert

from s2sft_fairseq.checkpoints.deltalm import read_deltalm
from s2sft_fairseq.checkpoints.deltalm_as_bart import read_bart
from s2sft_fairseq.checkpoints.families import family_of
from s2sft_fairseq.checkpoints.families.roberta import ROBERTA
from s2sft_fairseq.commands.convert import main as convert
from s2sft_fairseq.commands.export import main as export
from s2sft_fairseq.errors import UserError

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

DECODERS = ("bert", "roberta", "xlm-roberta", "electra-small-generator", "ernie", "mpnet")
UNTIED = (
    *(
        "bert",
        "roberta",
        "electra-small-generator",
        "ernie-tasks",
        "deberta",
        "modernbert",
        "nomic-bert",
        "gte",
        "jina",
        "mpnet",
    ),
)


def assert_same(theirs, folder):
    ours = our_model(folder)
    for lengths in ([9], [POSITIONS, 3, 17]):
        tokens, real = texts(lengths, ours.embeddings.tokens.padding_idx)
        segments = segments_of(real, getattr(theirs.config, "type_vocab_size", 0))
        expected = their_output(theirs, tokens, real, segments)[real]
        found = our_output(ours, tokens, real, segments, logits=has_head(theirs))[real]
        assert expected.std() > 0.1
        torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def converted(folder, made):
    convert([str(folder), "--to", str(made)])
    return made


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("roberta", {"hidden_act": "relu"}),  # the head has gelu all the same
        ("xlm-roberta", {"hidden_act": "silu"}),
        ("roberta", {"type_vocab_size": 2}),
        ("electra-small-generator", {"hidden_act": "relu"}),
        ("mpnet", {"hidden_act": "relu"}),
        ("mpnet", {"type_vocab_size": 3}),  # it has no segments, whatever is stated
        ("nomic-bert", {"hidden_act": "relu"}),
        ("modernbert", {"hidden_activation": "relu"}),
        ("modernbert", {"classifier_activation": "relu"}),
        ("modernbert", {"decoder_bias": False}),
        *((name, {"tie_word_embeddings": False}) for name in UNTIED),
    ],
)
def test_used_settings(tmp_path, name, changes):
    theirs = their_model(name, **changes)
    made = converted(save(name, theirs, tmp_path / "saved"), tmp_path / "made")
    assert_same(theirs, made)
    export([str(made), "--format", "hugging_face", "--to", str(tmp_path / "exported")])
    again = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "exported", attn_implementation="eager")
    assert_same(again.eval(), made)


@pytest.mark.parametrize(
    ("name", "setting"),
    [
        *((name, "layer_norm_eps") for name in ("bert", "roberta", "deberta", "nomic-bert", "jina", "mpnet")),
        *((name, "type_vocab_size") for name in ("bert", "gte", "jina")),
        *((name, "rope_parameters") for name in ("nomic-bert", "gte", "jina", "modernbert")),
        *((name, "rms_norm_eps") for name in ("eurobert", "ultrabert")),
        ("roberta", "pad_token_id"),
        ("mpnet", "pad_token_id"),
        ("mpnet", "relative_attention_num_buckets"),
        ("modernbert", "norm_eps"),
    ],
)
def test_settings_that_are_left_out(tmp_path, name, setting):
    """They have the values of `transformers`."""
    folder = save(name, their_model(name), tmp_path / "saved")
    config = json.loads((folder / "config.json").read_text())
    del config[setting]
    (folder / "config.json").write_text(json.dumps(config))
    theirs = type(their_model(name)).from_pretrained(folder, attn_implementation="eager").eval()
    assert_same(theirs, converted(folder, tmp_path / "made"))


REFUSED = [
    *((name, {"is_decoder": True}) for name in DECODERS),
    *((name, {"add_cross_attention": True}) for name in DECODERS),
    *((name, {"head_dim": 4}) for name in ("eurobert", "ultrabert", "nomic-bert")),
    ("bert", {"position_embedding_type": "relative_key"}),
    ("bert", {"new_pos_ids": True}),
    ("bert", {"relax_projection": 4}),
    ("roberta", {"pad_token_id": None}),
    ("roberta", {"pad_token_id": -1}),
    ("roberta", {"pad_token_id": True}),
    ("roberta", {"pad_token_id": 41}),
    ("roberta", {"pad_token_id": 0}),  # <s> in the tokenizer: it would have no position
    ("roberta", {"pad_token_id": 2}),
    *(("mpnet", {"relative_attention_num_buckets": number}) for number in (16, 64, -1, "32")),
    *(("mpnet", {"max_position_embeddings": number}) for number in (2, -3, None)),
    ("mpnet", {"position_embedding_type": "relative_key"}),
    ("gte", {"logn_attention_scale": True}),
    ("nomic-bert", {"rotary_scaling_factor": 2.0}),
    ("nomic-bert", {"causal": True}),
    ("jina", {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 20000.0}}),
    *((name, {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}) for name in ("modernbert", "eurobert", "gte")),
    ("ultrabert", {"rope_scaling": {"type": "ntk", "factor": 2.0}}),
    ("jina", {"rope_scaling": {"rope_type": "default", "rope_theta": 50.0}}),
    ("modernbert", {"sliding_window": 1}),
    ("modernbert", {"layer_types": ["full_attention"] * 4}),  # of five layers
    ("ultrabert", {"layer_types": ["full_attention"] * 4}),
    ("eurobert", {"rope_parameters": None}),  # programs have other defaults
    ("eurobert", {"tie_word_embeddings": True}),
]


@pytest.mark.parametrize(("name", "changes"), REFUSED)
def test_refused_settings(tmp_path, name, changes):
    folder = save(name, their_model(name), tmp_path / "saved")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    (setting,) = changes
    setting = "rope_" if setting.startswith("rope_") else setting  # rope_type or rope_theta
    with pytest.raises(UserError, match=rf"configuration(\'s| must have) {setting}"):
        converted(folder, tmp_path / "made")


@pytest.mark.parametrize("changes", [{"rms_norm": False}, {"rope": False}, {"dim_head": 4}, {"hidden_act": "GELU"}])
def test_settings_of_neobert(tmp_path, changes):
    write_neobert(tmp_path / "saved")
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    stated = {"rms_norm": True, "rope": True, "dim_head": 8, "hidden_act": "SwiGLU"}
    (tmp_path / "saved" / "config.json").write_text(json.dumps({**config, **stated}))
    converted(tmp_path / "saved", tmp_path / "made")
    (tmp_path / "saved" / "config.json").write_text(json.dumps({**config, **stated, **changes}))
    with pytest.raises(UserError, match=f"configuration's {next(iter(changes))} must be "):
        converted(tmp_path / "saved", tmp_path / "other")


@pytest.mark.parametrize("pad", [0, 1, 3, 7])
def test_positions_start_after_the_padding(tmp_path, pad, capsys):
    theirs = their_model("roberta", pad_token_id=pad, max_position_embeddings=POSITIONS + pad + 1)
    folder = save("roberta", theirs, tmp_path / "saved")
    symbols = list(json.loads((folder / "vocab.json").read_text()))
    symbols.remove("<pad>")
    symbols.insert(pad, "<pad>")
    (folder / "vocab.json").write_text(json.dumps({symbol: number for number, symbol in enumerate(symbols)}))
    made = converted(folder, tmp_path / "made")
    assert "pad_token_id" not in capsys.readouterr().out
    ours = our_model(made)
    assert ours.cfg.max_positions == POSITIONS and ours.embeddings.tokens.padding_idx == pad
    tokens, real = texts([POSITIONS, 3], pad)
    tokens = torch.where(real & (tokens == pad), 9, tokens)
    expected = their_output(theirs, tokens, real, torch.zeros_like(tokens))[real]
    found = our_output(ours, tokens, real, torch.zeros_like(tokens), logits=True)[real]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    export([str(made), "--format", "hugging_face", "--to", str(tmp_path / "exported")])
    again = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "exported").eval()
    assert again.config.pad_token_id == pad
    found = their_output(again, tokens, real, torch.zeros_like(tokens))[real]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_other_ids_in_the_tokenizer(tmp_path, capsys):
    """The padding is no symbol of every text: the conversion is right for texts without <unk>, and says so."""
    theirs = their_model("roberta", pad_token_id=3, max_position_embeddings=POSITIONS + 4, mask_token_id=7)
    made = converted(save("roberta", theirs, tmp_path / "saved"), tmp_path / "made")
    printed = capsys.readouterr().out
    assert "pad_token_id is 3, but <pad> has the id 1" in printed
    assert "mask_token_id is 7, but <mask> has the id 49" in printed
    assert_same(theirs, made)


@pytest.mark.parametrize("stated", [True, False, None])
def test_tasks_of_ernie(tmp_path, stated):
    """The table of tasks in a file counts only if the configuration says so."""
    folder = save("ernie-tasks", their_model("ernie-tasks"), tmp_path / "saved")
    config = json.loads((folder / "config.json").read_text())
    if stated is None:
        del config["use_task_id"]
    else:
        config["use_task_id"] = stated
    (folder / "config.json").write_text(json.dumps(config))
    theirs = transformers.ErnieForMaskedLM.from_pretrained(folder, attn_implementation="eager").eval()
    assert_same(theirs, converted(folder, tmp_path / "made"))


def test_an_export_with_another_head():
    sizes = {**ROBERTA.sizes({**SIZES_OF_ROBERTA, "hidden_act": "relu"}), "num_segments": 0}
    assert family_of(sizes) is ROBERTA
    with pytest.raises(UserError, match="--lm-head-activation-fn is relu, but gelu in RoBERTa"):
        family_of({**sizes, "lm_head_activation_fn": None})


SIZES_OF_ROBERTA = {
    **{"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8},
    "max_position_embeddings": 42,
}


@pytest.mark.parametrize("options", [{"no_scale_embedding": False}, {"encoder_normalize_before": True}])
def test_options_of_deltalm(options):
    with pytest.raises(UserError, match=f"configuration's {next(iter(options))} must be "):
        read_deltalm({}, options, pad=1)


@pytest.mark.parametrize(
    "changes", [{"activation_function": "tanh"}, {"scale_embedding": True}, {"decoder_attention_heads": 4}]
)
def test_a_bart_with_other_settings(changes):
    config = {
        **{"model_type": "bart", "decoder_layers": 2, "s2sft_deltalm": {"layer_norm_eps": 1e-5, "scale": 1.0}},
        **{"encoder_attention_heads": 2, "decoder_attention_heads": 2, "activation_function": "gelu", **changes},
    }
    with pytest.raises(UserError, match=f"configuration's {next(iter(changes))} must be "):
        read_bart({}, config, pad=1)
