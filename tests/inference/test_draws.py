"""Random numbers of samples: they depend on the source alone, at every search."""

from argparse import Namespace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.tasks import FairseqTask
from scripted import ScriptedTranslator
from searches import eager_model, search_options
from tiny import padded, tiny_form, words

from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.inference import memory
from s2sft_fairseq.inference.draws import SampleDraws, exponentials, seed_of
from s2sft_fairseq.inference.generator import SequenceGenerator
from s2sft_fairseq.runtime.search import _make_batches
from s2sft_fairseq.tasks.deltalm_seq2seq import DeltaLMSeq2SeqConfig, DeltaLMSeq2SeqTask

pytestmark = pytest.mark.rounding

SYMBOLS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *(f"w{number}" for number in range(7))]
EOS = 2
RNG = np.random.default_rng(5)
SOURCES = [words(RNG, length) for length in (4, 11, 2, 7, 4, 9, 1)]


def test_exponential_distribution():
    keys = SampleDraws(3, np.arange(200)).keys(np.arange(200), 0)
    found = exponentials(keys, torch.arange(5000))
    assert found.dtype == torch.float32 and found.shape == (200, 5000)
    assert found.min() > 0 and found.max() < 20
    assert float(found.mean()) == pytest.approx(1, abs=0.005) and float(found.var()) == pytest.approx(1, abs=0.01)
    for bound in (0.001, 0.1, 1.0, 4.0):
        assert float((found < bound).double().mean()) == pytest.approx(1 - np.exp(-bound), rel=0.1, abs=1e-5)
    # Neither draws nor neighboring tokens depend on each other.
    assert abs(np.corrcoef(found.numpy()) - np.eye(200)).max() < 6 / np.sqrt(5000)
    assert abs(np.corrcoef(found[:, 1:].flatten(), found[:, :-1].flatten())[0, 1]) < 0.005


def test_a_number_depends_on_its_draw_and_its_token():
    draws = SampleDraws(3, np.array([7, 0, 7]))
    first, second, again = draws.keys(np.arange(3), 4, np.array([1, 1, 1]))
    assert first == again != second
    assert len({int(draws.keys(np.array([0]), step, place)[0]) for step in range(5) for place in range(5)}) == 25
    assert SampleDraws(4, np.array([7])).keys(np.array([0]), 4, 1)[0] != first
    keys = np.array([first, second])
    few = exponentials(keys, torch.tensor([[3, 5], [900, 5]]))
    whole = exponentials(keys, torch.arange(1000))
    assert few.tolist() == [whole[0, [3, 5]].tolist(), whole[1, [900, 5]].tolist()]


def test_seeds():
    assert seed_of(Namespace(), SimpleNamespace(seed=5)) == 5
    assert seed_of(Namespace(no_seed_provided=False), SimpleNamespace(seed="${common.seed}")) == 1
    others = {seed_of(Namespace(no_seed_provided=True), SimpleNamespace(seed=5)) for _ in range(3)}
    assert len(others) == 3


SAMPLINGS = {
    "all tokens": ("pseudo_masked", {"beam": 3}),
    "few tokens": ("causal", {"beam": 2, "sampling_topk": 9, "sampling_topp": 0.9}),
    "without repetitions": ("causal", {"beam": 2, "no_repeat_ngram_size": 1}),
    "blocks": ("blocks", {"beam": 1, "decode_blocks": 3, "confidence": 0.3, "no_repeat_ngram_size": 1}),
}


@pytest.mark.parametrize(("method", "options"), SAMPLINGS.values(), ids=SAMPLINGS)
def test_samples_do_not_depend_on_the_batch(method, options, monkeypatch):
    models, form = [eager_model(3)], tiny_form(method)
    generator = SequenceGenerator(models, form, search_options(sampling=True, temperature=2.0, **options))

    def samples(indices):
        rows = padded([form.source(SOURCES[index]) for index in indices])
        found = generator.generate(models, {"id": torch.tensor(indices), "net_input": {"src_tokens": rows}})
        return dict(zip(indices, [[each["tokens"].tolist() for each in best] for best in found], strict=True))

    whole = samples(list(range(len(SOURCES))))
    for indices in ([0], [6, 5, 4, 3, 2, 1, 0], [3, 1], [5]):
        assert samples(indices) == {index: whole[index] for index in indices}
    assert samples([0])[0] != samples([4])[4] or SOURCES[0].tolist() != SOURCES[4].tolist()

    # A batch that does not fit into memory is halved.
    search = generator._search

    def small(source, *others):
        if len(source) > 2:
            raise MemoryError
        return search(source, *others)

    monkeypatch.setattr(generator, "_search", small)
    monkeypatch.setattr(memory.gc, "collect", lambda: None)
    assert samples(list(range(len(SOURCES)))) == whole


class Table:
    """The same scores for all prefixes of a source."""

    def __call__(self, source, prefix):
        return np.random.default_rng([*source, *prefix]).normal(size=len(SYMBOLS)) * 2


def translations(numbers, rows, **options):
    """Return the samples of an encoder-decoder, by the number of the source."""
    args = Namespace(beam=3, nbest=3, max_len_b=6, sampling=True, **options)
    models = [ScriptedTranslator(Table())]
    translation = DeltaLMSeq2SeqTask(DeltaLMSeq2SeqConfig(data=""), PretrainedDictionary.of(SYMBOLS))
    generator = translation.build_generator(models, args)
    sample = {"net_input": {"src_tokens": rows, "src_lengths": torch.full((len(rows),), 4)}}
    if numbers is not None:
        sample["id"] = torch.tensor(numbers)
    found = generator.generate(models, sample)
    return [[each["tokens"].tolist() for each in best] for best in found]


@pytest.mark.parametrize("options", [{}, {"sampling_topk": 4}, {"sampling_topp": 0.8}], ids=str)
def test_samples_of_encoder_decoders(options):
    rows = torch.tensor(np.c_[np.random.default_rng(1).integers(4, len(SYMBOLS), size=(5, 3)), [EOS] * 5])
    whole = translations(range(5), rows, **options)
    assert translations(None, rows, **options) == whole == translations(range(5), rows, **options)
    assert translations([4, 1, 3], rows[[4, 1, 3]], **options) == [whole[4], whole[1], whole[3]]
    assert translations([2], rows[[2]], **options) == [whole[2]]
    assert translations([9], rows[[2]], **options) != [whole[2]]


def test_sources_of_an_interactive_search_are_numbered():
    """The batches that fairseq gives to the search have no numbers."""
    batches = {2: [[1, 0]], 3: [[2], [1, 0]]}

    def make(lines, *others):
        for ids in batches[len(lines)]:
            yield SimpleNamespace(ids=torch.tensor(ids))

    one = FairseqTask(None)
    generator = SimpleNamespace(generate=lambda models, sample, **options: sample["id"].tolist())
    seen = []
    for lines in (["a", "b"], ["c", "d", "e"]):
        for _ in _make_batches(make, lines, None, one):
            seen.append(one.inference_step(generator, [], {"net_input": {}}))
    assert seen == [[1, 0], [4], [3, 2]]
    assert one.inference_step(generator, [], {"id": torch.tensor([8])}) == [8]
