"""The choices of ``s2sft finetune``: lengths by a hand-made table, updates, batches and learning rates."""

import pytest

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.recipes import finetune_plan
from s2sft_fairseq.recipes.finetune_plan import CPU, GPU, Lengths, choose, choose_lengths, quantile
from s2sft_fairseq.recipes.finetune_settings import RUN_OPTIONS, SETTINGS
from s2sft_fairseq.recipes.settings import Settings


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ({7: 1}, 7),
        ({10: 99, 50: 1}, 10),
        ({10: 98, 50: 2}, 50),
        ({10: 198, 20: 1, 50: 1}, 10),
        ({10: 197, 20: 2, 50: 1}, 20),
    ],
)
def test_quantile(lengths, expected):
    assert quantile(lengths) == expected


# 100 sources: 98 of 30 tokens, one of 60, one of 90. 100 targets: 99 of 10 tokens, one of 40. [CLS] source [SEP] and
# target [SEP] take two positions and one; one position is reserved for the start of infilling.
SOURCES, TARGETS = {30: 98, 60: 1, 90: 1}, {10: 99, 40: 1}


@pytest.mark.parametrize(
    ("positions", "max_source", "max_target", "expected"),
    [
        (512, None, None, Lengths(62, 11, 0.01, 0.01)),
        (74, None, None, Lengths(62, 11, 0.01, 0.01)),
        (73, None, None, Lengths(61, 11, 0.02, 0.01)),
        (41, None, None, Lengths(29, 11, 1.0, 0.01)),
        (512, 32, None, Lengths(32, 11, 0.02, 0.01)),
        (512, None, 41, Lengths(62, 41, 0.01, 0.0)),
        (512, 92, 41, Lengths(92, 41, 0.0, 0.0)),
        (74, None, 41, Lengths(32, 41, 0.02, 0.0)),
        (74, 65, None, Lengths(65, 8, 0.01, 1.0)),
    ],
)
def test_lengths(positions, max_source, max_target, expected):
    assert choose_lengths(SOURCES, TARGETS, positions, max_source, max_target) == expected


def test_long_targets_get_the_positions_left_by_sources():
    assert choose_lengths({10: 1}, {100: 1}, 65) == Lengths(12, 52, 0.0, 1.0)
    assert choose_lengths({100: 1}, {100: 1}, 65) == Lengths(32, 32, 1.0, 1.0)


def test_lengths_that_do_not_fit():
    with pytest.raises(UserError, match=r"--max-source and --max-target .* the 511 positions .* are 500 and 12"):
        choose_lengths(SOURCES, TARGETS, 512, 500, 12)


@pytest.fixture
def plan(tmp_path, monkeypatch):
    """Return the values and reasons chosen for a number of pairs."""

    def planned(pairs, width=384, device=CPU, visibility="both", **given):
        for side in ("src", "tgt"):
            (tmp_path / f"train.{side}").write_text("a b c\n" * pairs)
        monkeypatch.setattr(finetune_plan, "_has_gpu", lambda: device == GPU)
        settings = Settings({**RUN_OPTIONS, **SETTINGS})
        settings.give({"given": given})
        sizes = {"max_positions": 512, "encoder_embed_dim": width, "source_visibility": visibility}
        chosen = choose(settings, tmp_path, sizes)
        assert chosen["device"] == device
        settings.take(chosen["settings"])
        return settings

    return planned


@pytest.mark.parametrize(
    ("pairs", "device", "given", "batch", "updates", "warmup"),
    [
        (1000, CPU, {}, 16, 252, 25),
        (100, CPU, {}, 16, 100, 10),
        (75_000, CPU, {}, 16, 5000, 500),
        (75_000, CPU, {"epochs": 2}, 16, 9376, 937),
        (1000, CPU, {"updates": 7, "warmup": 3}, 16, 7, 3),
        (1000, CPU, {"batch": 100, "epochs": 1}, 100, 10, 1),
        (75_000, GPU, {}, 64, 11_720, 1172),
        (1000, GPU, {}, 64, 500, 50),
    ],
)
def test_updates(plan, pairs, device, given, batch, updates, warmup):
    s = plan(pairs, device=device, **given)
    assert (s.batch, s.updates, s.warmup, s.max_source, s.max_target) == (batch, updates, warmup, 5, 4)
    assert all(s.source_of[name] == "given" for name in given)


@pytest.mark.parametrize(
    ("pairs", "device", "given", "updates"),
    [
        (100, CPU, {}, 48),
        (2000, CPU, {}, 125),
        (75_000, CPU, {}, 500),
        (2000, CPU, {"epochs": 3}, 375),
        (2000, CPU, {"updates": 7}, 7),
        (10_000, GPU, {}, 471),
    ],
)
def test_updates_of_a_language_model(plan, pairs, device, given, updates):
    """Few: it writes well early, and takes longer for each."""
    s = plan(pairs, 576, device, "causal", **given)
    assert (s.updates, s.warmup) == (updates, updates // 10)
    assert s.lr == ("3e-4" if updates <= 16 else "1e-4")


@pytest.mark.parametrize(
    ("width", "max_source", "max_target", "examples"),
    [
        (384, None, None, 64),  # no more than an update has
        (384, 411, 100, 53),
        (512, 411, 100, 26),
        (1024, 411, 100, 13),
    ],
)
def test_examples_at_a_time_on_a_gpu(plan, width, max_source, max_target, examples):
    lengths = {} if max_source is None else {"max_source": max_source, "max_target": max_target}
    assert plan(10, width, GPU, **lengths).device_batch == examples
    assert plan(10, width, GPU, device_batch=8, **lengths).device_batch == 8
    assert plan(10, width, CPU, **lengths).device_batch == 16


def test_one_example_at_a_time(plan, monkeypatch):
    """Longer examples than the limit are computed one at a time."""
    monkeypatch.setattr(finetune_plan, "GPU_POSITIONS", {0: 100})
    assert plan(10, 384, GPU, max_source=411, max_target=100).device_batch == 1


def test_learning_rates_and_precision(plan, monkeypatch):
    assert [plan(10, width).lr for width in (384, 512, 768, 1024)] == ["3e-4", "1e-4", "1e-4", "2e-5"]
    assert plan(10, 768, lr="5e-4").lr == "5e-4"
    assert plan(10, device=GPU).amp == "on" and plan(10, device=GPU, amp="off").amp == "off"
    for multiplies, amp in ((True, "on"), (False, "off")):
        monkeypatch.setattr("s2sft_fairseq.modules.cpu_linear.multiplies_bf16", lambda known=multiplies: known)
        assert plan(10).amp == amp
