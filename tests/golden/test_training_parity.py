"""Layouts, attention, logits, losses and gradients compared with the original s2s-ft program."""

import os
import re

import numpy as np
import pytest
import torch
from recorded import (
    FOLDER,
    METHOD_OF,
    convert,
    has_segments,
    load,
    model,
    raw_pairs,
    real_places,
    settings_of,
    training_case,
    training_form,
    variants,
)
from tiny import pack_example

from s2sft_fairseq.modules.lm_head import Targets
from s2sft_fairseq.modules.positions import relative_position_bucket
from s2sft_fairseq.modules.visibility import PackedColumns, visible
from s2sft_fairseq.objectives.finetuning import Corruption
from s2sft_fairseq.objectives.packing import PackedBatch, collate
from s2sft_fairseq.objectives.sequence_form import SequenceForm

pytestmark = pytest.mark.rounding


VARIANTS = variants("train")
BUCKETS = [file for file in ("rel_pos_bucket.npz",) if (FOLDER / file).exists()]


def recorded_cases(variant: str, pattern: str) -> list[tuple[str, ...]]:
    """Return the matches of a pattern in the names of a variant's arrays.

    If the padding id is not 0, the original counts padding in the losses of v0 and v1; then the cases without that bug
    are used.
    """
    names = load(f"train_{variant}")[0]
    found = sorted({match.groups() for name in names if (match := re.fullmatch(pattern, name))})
    return [(variant, *case) for case in found if f"{case[0]}_zeroweightpad/logits" not in names]


CASES = [case for variant in VARIANTS for case in recorded_cases(variant, r"(v\d\w*[^/]*)/logits")]
LOSSES = [case for variant in VARIANTS for case in recorded_cases(variant, r"(v[^/]*)/ls([\d.]+)/loss")]


def case_model(variant: str, case: str) -> torch.nn.Module:
    recorded = load(f"train_{variant}")[1]["cases"].get(case, {})
    return model(variant, layer_norm_eps=recorded.get("layer_norm_eps"))


@pytest.mark.skipif("GOLDEN_DIR" in os.environ, reason="another folder may have less")
@pytest.mark.parametrize("variant", VARIANTS)
def test_all_methods_are_recorded(variant):
    """All methods with and without smoothing, so that no case is missing unnoticed."""
    ways = {(case.split("_")[0], float(smoothing) > 0) for of, case, smoothing in LOSSES if of == variant}
    assert ways == {(way, smoothed) for way in METHOD_OF for smoothed in (False, True)}
    assert {case for of, case, _ in LOSSES if of == variant} == {case for of, case in CASES if of == variant}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("setting", ["keep", "allmask"])
@pytest.mark.parametrize("way", ["v0", "v1", "v2"])
def test_layouts_without_randomness(variant, way, setting):
    arrays, settings = load(f"train_{variant}")
    recorded = {
        key.split("/")[-1]: value for key, value in arrays.items() if key.startswith(f"layout/{way}_{setting}/")
    }
    form = training_form(variant, METHOD_OF[way])
    probabilities = {
        name: settings["cases"][f"layout/{way}_{setting}"][name]
        for name in ("target_mask_prob", "random_prob", "keep_prob")
    }
    corruption, rng = Corruption(**probabilities, exact_count=True), np.random.default_rng(0)
    examples = [pack_example(METHOD_OF[way], *pair, form, corruption, rng) for pair in raw_pairs(variant)]
    batch = collate(examples)
    names = ("source_ids", "target_ids", "pseudo_ids")[: len(batch.lengths[0])]
    np.testing.assert_array_equal(as_recorded(batch.token, batch, form), np.hstack([recorded[n] for n in names]))
    label = as_recorded(batch.label, batch, form)
    if way == "v2":
        np.testing.assert_array_equal(label[:, form.max_source + form.max_target :], recorded["label_ids"])
        return
    for i, length in enumerate(recorded["num_target_tokens"]):
        weight = np.zeros(len(recorded["masked_ids"][i]), dtype=bool)
        # Weights can be padded with 1, see above: the real ones come first.
        weight[: min(length, len(weight))] = True
        order = np.argsort(recorded["masked_pos"][i][weight])
        ids, positions = recorded["masked_ids"][i][weight][order], recorded["masked_pos"][i][weight][order]
        np.testing.assert_array_equal(label[i, form.max_source :][positions], ids)
        assert (label[i] != form.pad).sum() == len(ids)


