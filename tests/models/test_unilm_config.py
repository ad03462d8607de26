"""Sizes that are not given, and errors of impossible ones."""

import pytest

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.unilm_config import SIZES, UnilmConfig, complete_sizes, width_of_head


def test_sizes_that_are_not_given_are_those_of_bert_base():
    cfg = UnilmConfig(encoder_layers=3)
    complete_sizes(cfg)
    assert {name: getattr(cfg, name) for name in SIZES} == {**SIZES, "encoder_layers": 3}


def test_all_sizes_that_are_impossible():
    cfg = UnilmConfig(
        encoder_layers=0,
        encoder_embed_dim=16,
        encoder_ffn_embed_dim=-1,
        encoder_attention_heads=3,
        max_positions=0,
        num_segments=-1,
        relative_position_bins=7,
    )
    with pytest.raises(UserError) as raised:
        complete_sizes(cfg)
    assert raised.value.problems == [
        "--encoder-layers must be at least 1, but is 0",
        "--encoder-ffn-embed-dim must be at least 1, but is -1",
        "--max-positions must be at least 1, but is 0",
        "--num-segments must be at least 0, but is -1",
        "--encoder-embed-dim must be a multiple of --encoder-attention-heads (3), but is 16",
        "--relative-position-bins must be 0 or an even number from 4 on, but is 7",
    ]


def test_all_options_of_modernbert_and_electra_that_are_impossible():
    cfg = UnilmConfig(
        encoder_embed_dim=15,
        encoder_attention_heads=3,
        embedding_dim=-8,
        layer_norm_position="middle",
        feed_forward="swish",
        biases="some",
        rotary_base=10.0,
        local_rotary_base=-1.0,
        local_attention_window=-2,
        global_attention_every=0,
    )
    with pytest.raises(UserError) as raised:
        complete_sizes(cfg)
    assert raised.value.problems == [
        "--embedding-dim must be at least 0, but is -8",
        "--layer-norm-position must be one of post, pre, both, but is middle",
        "--feed-forward must be one of plain, gated, but is swish",
        "--local-rotary-base must be at least 0, but is -1",
        "--local-attention-window must be at least 0, but is -2",
        "--global-attention-every must be at least 1, but is 0",
        "--biases must be all, none, or some of attention,qkv,fc1,fc2,norm,head, but has some",
        "--encoder-embed-dim must be an even multiple of --encoder-attention-heads (3) with --rotary-base, but is 15",
    ]


def test_local_rotary_positions_need_global_ones():
    with pytest.raises(UserError, match=r"^--local-rotary-base must be 0 without --rotary-base, but is 100.0$"):
        complete_sizes(UnilmConfig(local_rotary_base=100.0))


def problems_of(**options):
    with pytest.raises(UserError) as raised:
        complete_sizes(UnilmConfig(**options))
    return raised.value.problems


def test_all_options_of_language_models_that_are_impossible():
    assert problems_of(
        head_dim=-2, embedding_scale=0.0, source_visibility="left", query_key_norm="layer", unrotated_layers_every=-1
    ) == [
        "--embedding-scale must be above 0, but is 0",
        "--source-visibility must be one of both, causal, but is left",
        "--head-dim must be at least 0, but is -2",
        "--query-key-norm must be one of none, rms, but is layer",
        "--unrotated-layers-every must be at least 0, but is -1",
        "--unrotated-layers-every must be 0 without --rotary-base, but is -1",
    ]
    assert problems_of(rotary_base=1e4, head_dim=7) == ["--head-dim must be even with --rotary-base, but is 7"]
    assert problems_of(unrotated_layers_every=4, rotary_scaling="linear:2") == [
        "--unrotated-layers-every must be 0 without --rotary-base, but is 4",
        "--rotary-scaling must be empty without --rotary-base, but is linear:2",
    ]
    assert problems_of(disentangled_attention="both", head_dim=32, query_key_norm="rms") == [
        "--head-dim must be 0 with --disentangled-attention both, but is 32",
        "--query-key-norm must be none with --disentangled-attention both, but is rms",
    ]


@pytest.mark.parametrize(
    ("scaling", "problem"),
    [
        ("linear", "linear:FACTOR or llama3:FACTOR:LOW:HIGH:ORIGINAL"),
        ("linear:8:1", "linear:FACTOR or llama3:FACTOR:LOW:HIGH:ORIGINAL"),
        ("yarn:4", "linear:FACTOR or llama3:FACTOR:LOW:HIGH:ORIGINAL"),
        ("linear:x", "linear:FACTOR or llama3:FACTOR:LOW:HIGH:ORIGINAL"),
        ("linear:-2", "positive numbers"),
        ("linear:inf", "positive numbers"),
        ("llama3:8:1:nan:8192", "positive numbers"),
        ("llama3:8:4:4:8192", "LOW below HIGH"),
    ],
)
def test_scalings_of_rotations_that_are_impossible(scaling, problem):
    (found,) = problems_of(rotary_base=1e4, rotary_scaling=scaling)
    assert found.startswith("--rotary-scaling must ")
    assert f"{problem}, but is {scaling}" in found


def test_heads_of_any_width_need_no_multiple():
    cfg = UnilmConfig(encoder_embed_dim=10, encoder_attention_heads=4, head_dim=6)
    complete_sizes(cfg)
    assert width_of_head(cfg) == 6
    assert width_of_head(UnilmConfig(**{**SIZES, "head_dim": 0})) == 64


