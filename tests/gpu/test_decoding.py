"""Decoding on the pretended GPU: each kind of search finds the CPU's hypotheses, and the work of a step is limited.

Scores of two hypotheses can be as close as rounding errors: if a case differs on a processor that rounds differently,
use another seed.
"""

from statistics import median

import numpy as np
import pytest
import torch
from flash_kernel import emulated_kernel
from pretended_gpu import DEVICE, counting, moved, upload
from searches import LENGTHS, MAX_TOKENS, SEARCHES, assert_same, batch_of, search_options, sources
from tiny import ENCODERS, PAD, SEP, objective_of, padded, tiny_form, tiny_model, words

from s2sft_fairseq.inference.files import Window
from s2sft_fairseq.inference.generator import SequenceGenerator, TextGenerator
from s2sft_fairseq.inference.hypotheses import ReferenceScorer
from s2sft_fairseq.inference.search import BeamSearch
from s2sft_fairseq.modules import incremental_state

pytestmark = pytest.mark.rounding


def assert_same_search(models, form, options, prefix=None, dtype=None, lengths=LENGTHS):
    """Search on both devices, with the same random numbers."""
    source = sources(form, lengths)
    torch.manual_seed(1)
    expected = SequenceGenerator([model.to(dtype=dtype) for model in models], form, options).generate(
        [], batch_of(source), prefix_tokens=prefix
    )
    ours = [moved(model) for model in models]
    torch.manual_seed(1)
    with counting():
        found = SequenceGenerator(ours, form, options).generate(
            [], batch_of(upload(source)), prefix_tokens=None if prefix is None else upload(prefix)
        )
    assert_same(found, expected)
    assert any(len(one["tokens"]) > 2 for each in expected for one in each)


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
def test_every_search(search):
    assert_same_search([tiny_model(1)], tiny_form("pseudo_masked"), search_options(**search))


@pytest.mark.parametrize("search", ["greedy", "beam", "sampling", "drafts from the source", "rank each step"])
def test_causal_models(search):
    """They predict from their last token, without placeholders."""
    assert_same_search([tiny_model(1)], tiny_form("causal"), search_options(**SEARCHES[search]))


@pytest.mark.parametrize("search", ["beam", "rank each step", "no repeated n-grams", "drafts at placeholders"])
@pytest.mark.parametrize("encoder", ["relative", "electra", "modernbert"])
def test_every_encoder(encoder, search):
    """A relative position bias, narrow embeddings, and local windows with rotary positions."""
    model = tiny_model(1, **ENCODERS[encoder])
    assert_same_search([model], tiny_form("pseudo_masked"), search_options(**SEARCHES[search]))


@pytest.mark.parametrize(("dtype", "lengths"), [(torch.float64, LENGTHS), (torch.bfloat16, (9,) * 5)])
def test_other_types(dtype, lengths, monkeypatch):
    """In 16 bits the order of additions matters: both use the same operators and padding."""
    if dtype == torch.bfloat16:
        monkeypatch.setattr(incremental_state, "SLOTS_AT_A_TIME", 1)
    model = tiny_model(1, attention="padded")
    assert_same_search([model], tiny_form("pseudo_masked"), search_options(beam=3), dtype=dtype, lengths=lengths)


@pytest.mark.parametrize("encoder", ENCODERS.values(), ids=ENCODERS)
def test_sources_read_by_flash_attention(encoder):
    """If the GPU has it. With a relative position bias, sources are padded."""
    with emulated_kernel():
        assert_same_search(
            [tiny_model(1, **encoder)], tiny_form("pseudo_masked"), search_options(beam=3), dtype=torch.float64
        )


@pytest.mark.parametrize("lengths", [LENGTHS, LENGTHS * 3])
def test_calls_of_flash_attention(lengths):
    """One per layer except the last, whose states of the source are not used."""
    with emulated_kernel():
        reading, _ = steps(lengths)
    assert reading.launches["_flash_attention_forward"] == len(tiny_model(1).layers) - 1
    assert not reading.launches["attention"]