def as_recorded(column: np.ndarray, batch: PackedBatch, form: SequenceForm, padding: int | None = None) -> np.ndarray:
    """Return a column (T,) as rows (B, L), padded like the recorded sections; by default with the padding id."""
    real = real_places(batch.lengths, form)
    rows = np.full(real.shape, form.pad if padding is None else padding)
    rows[real] = column
    return rows


@pytest.mark.parametrize(("variant", "case"), CASES)
def test_inputs_and_attention(variant, case):
    arrays, _ = load(f"train_{variant}")
    rebuilt = training_case(variant, case)
    batch = rebuilt.batch
    form, real = rebuilt.form, rebuilt.real
    np.testing.assert_array_equal(as_recorded(batch.token, batch, form), arrays[f"{case}/input_ids"])
    np.testing.assert_array_equal(as_recorded(batch.position, batch, form, 0), arrays[f"{case}/position_ids"])
    if has_segments(variant):
        np.testing.assert_array_equal(batch.segment, arrays[f"{case}/token_type_ids"][real])
    ends = np.cumsum([sum(blocks) for blocks in batch.lengths])[:-1]
    masks = arrays[f"{case}/attention_mask"].astype(bool)
    for step, group, places, mask in zip(
        np.split(batch.step, ends), np.split(batch.group, ends), real, masks, strict=True
    ):
        columns = torch.from_numpy(step), torch.from_numpy(group)
        # Among all keys of the row, including padding, which no query sees.
        seen = np.zeros((len(step), len(places)), dtype=bool)
        seen[:, places] = visible(*columns, *columns).numpy()
        np.testing.assert_array_equal(seen, mask[places])


@pytest.mark.parametrize(("variant", "case"), CASES)
def test_states_and_logits(variant, case):
    arrays, _ = load(f"train_{variant}")
    rebuilt = training_case(variant, case)
    inputs = rebuilt.inputs()
    built = case_model(variant, case)
    with torch.no_grad():
        states = built.encode(
            PackedColumns(**{name: inputs[name] for name in PackedColumns._fields if name in inputs})
        ).numpy()
        logits = built(**inputs).numpy()
    np.testing.assert_allclose(states, arrays[f"{case}/hidden"][rebuilt.real], atol=1e-4, rtol=0)
    recorded = [arrays[f"{case}/logits"][i][rows] for i, rows in enumerate(rebuilt.recorded_rows)]
    np.testing.assert_allclose(logits, np.concatenate(recorded), atol=1e-4, rtol=0)


def weighted_loss(built, rebuilt, smoothing: float, weights: torch.Tensor | None = None) -> torch.Tensor:
    """Return the weighted sum of the losses of the labels."""
    # The original excludes id 0 from the smoothing, whatever the padding id is.
    return built(**rebuilt.inputs(), targets=Targets(rebuilt.labels, 0, smoothing, weights)).loss


def loss_of(built, rebuilt, smoothing: float) -> torch.Tensor:
    """Return the loss as the original averages it."""
    return weighted_loss(built, rebuilt, smoothing) / (len(rebuilt.labels) + 1e-5)


@pytest.mark.parametrize(("variant", "case", "smoothing"), LOSSES)
def test_losses(variant, case, smoothing):
    arrays, _ = load(f"train_{variant}")
    built, rebuilt, smoothed = case_model(variant, case), training_case(variant, case), float(smoothing)
    with torch.no_grad():
        each = [weighted_loss(built, rebuilt, smoothed, one) for one in torch.eye(len(rebuilt.labels))]
        loss = loss_of(built, rebuilt, smoothed)
    recorded = arrays[f"{case}/ls{smoothing}/token_loss"]
    expected = np.concatenate([recorded[i][rows] for i, rows in enumerate(rebuilt.recorded_rows)])
    np.testing.assert_allclose(torch.stack(each).numpy(), expected, atol=1e-4, rtol=0)
    assert loss.item() == pytest.approx(float(arrays[f"{case}/ls{smoothing}/loss"]), abs=2e-5)


