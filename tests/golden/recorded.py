"""The recorded numbers of the original s2s-ft program (see README.md in this folder), as our models and batches.

Everything comes from the recordings: the variants of the model, their sizes and special ids, and the lengths of
sections. ``GOLDEN_DIR`` in the environment names another folder of recordings of the same format.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import pack_example

from s2sft_fairseq.checkpoints.conversion import Conversion, read
from s2sft_fairseq.checkpoints.families.unilm import UNILM
from s2sft_fairseq.data.packed_dataset import model_input
from s2sft_fairseq.models.convert import parameter_shapes
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.models.unilm_config import UnilmConfig, complete_sizes
from s2sft_fairseq.objectives.objective import OBJECTIVES
from s2sft_fairseq.objectives.packing import PackedBatch, Section, collate
from s2sft_fairseq.objectives.sequence_form import SequenceForm, Start

FOLDER = Path(os.environ.get("GOLDEN_DIR") or Path(__file__).parent)
METHOD_OF = {"v0": "causal", "v1": "masked", "v2": "pseudo_masked"}


def variants(kind: str) -> list[str]:
    """Return the recorded variants of the model; kind: ``train`` or ``decode``."""
    return sorted(path.stem.removeprefix(f"{kind}_") for path in FOLDER.glob(f"{kind}_*.json"))


@cache
def load(name: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the arrays and the settings of a recording."""
    with np.load(FOLDER / f"{name}.npz") as arrays:
        return dict(arrays), json.loads((FOLDER / f"{name}.json").read_text())


def require(name: str) -> None:
    """Skip a module of tests if another folder of recordings lacks its data."""
    if "GOLDEN_DIR" in os.environ and not (FOLDER / f"{name}.npz").exists():
        pytest.skip(f"{FOLDER} has no {name}", allow_module_level=True)


@cache
def settings_of(variant: str) -> dict[str, Any]:
    """Return the settings that all recordings of a variant share: ``config`` and ``special_ids``."""
    return load(f"{'train' if variant in variants('train') else 'decode'}_{variant}")[1]


def special_ids(variant: str) -> dict[str, int]:
    ids = settings_of(variant)["special_ids"]
    return {"pad": ids["pad"], "cls": ids["cls"], "sep": ids["sep"], "placeholder": ids["mask"]}


def has_segments(variant: str) -> bool:
    return settings_of(variant)["config"]["type_vocab_size"] > 0


def sequence_form(variant: str, *, starts_with: Start, max_source: int, max_target: int) -> SequenceForm:
    vocab_size = settings_of(variant)["config"]["vocab_size"]
    limits = {"max_source": max_source, "max_target": max_target}
    return SequenceForm(**special_ids(variant), vocab_size=vocab_size, starts_with=starts_with, **limits)


def training_form(variant: str, method: str) -> SequenceForm:
    settings = load(f"train_{variant}")[1]
    limits = {"max_source": settings["max_source_len"], "max_target": settings["max_target_len"]}
    return sequence_form(variant, starts_with=OBJECTIVES[method].starts_with, **limits)


def raw_pairs(variant: str) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the ids of each source and target of the training batches, before any processing."""
    arrays, settings = load(f"train_{variant}")
    return [(arrays[f"raw/source_{i}"], arrays[f"raw/target_{i}"]) for i in range(len(settings["raw_source_lengths"]))]


def convert(weights: dict[str, torch.Tensor], config: dict[str, Any]) -> Conversion:
    """Convert weights with BERT's names and an optional relative position bias."""
    return read(UNILM, dict(weights), config, parameter_shapes)


def model(variant: str, layer_norm_eps: float | None = None) -> UnilmModel:
    """Return the recorded model; its weights are converted by our converter."""
    config = dict(settings_of(variant)["config"])
    if layer_norm_eps is not None:
        config["layer_norm_eps"] = layer_norm_eps
    with np.load(FOLDER / f"weights_{variant}.npz") as arrays:
        weights = {name: torch.from_numpy(array) for name, array in arrays.items()}
    conversion = convert(weights, config)
    assert not conversion.unused and not conversion.missing
    cfg = UnilmConfig(dropout=0.0, attention_dropout=0.0)
    complete_sizes(cfg, conversion.sizes)
    built = UnilmModel(cfg, vocab_size=config["vocab_size"], pad=special_ids(variant)["pad"])
    built.load_state_dict(conversion.weights)
    # In the original, row 0 gets no gradient through the input look-up, whatever the padding id is.
    built.embeddings.tokens.padding_idx = 0
    return built.eval()


