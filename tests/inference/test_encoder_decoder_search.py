"""The exact rule in fairseq's beam search, compared with the naive search, which never stops early, on scripts."""

from argparse import Namespace
from dataclasses import replace
from types import SimpleNamespace
from typing import NamedTuple

import naive_search
import numpy as np
import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator, SequenceGeneratorWithAlignment
from fairseq.sequence_scorer import SequenceScorer
from scripted import RandomScript, ScriptedTranslator, assert_same_hypotheses, scripted_log_probs

from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.inference.encoder_decoder_search import EncoderDecoderSearch
from s2sft_fairseq.inference.options import SearchOptions
from s2sft_fairseq.objectives.sequence_form import EncoderDecoderForm
from s2sft_fairseq.tasks.deltalm_seq2seq import DeltaLMSeq2SeqConfig, DeltaLMSeq2SeqTask

pytestmark = pytest.mark.rounding

PAD, EOS, UNK = 1, 2, 3
SYMBOLS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *(f"w{number}" for number in range(7))]
DICTIONARY = PretrainedDictionary.of(SYMBOLS)
SENTENCES, BATCHES = 20, 30
CLOSE = 1e-4
"""Scores with smaller differences can be ranked either way."""


class Case(NamedTuple):
    """A batch and its search options."""

    options: SearchOptions
    scripts: list
    sources: list
    prefix: tuple


def random_case(seed):
    rng = np.random.default_rng(seed)

    def one_of(*values):
        return values[rng.integers(len(values))]

    beam, length = one_of(2, 3, 4), one_of(1, 3, 6)
    options = SearchOptions(
        beam=beam,
        nbest=int(rng.integers(1, beam + 1)),
        max_len_a=one_of(0.0, 0.5),
        max_len_b=int(rng.integers(3, 11)),
        min_len=one_of(0, 1, 3),
        lenpen=one_of(0.0, 0.6, 1.0, 1.3, 2.5, -0.4),
        temperature=one_of(1.0, 0.6, 1.8),
        never_generated=(PAD,),
    )
    ngram = one_of(0, 0, 1, 2)
    return Case(
        replace(options, no_repeat_ngram_size=ngram),
        [RandomScript(int(seed), len(SYMBOLS)) for seed in rng.integers(1 << 30, size=one_of(1, 2))],
        [rng.integers(4, len(SYMBOLS), size=length) for _ in range(SENTENCES)],
        () if ngram else one_of((), (5,), (6, 6)),
    )


def task(**options):
    return DeltaLMSeq2SeqTask(DeltaLMSeq2SeqConfig(data="", **options), DICTIONARY)


def generation(options, **others):
    """Return fairseq's options for these; a search without length penalty gets fairseq's name for it."""
    names = ("beam", "nbest", "max_len_a", "max_len_b", "min_len", "lenpen", "temperature", "no_repeat_ngram_size")
    values = {name: getattr(options, name) for name in names}
    return Namespace(**values, unnormalized=options.lenpen == 0, **others)


def search(case, early_stop, **others):
    """Return the results of a case, and the number of hypotheses that were read in all steps."""
    models = [ScriptedTranslator(script) for script in case.scripts]
    args = generation(case.options, **others)
    generator = task(early_stop=early_stop).build_generator(models, args)
    rows = torch.tensor(np.array([[*source, EOS] for source in case.sources]))
    sample = {"net_input": {"src_tokens": rows, "src_lengths": torch.full((len(rows),), rows.size(1))}}
    prefix = torch.tensor([case.prefix] * len(rows)) if case.prefix else None
    return generator.generate(models, sample, prefix_tokens=prefix), models[0].rows_read


@pytest.mark.parametrize("part", range(2))
def test_the_exact_rule_finds_the_hypotheses_of_a_full_search(monkeypatch, part):
    monkeypatch.setattr(naive_search, "next_log_probs", scripted_log_probs)
    form = SimpleNamespace(sep=EOS, source=EncoderDecoderForm((), EOS, PAD, 99, 99).source, max_target=99)
    compared, read = 0, {"exact": 0, "never": 0}
    cases = [random_case(seed) for seed in range(part, BATCHES, 2)]
    for case in cases:
        results, rows = search(case, "exact")
        read["exact"] += rows
        never, rows = search(case, "never")
        read["never"] += rows
        for source, found, unstopped in zip(case.sources, results, never, strict=True):
            gaps = []
            expected = naive_search.naive_search(case.scripts, form, case.options, source, case.prefix, gaps)
            if min(gaps) > CLOSE:
                compared += 1
                assert_same_hypotheses(found, expected, (case.options, source, case.prefix))
                assert_same_hypotheses(unstopped, expected, (case.options, source, case.prefix))
    assert compared > 0.9 * SENTENCES * len(cases)
    assert read["exact"] < read["never"]