@pytest.mark.parametrize(("variant", "case", "smoothing"), LOSSES)
def test_gradients(variant, case, smoothing):
    arrays, settings = load(f"train_{variant}")
    built = case_model(variant, case)
    loss_of(built, training_case(variant, case), float(smoothing)).backward()
    gradients = original_names({name: parameter.grad for name, parameter in built.named_parameters()})
    recorded = dict(zip(settings["grad_param_names"], arrays[f"{case}/ls{smoothing}/grad_l2"], strict=True))
    assert gradients.keys() == recorded.keys()
    for name, norm in recorded.items():
        # The key bias has no effect: its gradient is rounding noise in both programs.
        tolerance = {"abs": 1e-6} if name.endswith("key.bias") else {"rel": 1e-3}
        assert gradients[name].norm().item() == pytest.approx(norm, **tolerance), name
    for table in ("word_embeddings", "position_embeddings"):
        if f"{case}/ls{smoothing}/grad_{table}" in arrays:
            ours = gradients[f"bert.embeddings.{table}.weight"].numpy()
            np.testing.assert_allclose(ours, arrays[f"{case}/ls{smoothing}/grad_{table}"], atol=1e-5, rtol=1e-3)
    if f"{case}/ls{smoothing}/grad_rel_pos_bias" in arrays:
        ours = gradients["bert.rel_pos_bias.weight"].numpy()
        np.testing.assert_allclose(ours, arrays[f"{case}/ls{smoothing}/grad_rel_pos_bias"], atol=1e-5, rtol=1e-3)


def original_names(ours: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return our gradients by the original's names, with query, key and value separate."""
    renames = {
        "embeddings.tokens": "bert.embeddings.word_embeddings",
        "embeddings.positions": "bert.embeddings.position_embeddings",
        "embeddings.segments": "bert.embeddings.token_type_embeddings",
        "embeddings.layer_norm": "bert.embeddings.LayerNorm",
        "relative_position": "bert.rel_pos_bias",
        "lm_head.dense": "cls.predictions.transform.dense",
        "lm_head.layer_norm": "cls.predictions.transform.LayerNorm",
        "lm_head": "cls.predictions",
    }
    in_layer = {
        "attention.output": "attention.output.dense",
        "attention_layer_norm": "attention.output.LayerNorm",
        "fc1": "intermediate.dense",
        "fc2": "output.dense",
        "final_layer_norm": "output.LayerNorm",
    }
    named = {}
    for name, gradient in ours.items():
        module, kind = name.rsplit(".", 1)
        if module in renames:
            named[f"{renames[module]}.{kind}"] = gradient
            continue
        _, layer, part = module.split(".", 2)
        prefix = f"bert.encoder.layer.{layer}"
        if part == "attention.qkv":
            for third, value in zip(("query", "key", "value"), gradient.chunk(3), strict=True):
                named[f"{prefix}.attention.self.{third}.{kind}"] = value
        else:
            named[f"{prefix}.{in_layer[part]}.{kind}"] = gradient
    return named


@pytest.mark.parametrize("variant", VARIANTS)
def test_renames_reach_every_parameter(variant):
    """The converter and the table above describe one mapping: going there and back changes nothing."""
    built = model(variant)
    weights = original_names(dict(built.named_parameters()))
    conversion = convert(weights, settings_of(variant)["config"])
    for name, parameter in built.named_parameters():
        torch.testing.assert_close(conversion.weights[name], parameter.detach(), rtol=0, atol=0)


@pytest.mark.parametrize("file", BUCKETS)
def test_relative_position_buckets(file):
    with np.load(FOLDER / file) as recorded:
        arrays = dict(recorded)
    distances = torch.from_numpy(arrays.pop("relative_position"))
    assert arrays
    for name, buckets in arrays.items():
        bins, distance = map(int, re.fullmatch(r"bucket_bins(\d+)_max(\d+)", name).groups())
        np.testing.assert_array_equal(relative_position_bucket(distances, bins, distance).numpy(), buckets)
