"""Greedy and beam decoding compared with the original s2s-ft program."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from recorded import load, model, sequence_form, variants
from torch.nn.utils.rnn import pad_sequence

from s2sft_fairseq.inference.decoder import IncrementalDecoder
from s2sft_fairseq.inference.generator import SequenceGenerator
from s2sft_fairseq.inference.options import SearchOptions
from s2sft_fairseq.inference.reranking import Ranking
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.objectives.sequence_form import SequenceForm

pytestmark = pytest.mark.rounding

VARIANTS = variants("decode")
MODES = ("mask", "shift")


def sources(variant: str, form: SequenceForm) -> torch.Tensor:
    arrays, settings = load(f"decode_{variant}")
    rows = [torch.from_numpy(form.source(arrays[f"src/{i}"])) for i in range(settings["num_sentences"])]
    return pad_sequence(rows, batch_first=True, padding_value=form.pad)


def steps_of(variant: str) -> int:
    return load(f"decode_{variant}")[1]["max_tgt_length"]


def decoding_form(variant: str, mode: str) -> SequenceForm:
    steps = steps_of(variant)
    limits = {"max_source": load(f"decode_{variant}")[1]["max_seq_length"] - steps, "max_target": steps}
    return sequence_form(variant, starts_with="sep" if mode == "shift" else None, **limits)


def decoding_model(variant: str) -> UnilmModel:
    return model(variant, load(f"decode_{variant}")[1]["decoder_layer_norm_eps"])


def incremental_decoder(variant: str, mode: str, beams: int) -> IncrementalDecoder:
    form = decoding_form(variant, mode)
    model, given = decoding_model(variant), sources(variant, form)
    return IncrementalDecoder(model, form, given, beams=beams, max_tokens=steps_of(variant))


def searches(variant: str) -> list[str]:
    return sorted({key.rsplit("/", 1)[0] for key in load(f"decode_{variant}")[0] if key.endswith("/valid_frames")})


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("mode", MODES)
def test_laid_out_sources(variant, mode):
    arrays, settings = load(f"decode_{variant}")
    form = decoding_form(variant, mode)
    laid_out = sources(variant, form)
    for k, members in enumerate(settings["batches"][mode]):
        recorded = arrays[f"{mode}/batch{k}/input_ids"]
        np.testing.assert_array_equal(laid_out[members, : recorded.shape[1]].numpy(), recorded)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("mode", MODES)
@torch.no_grad()
def test_greedy(variant, mode):
    arrays, _ = load(f"decode_{variant}")
    decoder = incremental_decoder(variant, mode, beams=1)
    ids, logits = [], []
    for _ in range(steps_of(variant)):
        logits.append(decoder.next_logits().squeeze(1))
        ids.append(logits[-1].argmax(dim=1))
        decoder.append(ids[-1].unsqueeze(1), torch.zeros(len(ids[-1]), 1, dtype=torch.int64))
    np.testing.assert_array_equal(torch.stack(ids, dim=1).numpy(), arrays[f"{mode}/greedy/ids"])
    np.testing.assert_allclose(torch.stack(logits, dim=1).numpy(), arrays[f"{mode}/greedy/logits"], atol=1e-4, rtol=0)


@pytest.mark.parametrize(("variant", "mode"), list(itertools.product(VARIANTS, MODES)))
@torch.no_grad()
def test_greedy_search_stops_where_the_original_text_is_cut(variant, mode):
    arrays, _ = load(f"decode_{variant}")
    form = decoding_form(variant, mode)
    options = SearchOptions(beam=1, min_len=0, keep_unfinished=True)
    generator = SequenceGenerator([decoding_model(variant)], form, options)
    results = generator.generate([], {"net_input": {"src_tokens": sources(variant, form)}})
    for (best,), ids in zip(results, arrays[f"{mode}/greedy/ids"].tolist(), strict=True):
        end = ids.index(form.sep) + 1 if form.sep in ids else steps_of(variant)
        assert best["tokens"].tolist() == ids[:end]


@pytest.mark.parametrize("variant", VARIANTS)
@torch.no_grad()
def test_scores_along_the_recorded_beams(variant):
    """Follow the original's own choices, so that each step reorders the incremental state in the same way."""
    arrays, _ = load(f"decode_{variant}")
    assert searches(variant)
    for search in searches(variant):
        compared = 0
        mode, beams = search.split("/")[0], int(search.split("/")[1].removeprefix("beam"))
        sep = decoding_form(variant, mode).sep
        words, parents, scores = (torch.from_numpy(arrays[f"{search}/{n}"]).clone() for n in ("wids", "ptrs", "scores"))
        decoder = incremental_decoder(variant, mode, beams)
        frames = torch.from_numpy(arrays[f"{search}/valid_frames"])
        alive = torch.ones(len(frames), 1, dtype=torch.bool)
        total = torch.zeros(len(frames), 1)
        for step in range(steps_of(variant)):
            log_probs = torch.log_softmax(decoder.next_logits(), dim=-1)
            parent, word = parents[:, step].long(), words[:, step].long()
            rows = torch.arange(len(frames)).unsqueeze(1)
            expected = total[rows, parent] + log_probs[rows, parent, word]
            # Scores below -10000 are fill values: children of ended hypotheses and forbidden tokens.
            alive = alive[rows, parent] & (scores[:, step] > -5000) & (step < frames).unsqueeze(1)
            torch.testing.assert_close(scores[:, step][alive], expected[alive], atol=1e-4, rtol=0)
            compared += int(alive.sum())
            total, alive = scores[:, step], alive & (word != sep)
            decoder.append(word, parent)
        assert compared >= frames.sum()  # each valid frame has a live hypothesis