@pytest.mark.parametrize("lenpen", [0.0, 0.6, 1.0, 2.5, -0.4])
def test_the_bound_is_the_best_of_all_lengths(lenpen):
    model = ScriptedTranslator(RandomScript(1, len(SYMBOLS)))
    generator = task().build_generator([model], Namespace(lenpen=lenpen, unnormalized=lenpen == 0))
    # The best hypothesis of a sentence can end here; the others continue.
    scores, tokens = torch.tensor([[-1.0, -3.0], [-2.0, -7.0]]), torch.tensor([[EOS, 5], [6, EOS]])
    generator.candidates = scores, tokens, None
    for step, max_len in ((0, 9), (4, 9), (8, 9)):
        expected = [max(score / length**lenpen for length in range(step + 2, max_len + 2)) for score in (-3.0, -2.0)]
        assert generator._bounds(step, max_len) == pytest.approx(expected)


def test_scores_that_may_rise_have_no_bound():
    """With fairseq's reward for unknown words, another one can always follow."""
    better = 0
    for seed in range(12):
        case = random_case(seed)
        exact, never = (search(case, rule, unkpen=-4.0) for rule in ("exact", "never"))
        assert [[h["tokens"].tolist() for h in found] for found in exact[0]] == [
            [h["tokens"].tolist() for h in found] for found in never[0]
        ]
        assert exact[1] == never[1]
        better += any(UNK in found[0]["tokens"] for found in exact[0])
    assert better > 6


def test_a_search_that_loses_all_open_hypotheses_ends(monkeypatch):
    """Some have ended, others could still be better, and then no token is possible."""
    # With real models, rules forbid tokens after the softmax; a script can only have scores of -inf, which become NaN.
    monkeypatch.setattr("s2sft_fairseq.runtime.search.check_log_probs", lambda *_: None)

    class DeadEnd(RandomScript):
        def __call__(self, source, prefix):
            return super().__call__(source, prefix) + (-np.inf if len(prefix) > 3 else 4.0 * (np.arange(12) == EOS))

    case = random_case(1)._replace(options=SearchOptions(beam=4, nbest=1, max_len_b=9), prefix=())
    results, _ = search(case._replace(scripts=[DeadEnd(1, len(SYMBOLS))]), "exact")
    lengths = [len(found[0]["tokens"]) for found in results]
    assert len(lengths) == SENTENCES and max(lengths) <= 4


@pytest.mark.parametrize(
    ("options", "args", "expected"),
    [
        ({}, {"beam": 2}, EncoderDecoderSearch),
        ({}, {}, EncoderDecoderSearch),
        ({"early_stop": "never"}, {"beam": 2}, EncoderDecoderSearch),
        ({"early_stop": "fairseq"}, {"beam": 2}, SequenceGenerator),
        ({}, {"beam": 1}, SequenceGenerator),
        ({}, {"beam": 2, "sampling": True}, SequenceGenerator),
        ({}, {"beam": 2, "print_alignment": "hard"}, SequenceGeneratorWithAlignment),
        ({}, {"score_reference": True}, SequenceScorer),
    ],
)
def test_which_search_is_used(options, args, expected):
    model = ScriptedTranslator(RandomScript(1, len(SYMBOLS)))
    model.decoder.nextstep_alignment = True
    assert type(task(**options).build_generator([model], Namespace(**args))) is expected


def test_no_early_stop():
    model = ScriptedTranslator(RandomScript(1, len(SYMBOLS)))
    assert not task().build_generator([model], Namespace(no_early_stop=True)).exact
    assert task().build_generator([model], Namespace(no_early_stop=False)).exact
    with pytest.raises(UserError, match=r"^--early-stop fairseq and --no-early-stop exclude each other"):
        task(early_stop="fairseq").build_generator([model], Namespace(no_early_stop=True))
