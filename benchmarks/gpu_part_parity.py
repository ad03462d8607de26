"""Part ``parity`` of `gpu.py`: compare the device with the CPU, which computes in float32 with the loop over blocks.

The part compares loss and gradients of every fine-tuning method, with and without relative position bias and local
windows, for every ``--attention``, in float32 and bfloat16, without dropout. It also measures the rate of dropout, and
compares the hypotheses of several searches.
"""

import copy
import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import gpu_part_decoding
import gpu_part_training
import torch
from fairseq import utils
from generation_systems import MASK, PAD, SEP, Setting, unilm_model
from gpu_timing import Record, Settings
from torch import Tensor, nn
from training_grid import Cell
from training_ours import collate, make_trainer
from training_pairs import draw_pairs

from s2sft_fairseq.inference.generator import SequenceGenerator
from s2sft_fairseq.inference.options import SearchOptions
from s2sft_fairseq.models.unilm_config import ATTENTIONS
from s2sft_fairseq.modules.multi_flow_attention import AttentionPattern, MultiFlowAttention
from s2sft_fairseq.modules.visibility import PackedColumns

METHODS = ("pseudo_masked", "causal", "masked")
WINDOW = "--local-attention-window 16 --global-attention-every 2"
DROPOUT = 0.1
WIDTH = 64  # of a head, and the most tokens of an example: each token gets its own unit vector
SEARCHES: dict[str, Record] = {
    "beam": {"beam": 5},
    "greedy": {"beam": 1},
    "no repeated n-grams": {"beam": 5, "no_repeat_ngram_size": 3},
    "rank each step": {"beam": 5, "rank_each_step": True},
    "count ended": {"beam": 5, "count_ended": True},
    "drafts from the source": {"beam": 1, "draft_source": 3},
}
LIKELY_END = 4.0
"""Bias of the symbol that ends a hypothesis, so that not all hypotheses have the maximum length."""


def kinds() -> list[str]:
    """Return the values of ``--attention`` except auto; loop, then flex, which compiles for long, come last."""
    return sorted((kind for kind in ATTENTIONS if kind != "auto"), key=lambda kind: (kind == "flex", kind == "loop"))


def cells(settings: Settings) -> Iterator[Record]:
    """Yield the cells."""
    for name, graph in product(SEARCHES, (False, True)):
        if not (graph and "draft_source" in SEARCHES[name]):  # no graphs for drafts: each step has a new shape
            yield {"name": f"hypotheses: {name}{', CUDA graphs' * graph}", "search": name, "graph": graph}
    for kind in kinds():
        if kind != "flex":  # FlexAttention has no dropout
            yield {"name": f"dropout: {kind}", "attention": kind}
        biases = (False,) if kind == "flex" else (False, True)  # FlexAttention adds no bias
        for method, relative, window in product(METHODS[: 1 if settings.tiny else 3], biases, ("", WINDOW)):
            words = [method, *(["relative"] if relative else []), *(["window"] if window else [])]
            yield {
                "name": f"gradients: {kind}, {' '.join(words)}",
                "attention": kind,
                "method": method + ("_relative" if relative else ""),
                "window": window,
            }


def unavailable(cell: Record, settings: Settings) -> str | None:
    """Return why a cell cannot be measured; None if it can."""
    if cell.get("graph"):
        return gpu_part_decoding.unavailable({"system": "graph"}, settings)
    return gpu_part_training.unavailable(cell, settings)


def measure(cell: Record, settings: Settings) -> Record:
    """Measure one cell."""
    torch.set_float32_matmul_precision("highest")
    if "search" in cell:
        return hypotheses(cell, settings)
    return gradients(cell, settings) if "method" in cell else dropout_rate(cell, settings)


def a_cell(**changes: Any) -> Cell:
    """Return a training of a tiny model, with heads of BERT's width, on the CPU in float32."""
    common = {"lengths": "10..60/4..12", "batch": 5, "system": "ours", "vocab": 1000}
    common |= {"device": "cpu", "threads": 1, "seed": 1, "updates": 1}
    return Cell(config="unilm_tiny", **{"method": "pseudo_masked", **common, **changes})


@torch.no_grad()
def enliven(model: nn.Module, scale: float) -> None:
    """Draw larger weights in place.

    With initial weights, attention is almost uniform, and the next tokens are almost equally probable.
    """
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.normal_(std=scale / parameter.size(1) ** 0.5)


def gradients(cell: Record, settings: Settings) -> Record:
    """Compare loss and gradients."""
    trainer = make_trainer(a_cell(method=cell["method"], extra=cell["window"]), dropout=0.0)
    enliven(trainer.model, 1.0)
    sample = collate(trainer.task, draw_pairs(a_cell(method=cell["method"]), 1), epoch=1)
    expected = loss_and_gradients(trainer, sample, "loop", "cpu", torch.float32)
    found: Record = {}
    for name in ("bfloat16",) if cell["attention"] == "flash" else ("float32", "bfloat16"):  # flash needs 16 bits
        ours = loss_and_gradients(trainer, sample, cell["attention"], settings.device, getattr(torch, name))
        found[name] = differences(ours, expected)
    # For comparison: the effect of rounding alone, on the CPU, whose roundings differ from those of the device.
    rounded = loss_and_gradients(trainer, sample, "loop", "cpu", torch.bfloat16)
    return {**found, "bfloat16_on_the_cpu": differences(rounded, expected)}