def test_initial_locality_needs_random_biases():
    with pytest.raises(UserError) as raised:
        complete_sizes(UnilmConfig(initial_locality=0.5, pretrained="encoder"))
    assert raised.value.problems == [
        "--initial-locality must be 0 without --relative-position-bins, but is 0.5",
        "--initial-locality must be 0 with --pretrained, which has biases, but is 0.5",
    ]


def test_values_of_other_types():
    """As a file can hold them."""
    wrong = {"encoder_layers": "six", "dropout": "x", "encoder_embed_dim": [1], "compile": 1, "max_positions": True}
    with pytest.raises(UserError) as raised:
        complete_sizes(UnilmConfig(**wrong))
    kinds = ("encoder-layers must be a whole number", "dropout must be a number", "embed-dim must be a whole number")
    for named in (*kinds, "compile must be True or False, but is 1", "max-positions must be a whole number"):
        assert f"{named}" in str(raised.value)
    assert len(raised.value.problems) == len(wrong)
    complete_sizes(UnilmConfig(dropout=0, rotary_base=10000))


def test_no_heads():
    with pytest.raises(UserError, match=r"^--encoder-attention-heads must be at least 1, but is 0$"):
        complete_sizes(UnilmConfig(encoder_attention_heads=0))


def test_relative_positions_that_end_before_their_bins():
    with pytest.raises(
        UserError, match=r"--max-relative-position must exceed a quarter of --relative-position-bins \(32\), but is 8$"
    ):
        complete_sizes(UnilmConfig(relative_position_bins=32, max_relative_position=8))


def test_all_options_of_freezing_and_adapters_that_are_impossible():
    cfg = UnilmConfig(
        encoder_layers=2, freeze_layers=-1, lora_rank=-1, lora_alpha=0.0, lora_dropout=1.0, lora_targets="some"
    )
    with pytest.raises(UserError) as raised:
        complete_sizes(cfg)
    assert raised.value.problems == [
        "--freeze-layers must be at least 0, but is -1",
        "--lora-rank must be at least 0, but is -1",
        "--lora-dropout must be at least 0 and below 1, but is 1",
        "--lora-targets must be one of attention, all, but is some",
        "--lora-alpha must be positive, but is 0",
    ]


def test_too_many_frozen_layers_and_adapters_without_an_encoder():
    with pytest.raises(UserError) as raised:
        complete_sizes(UnilmConfig(encoder_layers=2, freeze_layers=3, lora_rank=8))
    assert raised.value.problems == [
        "--freeze-layers must be at most --encoder-layers (2), but is 3",
        "--lora-rank needs --pretrained: adapters are trained beside an encoder, which they do not hold",
    ]


def test_dropout_that_is_impossible():
    cfg = UnilmConfig(dropout=1.0, attention_dropout=-0.1, activation_dropout=2.0)
    with pytest.raises(UserError) as raised:
        complete_sizes(cfg)
    assert raised.value.problems == [
        "--dropout must be at least 0 and below 1, but is 1",
        "--attention-dropout must be at least 0 and below 1, but is -0.1",
        "--activation-dropout must be at least 0 and below 1, but is 2",
    ]


def test_what_flex_attention_lacks():
    with pytest.raises(UserError) as raised:
        complete_sizes(UnilmConfig(attention="flex", attention_dropout=0.1, relative_position_bins=32))
    assert raised.value.problems == [
        "--attention-dropout must be 0 with --attention flex, which has none, but is 0.1",
        "--relative-position-bins must be 0 with --attention flex, which adds no bias, but is 32; --attention padded "
        "does",
    ]


def test_what_disentangled_attention_excludes():
    cfg = UnilmConfig(
        disentangled_attention="p2c",
        relative_position_bins=32,
        rotary_base=10.0,
        attention="padded",
        disentangled_buckets=7,
    )
    with pytest.raises(UserError) as raised:
        complete_sizes(cfg)
    assert raised.value.problems == [
        "--relative-position-bins must be 0 with --disentangled-attention p2c, but is 32",
        "--rotary-base must be 0 with --disentangled-attention p2c, but is 10",
        "--attention must be auto or loop with --disentangled-attention p2c, but is padded",
        "--disentangled-buckets must be 0 or an even number from 4 on, but is 7",
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"disentangled_attention": "none", "disentangled_buckets": 8},
         r"^--disentangled-buckets must be 0 without --disentangled-attention, but is 8$"),
        ({"disentangled_attention": "both", "disentangled_buckets": 8, "max_relative_position": 10**7},
         r"^--max-relative-position must be at most 1,000,000 with --disentangled-attention both, but is 10,000,000$"),
        ({"disentangled_attention": "both", "disentangled_buckets": 8, "max_relative_position": 5},
         r"^--max-relative-position must exceed half of --disentangled-buckets \(8\) by 2 or more, but is 5$"),
        ({"disentangled_attention": "both", "max_relative_position": 0},
         r"^--max-relative-position must be positive with --disentangled-attention both, but is 0$"),
    ],
)  # fmt: skip
def test_relative_positions_of_disentangled_attention(options, message):
    with pytest.raises(UserError, match=message):
        complete_sizes(UnilmConfig(**options))


def test_random_weights_and_an_encoder_exclude_each_other():
    with pytest.raises(UserError, match="--random-init and --pretrained encoder exclude each other"):
        complete_sizes(UnilmConfig(pretrained="encoder", random_init=True))
