"""Searches of every kind, sources for them, and hypotheses compared."""

import numpy as np
import torch
from tiny import CLS, MASK, PAD, SEP, UNK, padded, tiny_form, tiny_model, words

from s2sft_fairseq.inference.generator import SequenceGenerator
from s2sft_fairseq.inference.options import SearchOptions

LENGTHS = (9, 20, 3, 15, 1)
MAX_TOKENS = 10
SEARCHES = {
    "greedy": {"beam": 1},
    "beam": {"beam": 3},
    "all of the beam": {"beam": 3, "nbest": 3},
    "early stop of fairseq": {"beam": 3, "early_stop": "fairseq"},
    "exact early stop": {"beam": 3, "early_stop": "exact"},
    "rank each step": {"beam": 3, "rank_each_step": True},
    "count ended": {"beam": 3, "count_ended": True},
    "keep unfinished": {"beam": 3, "keep_unfinished": True, "min_len": 8},
    "no repeated n-grams": {"beam": 3, "no_repeat_ngram_size": 2, "min_len": 6},
    "lengths and temperature": {"beam": 2, "min_len": 3, "max_len_a": 0.2, "temperature": 0.7, "lenpen": 0.5},
    "sampling": {"beam": 3, "sampling": True},
    "sampling from the most probable": {"beam": 3, "sampling": True, "sampling_topk": 5, "sampling_topp": 0.8},
    "drafts at placeholders": {"beam": 1, "draft_placeholders": 2, "min_len": 6},
    "drafts from the source": {"beam": 1, "draft_source": 3, "min_len": 6},
    "drafts of a block": {"beam": 1, "draft_blocks": 2, "min_len": 6},
    "blocks": {"beam": 1, "decode_blocks": 3, "confidence": 0.3, "min_len": 6},
}


def search_options(**changes):
    return SearchOptions(**{"max_len_b": MAX_TOKENS, "never_generated": (PAD, UNK, CLS, MASK), **changes})


def sources(form, lengths=LENGTHS):
    """Return laid-out random sources, padded to one tensor on the CPU."""
    rng = np.random.default_rng(3)
    return padded([form.source(words(rng, length)) for length in lengths])


def batch_of(source):
    return {"net_input": {"src_tokens": source}, "target": None}


def assert_same(found, expected):
    """Compare hypotheses: equal tokens for each sentence, nearly equal scores."""
    assert len(found) == len(expected)
    for ours, theirs in zip(found, expected, strict=True):
        assert [one["tokens"].tolist() for one in ours] == [one["tokens"].tolist() for one in theirs]
        for mine, their in zip(ours, theirs, strict=True):
            for name in ("score", "positional_scores"):
                torch.testing.assert_close(mine[name], their[name], rtol=1e-4, atol=1e-4)


def eager_model(seed, eos=1.0, **sizes):
    """Return a random model whose texts end early, or late with a negative ``eos``."""
    model = tiny_model(seed, **sizes)
    with torch.no_grad():
        model.lm_head.bias[SEP] += eos
    return model


def search(models, options, sources, method, prefixes=None):
    """Return the hypotheses of sources, each ids without special symbols."""
    form = tiny_form(method)
    sample = batch_of(padded([form.source(source) for source in sources]))
    prefix_tokens = None if prefixes is None else padded([np.array(prefix, dtype=np.int64) for prefix in prefixes])
    return SequenceGenerator(models, form, options).generate(models, sample, prefix_tokens)
