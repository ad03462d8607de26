"""From the options of fairseq-generate to those of a search, and errors of options that do not fit."""

from dataclasses import fields, replace
from types import SimpleNamespace

import pytest
import torch
from fairseq.dataclass.configs import GenerationConfig
from tiny import CLS, MASK, PAD, UNK, tiny_dictionary, tiny_form

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.inference.options import (
    LENGTH_PENALTIES,
    UNSUPPORTED,
    SearchOptions,
    UnilmSearchConfig,
    uses_cuda_graphs,
)


def build(task=None, form=None, **options):
    """Return the options of a search for those of the task and of fairseq."""
    settings = {
        "early_stop": "exact",
        "length_penalty": "length",
        "keep_unfinished": False,
        "no_repeat_ngram_ignore": None,
        "rank_each_step": False,
        "count_ended": False,
        "all_ended": False,
        "draft_placeholders": 0,
        "draft_source": 0,
        "draft_blocks": 0,
        "decode_blocks": 0,
        "confidence": 0.9,
        "max_passes": 0,
        "revise": 0.0,
        "cuda_graphs": "auto",
        **(task or {}),
    }
    return SearchOptions.of(
        GenerationConfig(**options), SimpleNamespace(**settings), form or tiny_form(), tiny_dictionary()
    )


def test_defaults_are_those_of_fairseq_except_for_early_stop():
    assert build() == SearchOptions(
        beam=5,
        nbest=1,
        max_len_a=0,
        max_len_b=200,
        min_len=1,
        lenpen=1,
        temperature=1.0,
        early_stop="exact",
        never_generated=(PAD, UNK, CLS, MASK),
    )
    assert not build().sampling and not build().no_repeat_ngram_size


def test_every_option_arrives():
    options = build(
        {
            "length_penalty": "gnmt",
            "keep_unfinished": True,
            "no_repeat_ngram_ignore": "w7|w9",
            "early_stop": "fairseq",
        },
        beam=3,
        nbest=3,
        max_len_a=1.5,
        max_len_b=7,
        min_len=2,
        lenpen=0.8,
        temperature=1.3,
        no_repeat_ngram_size=3,
    )
    assert options == SearchOptions(
        beam=3,
        nbest=3,
        max_len_a=1.5,
        max_len_b=7,
        min_len=2,
        length_penalty="gnmt",
        lenpen=0.8,
        temperature=1.3,
        never_generated=(PAD, UNK, CLS, MASK),
        early_stop="fairseq",
        keep_unfinished=True,
        no_repeat_ngram_size=3,
        no_repeat_ngram_ignore="w7|w9",
        never_blocked=(7, 9),
    )


def test_fairseqs_no_early_stop_means_never():
    assert build(no_early_stop=True).early_stop == "never"
    with pytest.raises(UserError) as raised:
        build({"early_stop": "fairseq"}, no_early_stop=True, beam=2, nbest=3)
    assert raised.value.problems == [
        "--nbest must not exceed --beam (2), but is 3",
        "--early-stop fairseq and --no-early-stop exclude each other: give one of them",
    ]


def test_unnormalized_scores():
    assert build(unnormalized=True, lenpen=2.0).lenpen == 0


@pytest.mark.parametrize("name", ["draft_placeholders", "draft_source"])
def test_drafts(name):
    assert getattr(build({name: 3}, beam=1), name) == 3


def test_drafts_that_are_refused():
    with pytest.raises(UserError) as raised:
        build(
            {"draft_placeholders": 2, "draft_source": 3},
            form=tiny_form("causal"),
            beam=2,
            sampling=True,
        )
    assert raised.value.problems == [
        "--draft-placeholders and --draft-source exclude each other: give one of them",
        "--draft-placeholders is for greedy search: it needs --beam 1, but --beam is 2",
        "--draft-placeholders and --sampling exclude each other",
        "--draft-source is for greedy search: it needs --beam 1, but --beam is 2",
        "--draft-source and --sampling exclude each other",
        "--draft-placeholders needs a model that predicts at placeholders, but this one is causal",
    ]
    with pytest.raises(UserError) as raised:
        build({"draft_source": 2, "cuda_graphs": "on"}, beam=1)
    assert "--cuda-graphs" in str(raised.value) and "--draft-source" in str(raised.value)
    with pytest.raises(UserError) as raised:
        build({"draft_source": -1}, beam=1)
    assert raised.value.problems == ["--draft-source must be a whole number from 0 to 1024, but is -1"]