def loss_and_gradients(
    trainer: Any, sample: Record, attention: str, device: str, dtype: torch.dtype
) -> tuple[float, dict[str, Tensor]]:
    """Return the mean loss of a label, and the gradients by parameter name, in float32 on the CPU."""
    model = copy.deepcopy(trainer.model)
    model.cfg.attention = attention
    model.to(device=device, dtype=dtype).train()
    loss, labels, _ = trainer.criterion(model, utils.apply_to_sample(lambda tensor: tensor.to(device), sample))
    loss.backward()
    gradients = {name: p.grad.float().cpu() for name, p in model.named_parameters() if p.grad is not None}
    return loss.item() / labels, gradients


def differences(
    found: tuple[float, dict[str, Tensor]], expected: tuple[float, dict[str, Tensor]]
) -> dict[str, float | str]:
    """Return the differences of loss and gradients, relative to the expected loss and the norms of expected gradients.

    Raises:
        ValueError: if a parameter has a gradient in only one of the two, or a difference is infinite or NaN.
    """
    (loss, ours), (expected_loss, theirs) = found, expected
    if ours.keys() != theirs.keys():
        raise ValueError(f"other parameters have gradients: {sorted(ours.keys() ^ theirs.keys())}")
    errors = {name: (ours[name] - theirs[name]).norm().item() for name in theirs}
    if infinite := [name for name, error in {"loss": loss, **errors}.items() if not math.isfinite(error)]:
        raise ValueError(f"infinite or NaN: {', '.join(infinite)}")
    norms = {name: theirs[name].norm().item() for name in theirs}
    shares = {name: errors[name] / max(norms[name], 1e-12) for name in theirs}
    worst = max(shares, key=shares.__getitem__)
    return {
        "loss": abs(loss - expected_loss) / abs(expected_loss),
        "gradient": sum(e * e for e in errors.values()) ** 0.5 / sum(n * n for n in norms.values()) ** 0.5,
        "worst_gradient": shares[worst],
        "worst_parameter": worst,
    }


def dropout_rate(cell: Record, settings: Settings) -> Record:
    """Attend with equal weights to unit vectors as values: the output is the weights, which are 0 where dropped."""
    training = a_cell(lengths="10..40/4..10", batch=8 if settings.tiny else 400)  # 40 + 10 + 10 < WIDTH
    trainer = make_trainer(training)
    inputs = collate(trainer.task, draw_pairs(training, 1), epoch=1)["net_input"]
    given = {name: inputs[name] for name in PackedColumns._fields if name in inputs}
    columns = PackedColumns(**utils.apply_to_sample(lambda tensor: tensor.to(settings.device), given))
    dtype = torch.bfloat16 if settings.device == "cuda" else torch.float32
    layer = MultiFlowAttention(embed_dim=WIDTH, num_heads=1, dropout=DROPOUT, bias=False)
    with torch.no_grad():
        layer.qkv.weight.copy_(torch.cat([torch.zeros(2 * WIDTH, WIDTH), torch.eye(WIDTH)]))
        nn.init.eye_(layer.output.weight)
    layer.to(device=settings.device, dtype=dtype)
    plan = AttentionPattern(WIDTH, rotary_base=0.0, window=0).packed(
        columns, relative=None, dtype=dtype, kind=cell["attention"]
    )
    places = torch.cat([torch.arange(sum(blocks)) for blocks in inputs["lengths"]])
    unit_vectors = torch.eye(WIDTH)[places].to(device=settings.device, dtype=dtype)
    with torch.no_grad():
        weights, dropped = (layer.train(mode)(unit_vectors, plan).float() for mode in (False, True))
    is_seen = weights > 0
    return {
        "weights": is_seen.sum().item(),
        "wanted": DROPOUT,
        "rate": (dropped[is_seen] == 0).float().mean().item(),
        "sum_of_weights": dropped.sum(dim=1).mean().item(),
        "leaks": (dropped[~is_seen] != 0).sum().item(),
    }


def hypotheses(cell: Record, settings: Settings) -> Record:
    """Compare the hypotheses of the device with those of the CPU, in float32."""
    setting = Setting("unilm_tiny", 1000, max_source=60, steps=24, beam=5, device=torch.device("cpu"), seed=1)
    model = unilm_model(setting)
    with torch.no_grad():
        enliven(model, 1.6)
        model.lm_head.bias[SEP] = LIKELY_END
    cells = a_cell(batch=4 if settings.tiny else 64, lengths="10..60/4..12")
    rows = [torch.from_numpy(setting.form.source(pair.source)) for pair in draw_pairs(cells, 1)]
    source = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
    options = SearchOptions(max_len_b=setting.steps, never_generated=(PAD, MASK), **SEARCHES[cell["search"]])
    expected = search(model, setting, options, source, "cpu")
    options = replace(options, cuda_graphs="on" if cell["graph"] else "off")
    found = search(model, replace(setting, device=torch.device(settings.device)), options, source, settings.device)
    same = [torch.equal(ours["tokens"], theirs["tokens"]) for ours, theirs in zip(found, expected, strict=True)]
    scores = [abs(ours["score"] - theirs["score"]) for ours, theirs in zip(found, expected, strict=True)]
    lengths = [len(hypothesis["tokens"]) for hypothesis in found]
    return {"sentences": len(same), "same": sum(same), "score": max(scores), "lengths": lengths}


def search(model: nn.Module, setting: Setting, options: SearchOptions, source: Tensor, device: str) -> list[Record]:
    """Search on a device; return the best hypothesis of each sentence, on the CPU."""
    ours = copy.deepcopy(model).to(device)
    results = SequenceGenerator([ours], setting.form, options).generate(
        [], {"net_input": {"src_tokens": source.to(device)}}
    )
    return [{"tokens": each[0]["tokens"].cpu(), "score": float(each[0]["score"])} for each in results]