@pytest.mark.parametrize("search", ["beam", "drafts from the source"])
def test_ensembles_and_prefixes(search):
    form, prefix = tiny_form("pseudo_masked"), torch.tensor([[7, 8], [9, PAD], [PAD, PAD], [5, SEP], [6, 6]])
    assert_same_search([tiny_model(1), tiny_model(2)], form, search_options(**SEARCHES[search]), prefix)


def test_texts():
    """As ``s2sft generate`` decodes them; the results are on the CPU."""
    form, model = tiny_form("pseudo_masked"), tiny_model(1)
    rng = np.random.default_rng(3)
    window = Window(0, [words(rng, length) for length in LENGTHS])
    found = []
    for device, on_device in (("cpu", model), (DEVICE, moved(model))):
        generator = SequenceGenerator([on_device], form, search_options(beam=2))
        texts = TextGenerator(
            lambda sample, generator=generator: generator.generate([], sample),
            form,
            lambda lengths: np.array_split(np.argsort(-lengths), 2),
            device=device,
        )
        with counting():
            found.append([[one["tokens"].tolist() for one in each] for each in texts(window)])
    assert found[0] == found[1]


def test_scores_of_references():
    form, model = tiny_form("pseudo_masked"), tiny_model(1)
    rng = np.random.default_rng(4)
    target = padded([np.append(words(rng, length), SEP) for length in LENGTHS])
    sample = {**batch_of(sources(form)), "target": target}
    expected = ReferenceScorer([model], form, objective_of(form)).generate([], sample)
    ours = {**batch_of(upload(sources(form))), "target": upload(target)}
    with counting():
        found = ReferenceScorer([moved(model)], form, objective_of(form)).generate([], ours)
    assert_same(found, expected)


def steps(lengths, **options):
    """Return the counts of reading the sources, and of each step of a beam search in which no sentence ends."""
    form = tiny_form("pseudo_masked")
    model, source = moved(tiny_model(1)), upload(sources(form, lengths))
    with torch.inference_mode():
        with counting() as reading:
            search = BeamSearch([model], form, search_options(beam=3, min_len=MAX_TOKENS, **options), source)
        each = []
        for _ in range(MAX_TOKENS):
            with counting() as counts:
                search.step()
            each.append(counts)
    return reading, each


def median_launches(lengths):
    return median(counts.launches.total() for counts in steps(lengths)[1])


def test_launches_of_a_step_do_not_grow_with_the_sentences():
    """For sentences of equal length; see below for others."""
    assert median_launches([9] * 2) == median_launches([9] * 16)


def test_launches_of_a_step_do_not_grow_with_the_lengths():
    """One padded call per layer costs less than a call per group."""
    assert median_launches([9] * 6) == median_launches([1, 3, 6, 9, 15, 20])


def test_launches_of_reading_do_not_grow_with_the_sentences():
    few, many = (steps([9] * count)[0].launches.total() for count in (2, 16))
    assert few == many


def test_waits_and_uploads_of_a_step():
    """Every eighth step the host asks which sentences are done, and every eighth which slots can be reused."""
    _, each = steps(LENGTHS)
    waits = [[place.split(":")[0] for place in counts.synchronisations] for counts in each]
    compacts, asks = ["modules/incremental_state.py"], ["inference/search.py"]
    # The first one is for the start symbol of targets.
    assert waits == [compacts, compacts, [], [], [], [], [], asks, [], compacts]
    assert not any(counts.uploads for counts in each)


def waits_of(lengths):
    form = tiny_form("pseudo_masked")
    with counting() as counts:
        SequenceGenerator(
            [moved(tiny_model(1))], form, search_options(beam=3, keep_unfinished=True, min_len=9)
        ).generate([], batch_of(upload(sources(form, lengths))))
    return counts.synchronisations.total()


def test_waits_do_not_grow_with_the_sentences():
    """Hypotheses of all sentences that end together can be copied to the host at once."""
    assert waits_of([9] * 16) == waits_of([9] * 2)


def test_drafts_upload_nothing():
    form = tiny_form("pseudo_masked")
    with counting() as counts:
        SequenceGenerator([moved(tiny_model(1))], form, search_options(draft_placeholders=2, beam=1)).generate(
            [], batch_of(upload(sources(form)))
        )
    assert not [place for place in counts.uploads if place.startswith("inference/drafted_search.py")]
