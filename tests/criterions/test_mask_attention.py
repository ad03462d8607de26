"""The criterion's loss of a batch, its divisor, and what it logs."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.data import ListDataset
from fairseq.logging import metrics
from tiny import (
    CLS,
    ENCODERS,
    PAD,
    SEP,
    VOCAB_SIZE,
    model_inputs,
    pack_example,
    tiny_dictionary,
    tiny_form,
    tiny_model,
    words,
)

from s2sft_fairseq.criterions.mask_attention import MaskAttentionCriterion
from s2sft_fairseq.data.packed_dataset import PackedPairDataset
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.objectives.finetuning import context_section
from s2sft_fairseq.objectives.objective import OBJECTIVES
from s2sft_fairseq.objectives.packing import collate
from s2sft_fairseq.objectives.ragged import Ragged

TASK = SimpleNamespace(target_dictionary=tiny_dictionary())


def criterion(label_smoothing=0.1, report_accuracy=False, sentence_avg=False):
    return MaskAttentionCriterion(TASK, label_smoothing, report_accuracy, sentence_avg)


def dense_divergence(log_probs, label, epsilon, excluded):
    """Return KL(q || p) of one label with the whole of q written out."""
    count = len(log_probs)
    total = 0.0
    for token in range(count):
        q = 1 - epsilon if token == label else 0.0 if token == excluded else epsilon / (count - 2)
        if q > 0:
            total += q * (math.log(q) - log_probs[token])
    return total


def sample(count=3, method="pseudo_masked"):
    rng = np.random.default_rng(1)
    form, corruption = tiny_form(method), OBJECTIVES[method].corruption["paper"]
    examples = [pack_example(method, words(rng, 4 + i), words(rng, 2 + i), form, corruption, rng) for i in range(count)]
    batch = collate(examples)
    labelled = torch.from_numpy(np.flatnonzero(batch.label != PAD))
    return {
        "net_input": {**model_inputs(batch), "labelled": labelled},
        "labels": torch.from_numpy(batch.label)[labelled],
        "flows": {},
        "weights": None,
        "ntokens": len(labelled),
        "divisor": len(labelled),
        "nsentences": count,
    }


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
@pytest.mark.parametrize("method", list(OBJECTIVES))
def test_loss_of_a_batch(method, smoothing):
    model, batch = tiny_model(1), sample(method=method)
    loss, sample_size, logged = criterion(smoothing)(model, batch)
    with torch.no_grad():
        log_probs = model(**batch["net_input"]).double().log_softmax(dim=1).tolist()
    labels = batch["labels"].tolist()
    dense = [dense_divergence(row, label, smoothing, PAD) for row, label in zip(log_probs, labels, strict=True)]
    nll = -sum(row[label] for row, label in zip(log_probs, labels, strict=True))
    assert loss.item() == pytest.approx(sum(dense), rel=1e-5)
    assert sample_size == batch["ntokens"] == len(labels)
    assert logged["loss"].item() == pytest.approx(sum(dense), rel=1e-5)
    assert logged["nll_loss"].item() == pytest.approx(nll, rel=1e-5)
    assert {name: logged[name] for name in ("ntokens", "nsentences", "sample_size")} == {
        "ntokens": len(labels),
        "nsentences": 3,
        "sample_size": len(labels),
    }
    assert loss.requires_grad
    assert not logged["loss"].requires_grad
    assert not logged["nll_loss"].requires_grad
    assert "n_correct" not in logged


def test_two_flows():
    """Their losses are weighted, divided by the labels of one flow, and logged separately."""
    model, batch = tiny_model(1), sample()
    flows = torch.arange(len(batch["labels"])) % 2
    batch["flows"], batch["ntokens"] = {"word": flows == 0, "span": flows == 1}, len(flows)
    batch["weights"], batch["divisor"] = torch.tensor([0.3, 0.7], dtype=torch.float64)[flows], len(flows) // 2
    with torch.no_grad():
        log_probs = model(**batch["net_input"]).double().log_softmax(dim=1)
    nll = -log_probs[range(len(flows)), batch["labels"]]
    loss, sample_size, logged = criterion(0.0)(model, batch)
    word, span = (nll[flows == number].sum().item() for number in range(2))
    assert loss.item() == pytest.approx(0.3 * word + 0.7 * span, rel=1e-5)
    assert sample_size == len(flows) // 2
    assert logged["nll_loss"].item() == pytest.approx(word + span, rel=1e-5)
    with metrics.aggregate() as reported:
        MaskAttentionCriterion.reduce_metrics([logged, logged])
    values = reported.get_smoothed_values()
    for name, total, count in (("word_loss", word, (flows == 0).sum()), ("span_loss", span, (flows == 1).sum())):
        assert values[name] == pytest.approx(total / int(count) / math.log(2), abs=1e-3)
    assert values["loss"] == pytest.approx((0.3 * word + 0.7 * span) / (len(flows) // 2) / math.log(2), abs=1e-3)


def test_the_loss_of_sources():
    """The losses of a language model, computed prefix by prefix; a source token weighs W, the divisor is of targets."""
    weight = 0.3
    model = tiny_model(1, **ENCODERS["grouped"], source_visibility="causal")
    form, rng = tiny_form("causal"), np.random.default_rng(2)
    pairs = [(words(rng, 4), words(rng, 3)), (words(rng, 6), words(rng, 1))]
    rows = [[torch.from_numpy(np.append(side, SEP)) for side in sides] for sides in zip(*pairs, strict=True)]
    raw = [ListDataset(side, [len(row) for row in side]) for side in rows]
    objective = OBJECTIVES["causal"].with_source_loss(weight)
    data = PackedPairDataset(*raw, form, objective, objective.corruption["paper"])
    batch = data.collater([data[0], data[1]])
    of_flows = {"word": 0.0, "source": 0.0}
    for source, target in pairs:
        whole = [CLS, *source.tolist(), SEP, *target.tolist(), SEP]
        for length in range(1, len(whole)):
            logits = last_logits(model, whole[:length])
            flow = "word" if length > len(source) + 1 else "source"
            of_flows[flow] -= logits.log_softmax(0)[whole[length]].item()
    loss, sample_size, logged = criterion(0.0)(model, batch)
    assert loss.item() == pytest.approx(of_flows["word"] + weight * of_flows["source"], rel=1e-5)
    assert sample_size == sum(len(target) + 1 for _, target in pairs)
    assert logged["source_tokens"] == sum(len(source) + 1 for source, _ in pairs)
    for name, value in of_flows.items():
        assert logged[f"{name}_nll"].item() == pytest.approx(value, rel=1e-5)


def last_logits(model, tokens):
    """Return the logits (V,) after the last of these tokens, which are one source."""
    form = replace(tiny_form("causal"), max_source=99)
    section = context_section(Ragged.of([np.array(tokens)]), form)
    with torch.no_grad():
        return model(**model_inputs(collate([(section,)])))[-1].double()


def test_sentence_avg_divides_by_sentences():
    _, sample_size, logged = criterion(sentence_avg=True)(tiny_model(1), sample())
    assert sample_size == logged["sample_size"] == 3


def test_accuracy():
    model, batch = tiny_model(1), sample()
    with torch.no_grad():
        best = model(**batch["net_input"]).argmax(dim=1)
    batch["labels"] = best.clone()
    batch["labels"][::2] = (best[::2] + 1) % VOCAB_SIZE
    _, _, logged = criterion(report_accuracy=True)(model, batch)
    assert logged["n_correct"] == len(best) // 2


def test_what_is_reported():
    """Values are summed over workers; losses in bits; the loss per unit of the divisor, the likelihood per token."""
    logs = [
        {"loss": torch.tensor(8.0), "nll_loss": torch.tensor(6.0), "ntokens": 4, "sample_size": 2, "n_correct": 3},
        {"loss": torch.tensor(2.0), "nll_loss": torch.tensor(1.0), "ntokens": 1, "sample_size": 3, "n_correct": 0},
    ]
    with metrics.aggregate() as reported:
        MaskAttentionCriterion.reduce_metrics(logs)
    values = reported.get_smoothed_values()
    assert values["loss"] == pytest.approx(10 / 5 / math.log(2), abs=1e-3)
    assert values["nll_loss"] == pytest.approx(7 / 5 / math.log(2), abs=1e-3)
    assert values["ppl"] == pytest.approx(math.exp(7 / 5), abs=1e-2)
    assert values["accuracy"] == pytest.approx(60.0)
    assert MaskAttentionCriterion.logging_outputs_can_be_summed()
    with metrics.aggregate() as reported:
        MaskAttentionCriterion.reduce_metrics([{k: v for k, v in log.items() if k != "n_correct"} for log in logs])
    assert "accuracy" not in reported.get_smoothed_values()


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, 1.5])
def test_impossible_smoothing(smoothing):
    with pytest.raises(UserError, match=rf"^--label-smoothing must be at least 0 and below 1, but is {smoothing:g}$"):
        criterion(smoothing)


def test_sources_alone_have_no_loss():
    batch = sample()
    batch["labels"] = batch["labels"][:0]
    with pytest.raises(UserError, match=r"^a loss needs targets, but the data has sources alone$"):
        criterion()(tiny_model(1), batch)


def test_it_is_registered():
    assert CRITERION_REGISTRY["mask_attention"] is MaskAttentionCriterion