def test_blocks():
    found = build({"decode_blocks": 4, "confidence": 0.5, "max_passes": 2, "revise": 0.1}, beam=1, sampling=True)
    assert (found.decode_blocks, found.confidence, found.max_passes, found.revise) == (4, 0.5, 2, 0.1)
    assert build({"draft_blocks": -1}, beam=1).draft_blocks == -1
    with pytest.raises(UserError) as raised:
        build(
            {
                "draft_blocks": -2,
                "decode_blocks": 3,
                "keep_unfinished": True,
                "cuda_graphs": "on",
                "rank_each_step": True,
                "confidence": 1.5,
                "revise": -1.0,
                "max_passes": -1,
            },
            form=tiny_form("causal"),
            sampling=True,
        )
    expected = [
        ("--draft-blocks", "-2"),
        ("--confidence", "1.5"),
        ("--max-passes", "-1"),
        ("--revise", "-1"),
        ("--draft-blocks and --decode-blocks exclude each other",),
        ("--draft-blocks", "--beam 1", "5"),
        ("--draft-blocks and --sampling exclude each other",),
        ("--decode-blocks", "--beam 1", "5"),
        ("--rank-each-step and --sampling",),
        ("--rank-each-step and --draft-blocks",),
        ("--rank-each-step and --decode-blocks",),
        ("--cuda-graphs on and --draft-blocks",),
        ("--cuda-graphs on and --decode-blocks",),
        ("--draft-blocks", "causal"),
        ("--decode-blocks", "causal"),
        ("--decode-blocks and --keep-unfinished",),
    ]
    assert len(raised.value.problems) == len(expected)
    for problem, words in zip(raised.value.problems, expected, strict=True):
        assert all(word in problem for word in words), problem


def test_ranking_each_step():
    assert build({"rank_each_step": True}).rank_each_step
    with pytest.raises(UserError) as raised:
        build({"rank_each_step": True, "draft_source": 3}, beam=1, sampling=True)
    assert raised.value.problems[-2:] == [
        "--rank-each-step and --sampling exclude each other",
        "--rank-each-step and --draft-source exclude each other",
    ]


def test_counting_ended_hypotheses():
    assert build({"count_ended": True}).count_ended
    with pytest.raises(UserError) as raised:
        build({"rank_each_step": True, "count_ended": True, "draft_source": 3}, beam=1)
    assert raised.value.problems[-3:] == [
        "--rank-each-step and --draft-source exclude each other",
        "--count-ended and --draft-source exclude each other",
        "--count-ended and --rank-each-step exclude each other",
    ]


def test_recording_a_search():
    assert build({"all_ended": True}).all_ended
    with pytest.raises(UserError) as raised:
        build({"all_ended": True, "rank_each_step": True, "early_stop": "fairseq"}, beam=3, nbest=2)
    assert raised.value.problems == [
        "--all-ended and --rank-each-step exclude each other",
        "--all-ended and --early-stop fairseq exclude each other",
        "--all-ended writes all hypotheses: leave out --nbest, which is 2",
    ]


def test_more_beams_than_symbols():
    with pytest.raises(UserError, match="--beam must not exceed the 50 symbols of the dictionary, but is 51"):
        build(beam=51)
    assert build(beam=51, sampling=True).beam == 51


def test_sampling():
    options = build(sampling=True, sampling_topk=3, sampling_topp=1.0)
    assert (options.sampling, options.sampling_topk, options.sampling_topp) == (True, 3, 1.0)
    assert options.nbest is None  # all samples are drawn to their end


def test_a_placeholder_of_its_own_is_never_generated():
    assert build(form=tiny_form(placeholder=11)).never_generated == (PAD, UNK, CLS, MASK, 11)


@pytest.mark.parametrize("name", list(UNSUPPORTED))
def test_defaults_of_unsupported_options_are_known(name):
    assert getattr(GenerationConfig(), name) == UNSUPPORTED[name]