def real_places(lengths: Sequence[Sequence[int]], form: SequenceForm) -> np.ndarray:
    """Return where our tokens are in recorded rows, whose sections are padded to their maximum, bool (B, L)."""
    most = (form.max_source, form.max_target, form.max_target)
    return np.concatenate(
        [np.arange(most[i]) < section[:, None] for i, section in enumerate(np.array(lengths).T)], axis=1
    )


@dataclass(frozen=True)
class TrainingCase:
    """One recorded batch, with the original's drawn ids in our layout."""

    batch: PackedBatch
    form: SequenceForm
    recorded_rows: list[np.ndarray]
    """For each example, the places of its labels among the P recorded slots, in our order."""

    def inputs(self) -> dict[str, Any]:
        return {**model_input(self.batch), "labelled": self.labelled}

    @property
    def real(self) -> np.ndarray:
        """The places of our tokens, in our order, in the recorded batch (B, L)."""
        return real_places(self.batch.lengths, self.form)

    @property
    def labelled(self) -> torch.Tensor:
        return torch.from_numpy(np.flatnonzero(self.batch.label != self.form.pad))

    @property
    def labels(self) -> torch.Tensor:
        return torch.from_numpy(self.batch.label)[self.labelled]


class ReplayedDraws:
    """Stands in for the corruption: puts the original's drawn ids where our objective would draw them."""

    def __init__(self, arrays: dict[str, np.ndarray], case: str, example: int, method: str) -> None:
        inputs = {
            key.rsplit("/", 1)[1]: value[example] for key, value in arrays.items() if key.startswith(f"{case}/in/")
        }
        self.method = method
        self.source = inputs["source_ids"][: inputs["num_source_tokens"]]
        self.target = inputs["target_ids"][: inputs["num_target_tokens"]]
        self.pseudo = inputs.get("pseudo_ids", self.target)[: inputs["num_target_tokens"]]
        if method == "masked":
            positions = inputs["masked_pos"][inputs["masked_weight"].astype(bool)]
            self.chosen = np.isin(np.arange(len(self.target)), positions)

    def pack(self, source: np.ndarray, target: np.ndarray, form: SequenceForm) -> tuple[Section, ...]:
        """Pack with our objective and no corruption, then replace the clean ids by the drawn ones."""
        corruption = OBJECTIVES[self.method].corruption["paper"]
        sections = pack_example(self.method, source, target, form, corruption, np.random.default_rng(0))
        drawn = [self.source, self.target, self.pseudo][: len(sections)]
        replayed = [section._replace(token=ids) for section, ids in zip(sections, drawn, strict=True)]
        assert all(len(section.token) == len(section.position) for section in replayed)
        if self.method == "masked":
            clean = form.target(target)
            replayed[1] = replayed[1]._replace(label=np.where(self.chosen, clean, form.pad))
        return tuple(replayed)


def training_case(variant: str, case: str) -> TrainingCase:
    """Rebuild a recorded batch from the raw ids and the recorded draws."""
    arrays, _ = load(f"train_{variant}")
    way = case.split("_")[0]
    method = METHOD_OF[way]
    form = training_form(variant, method)
    examples, rows = [], []
    drawn_from = "v2" if case.startswith("v2_lneps") else case
    for i, (source, target) in enumerate(raw_pairs(variant)):
        draws = ReplayedDraws(arrays, drawn_from, i, method)
        examples.append(draws.pack(source, target, form))
        if way == "v2":
            rows.append(np.arange(len(draws.target)))
        else:
            positions = arrays[f"{drawn_from}/in/masked_pos"][i]
            slots = np.flatnonzero(arrays[f"{drawn_from}/in/masked_weight"][i])
            rows.append(slots[np.argsort(positions[slots])])
    return TrainingCase(collate(examples), form, rows)
