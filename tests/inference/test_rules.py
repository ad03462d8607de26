"""The rules of what may come next, one by one and for hypotheses of several lengths."""

import math

import torch
from tiny import CLS, MASK, PAD, SEP, UNK, tiny_form

from s2sft_fairseq.inference.options import SearchOptions
from s2sft_fairseq.inference.rules import TokenRules

VOCAB = 10
SOURCE = torch.tensor([[CLS, 7, 8, 9, SEP], [CLS, 7, SEP, PAD, PAD], [CLS, SEP, PAD, PAD, PAD]])


def allowed(rules, tokens, lengths):
    """The tokens that may follow each hypothesis; all that do keep their log-probabilities."""
    tokens = torch.tensor(tokens, dtype=torch.int64).view(len(lengths), -1, len(tokens[0]) if tokens else 0)
    log_probs = torch.randn(len(lengths), 1, VOCAB).log_softmax(dim=-1)
    before = log_probs.clone()
    rules.apply(log_probs, tokens, torch.tensor(lengths))
    kept = log_probs > -math.inf
    assert log_probs[kept].equal(before[kept])
    return [row.nonzero().squeeze(1).tolist() for row in kept.squeeze(1)]


def rules(prefix=None, source=SOURCE, **options):
    return TokenRules(tiny_form(), SearchOptions(**options), source, prefix)


def test_limits_of_length():
    found = rules(max_len_a=1.0, max_len_b=2)
    # 5 + 2, 3 + 2, and nothing from an empty source.
    assert found.max_len.tolist() == [7, 5, 0]
    assert (found.shortest_limit, found.longest_limit) == (0, 7)
    assert rules().max_len.tolist() == [15, 15, 0], "the model's own limit"
    found.keep_sentences(torch.tensor([0, 1]))
    assert found.shortest_limit == 5


def test_what_is_never_generated_and_the_shortest_length():
    found = rules(never_generated=(PAD, UNK, CLS, MASK), min_len=2, source=SOURCE[:2])
    assert allowed(found, [[PAD, 7], [8, 9]], [1, 2]) == [[5, 6, 7, 8, 9], [SEP, 5, 6, 7, 8, 9]]


def test_eos_at_the_longest_length():
    everything = list(range(VOCAB))
    found = rules(max_len_b=2, min_len=0, never_generated=())
    assert allowed(found, [[7, 8], [PAD, 8], [PAD, PAD]], [2, 1, 0]) == [[SEP], everything, [SEP]]
    found = rules(max_len_b=2, min_len=0, keep_unfinished=True)
    assert allowed(found, [[7, 8], [PAD, 8], [PAD, PAD]], [2, 1, 0]) == [everything, everything, [SEP]]


def test_prefixes_count_more_than_what_is_forbidden():
    prefix = torch.tensor([[UNK, 9], [6, PAD], [7, 7]])
    found = rules(prefix, never_generated=(UNK,), min_len=0)
    others = [token for token in range(VOCAB) if token != UNK]
    assert allowed(found, [[PAD], [6], [PAD]], [0, 1, 0]) == [[UNK], others, [SEP]]
    assert allowed(found, [[5, UNK], [6, 7], [5, 5]], [1, 2, 2]) == [[9], others, [SEP]]
    found.keep_sentences(torch.tensor([1]))
    assert allowed(found, [[PAD]], [0]) == [[6]]


def test_repeated_ngrams():
    found = rules(no_repeat_ngram_size=2, min_len=0, source=SOURCE[:2])
    without = [token for token in range(VOCAB) if token != 8]
    assert allowed(found, [[7, 8, 7], [PAD, PAD, 7]], [3, 1]) == [without, list(range(VOCAB))]