def test_all_problems_are_reported_at_once():
    with pytest.raises(UserError) as raised:
        build(
            {"no_repeat_ngram_ignore": "w7|foo|bar"},
            match_source_len=True,
            unkpen=0.5,
            replace_unk="@@ ",
            constraints="ordered",
            diverse_beam_groups=2,
            diversity_rate=0.5,
            print_alignment="hard",
            print_step=True,
            lm_path="lm.pt",
            retain_dropout=True,
            sampling_topk=5,
            sampling_topp=1.5,
            temperature=0.0,
            max_len_a=-0.5,
            max_len_b=-1,
            min_len=-2,
            no_repeat_ngram_size=-3,
            beam=0,
            nbest=2,
        )
    assert raised.value.problems == [
        "--match-source-len is not supported by unilm_seq2seq",
        "--unkpen is not supported by unilm_seq2seq",
        "--replace-unk is not supported by unilm_seq2seq",
        "--constraints is not supported by unilm_seq2seq",
        "--diverse-beam-groups is not supported by unilm_seq2seq",
        "--diversity-rate is not supported by unilm_seq2seq",
        "--print-alignment is not supported by unilm_seq2seq",
        "--print-step is not supported by unilm_seq2seq",
        "--lm-path is not supported by unilm_seq2seq",
        "--retain-dropout is not supported by unilm_seq2seq",
        "--beam must be a whole number from 1 to 10000, but is 0",
        "--max-len-b must be a whole number from 0 to 2147483647, but is -1",
        "--max-len-a must be a number from 0 to 1000000, but is -0.5",
        "--min-len must be a whole number from 0 to 2147483647, but is -2",
        "--no-repeat-ngram-size must be a whole number from 0 to 100, but is -3",
        "--sampling-topp must be a number from 1e-06 to 1, or -1 (off), but is 1.5",
        "--temperature must be a number from 0.001 to 1000, but is 0.0",
        "--sampling-topk needs --sampling",
        "--sampling-topp needs --sampling",
        "--no-repeat-ngram-ignore must name symbols of the dictionary, but it lacks foo, bar",
    ]
    assert str(raised.value).startswith("20 problems:\n  - --match-source-len is not")


def test_an_ignore_list_needs_ngram_blocking():
    with pytest.raises(UserError, match=r"^--no-repeat-ngram-ignore needs --no-repeat-ngram-size$"):
        build({"no_repeat_ngram_ignore": "w7"})


def test_every_option_of_the_task_is_one_of_the_search():
    """So that a new option need not be listed again."""
    given = {"draft_source": 3, "keep_unfinished": True, "length_penalty": "gnmt", "early_stop": "never"}
    options = build(given, beam=1)
    assert {name: getattr(options, name) for name in given} == given
    assert {option.name for option in fields(UnilmSearchConfig)} <= {option.name for option in fields(SearchOptions)}


@pytest.mark.parametrize("penalty", [0.0, 0.5, 1.0, 2.0, -1.0])
def test_both_kinds_of_length_penalty(penalty):
    lengths = torch.tensor([[1, 2], [7, 200]])
    fairseq = [[length**penalty for length in row] for row in lengths.tolist()]
    s2s_ft = [[((5 + length) / 6) ** penalty for length in row] for row in lengths.tolist()]
    options = SearchOptions(lenpen=penalty)
    torch.testing.assert_close(options.normalizer(lengths), torch.tensor(fairseq))
    gnmt = replace(options, length_penalty="gnmt")
    torch.testing.assert_close(gnmt.normalizer(lengths), torch.tensor(s2s_ft))


@pytest.mark.parametrize("kind", LENGTH_PENALTIES)
def test_no_penalty_and_length_one_leave_the_sum(kind):
    def normalizer(length, lenpen):
        return SearchOptions(length_penalty=kind, lenpen=lenpen).normalizer(torch.tensor(length))

    assert normalizer([3, 50], 0.0).tolist() == [1.0, 1.0]
    assert normalizer(1, 1.7).item() == 1.0
    assert normalizer([4], 1.0).dtype == torch.float32


@pytest.mark.parametrize(
    ("given", "device", "expected"),
    [
        ({}, "cuda", True),
        ({}, "cuda:1", True),
        ({}, "cpu", False),
        ({"draft_placeholders": 2}, "cuda", False),
        ({"draft_source": 2}, "cuda", False),
        ({"draft_blocks": -1}, "cuda", False),
        ({"decode_blocks": 4}, "cuda", False),
        ({"cuda_graphs": "off"}, "cuda", False),
        ({"cuda_graphs": "on"}, "cpu", True),  # the generator refuses it
    ],
)
def test_where_cuda_graphs_are_used(given, device, expected):
    assert uses_cuda_graphs(build(given, beam=1), torch.device(device)) == expected
