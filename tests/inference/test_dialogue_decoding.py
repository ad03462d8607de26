"""Step-by-step decoding with a dialogue model equals the full packed pass, and segments select rows of its tables."""

import numpy as np
import pytest
import torch
from tiny import MASK, PAD, SEP, VOCAB_SIZE, model_inputs, padded, reference_example, tiny_form, tiny_model, words

from s2sft_fairseq.inference.decoder import IncrementalDecoder
from s2sft_fairseq.objectives.objective import OBJECTIVES
from s2sft_fairseq.objectives.packing import collate
from s2sft_fairseq.objectives.sequence_form import SourceFields

STEPS = 5
ROLES = {"num_segments": 0, "num_roles": 3, "num_turns": 4}


def dialogue(rng, *lengths):
    """Return fields of these lengths with [SEP] between them."""
    return np.concatenate([part for length in lengths for part in ([SEP], words(rng, length))][1:]).astype(np.int64)


@pytest.mark.parametrize("method", list(OBJECTIVES))
@torch.no_grad()
def test_teacher_forcing(method):
    form = tiny_form(method, fields=SourceFields(truncation=("right", "left"), dialogue=(3, 4)), target_segment=0)
    model = tiny_model(4, **ROLES).double()
    rng = np.random.default_rng(11)
    sources = [dialogue(rng, 4, 3, 2), dialogue(rng, 5), dialogue(rng, 0, 1, 1, 1, 1, 1), dialogue(rng, 9, 9, 9)]
    targets = words(rng, (len(sources), STEPS))
    batch = collate([reference_example(s, t, form) for s, t in zip(sources, targets, strict=True)])
    labelled = torch.from_numpy(np.flatnonzero(batch.label != PAD))
    expected = model(**model_inputs(batch), labelled=labelled).view(len(sources), -1, VOCAB_SIZE)
    source = padded([form.source(ids) for ids in sources])
    decoder = IncrementalDecoder(model, form, source, max_tokens=STEPS + 1, beams=1)
    for step in range(STEPS + 1):
        torch.testing.assert_close(decoder.next_logits().flatten(0, 1), expected[:, step], atol=2e-5, rtol=1e-5)
        if step < STEPS:
            decoder.append(torch.from_numpy(targets[:, step, None]), torch.zeros(len(sources), 1, dtype=torch.int64))


@torch.no_grad()
def test_a_segment_is_a_role_and_a_turn():
    """Segment 7 is turn 2 of role 1: the sum of these two rows, in place of a row of a segment table."""
    model = tiny_model(2, **ROLES)
    embeddings = model.embeddings
    token, position, segment = (torch.tensor([number]) for number in (MASK, 5, 7))
    rows = embeddings.tokens.weight[MASK] + embeddings.positions.weight[5]
    rows = rows + embeddings.roles.weight[1] + embeddings.turns.weight[2]
    torch.testing.assert_close(embeddings(token, position, segment)[0], embeddings.layer_norm(rows))
    assert embeddings.segments is None
    assert tiny_model(2).embeddings.roles is None and tiny_model(2).embeddings.turns is None