def best_hypotheses(
    variant: str, names: Sequence[str] | None = None, **changes: Any
) -> Iterator[tuple[str, list[list[dict[str, Any]]]]]:
    """Yield the name of each recorded case, by default of all, and our hypotheses under s2s-ft's length penalty."""
    settings = load(f"decode_{variant}")[1]["settings"]
    for name in names or settings:
        setting = settings[name]
        mode = setting["mode"]
        form = decoding_form(variant, mode)
        options = SearchOptions(
            beam=setting["beam"],
            min_len=setting["min_len"],
            length_penalty="gnmt",
            lenpen=setting["length_penalty"],
            keep_unfinished=True,
            no_repeat_ngram_size=setting["ngram_size"] if setting["forbid_duplicate_ngrams"] else 0,
            never_blocked=tuple(setting["forbid_ignore_set"] or ()),
            **changes,
        )
        generator = SequenceGenerator([decoding_model(variant)], form, options)
        results = generator.generate([], {"net_input": {"src_tokens": sources(variant, form)}})
        yield name, results


def best_scores(variant: str, **changes: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return our best and the original's best scores for all recorded cases."""
    arrays, _ = load(f"decode_{variant}")
    ours, theirs = [], []
    for name, found in best_hypotheses(variant, **changes):
        ours += [best["score"].item() for best, *_ in found]
        theirs += arrays[f"{name}/best_score"].tolist()
    return np.array(ours), np.array(theirs)


@pytest.mark.parametrize("variant", VARIANTS)
def test_beam_search_finds_no_worse_hypotheses(variant):
    """The searches differ on purpose: ours keeps K live hypotheses in addition to the ended ones."""
    ours, theirs = best_scores(variant, early_stop="exact")
    settings = load(f"decode_{variant}")[1]
    assert len(ours) == settings["num_sentences"] * len(settings["settings"]) > 0
    assert (ours >= theirs - 1e-3).mean() >= 0.95


@pytest.mark.parametrize("early_stop", ["exact", "never"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_the_search_of_the_original(variant, early_stop):
    """With --count-ended all recorded texts are the same, for every beam, penalty, minimum length and n-gram rule."""
    arrays, settings = load(f"decode_{variant}")
    compared = 0
    for name, found in best_hypotheses(variant, early_stop=early_stop, count_ended=True):
        for (best, *_), tokens, length in zip(found, arrays[f"{name}/pred"], arrays[f"{name}/pred_len"], strict=True):
            assert best["tokens"].tolist() == tokens[:length].tolist(), name
            compared += 1
        scores = torch.stack([best["score"] for best, *_ in found]).numpy()
        np.testing.assert_allclose(scores, arrays[f"{name}/best_score"], atol=1e-4, rtol=0)
    assert compared == settings["num_sentences"] * len(settings["settings"]) > 0


def test_a_recorded_search_is_ranked_again():
    """What the program's own script does with a trace: one search has the texts of all its length penalties."""
    variant, by_search = "rel", {}
    arrays, settings = load(f"decode_{variant}")
    for name, setting in settings["settings"].items():
        by_search.setdefault(name.rsplit("/", 1)[0], []).append((name, setting["length_penalty"]))
    names = [of_one[0][0] for of_one in by_search.values()]
    for name, found in best_hypotheses(variant, names, count_ended=True, all_ended=True):
        for other, lenpen in by_search[name.rsplit("/", 1)[0]]:
            lines = zip(found, arrays[f"{other}/pred"], arrays[f"{other}/pred_len"], strict=True)
            for hypotheses, tokens, length in lines:
                written = [{"tokens": one["tokens"].tolist(), "positional_scores": one["positional_scores"].tolist()}
                           for one in hypotheses]  # fmt: skip
                best, *_ = Ranking("gnmt", lenpen).rank(written)
                assert best["tokens"] == tokens[:length].tolist(), other
