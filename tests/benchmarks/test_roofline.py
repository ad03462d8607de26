"""The work that decoding needs, against a decoder that does no more than that, and whose products PyTorch counts."""

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from naive_search import next_log_probs
from roofline import Rates, Sizes, Work, least_seconds, needed_work
from tiny import MASK, VOCAB_SIZE, tiny_form, tiny_model, words
from torch.nn.functional import gelu, linear
from torch.utils.flop_counter import FlopCounterMode

LAYERS, WIDTH, INNER, HEADS = 3, 16, 24, 2
SOURCES, TARGET = (7, 4, 12), 5


class FrugalDecoder:
    """One source, and hypotheses that share nothing else; a plain product for everything that is needed."""

    def __init__(self, model, source):
        self.model, self.length = model, len(source)
        x = self.embed(source, range(len(source)), 0)
        self.source = []
        for layer in model.layers[:-1]:
            query, key, value = layer.attention.qkv(x).chunk(3, dim=1)
            self.source.append((key, value))
            x = after_attention(layer, x, attend(query, key, value))
        self.source.append(project(model.layers[-1], x, slice(1, 3)))

    def embed(self, tokens, positions, segment):
        tokens = torch.as_tensor(tokens)
        return self.model.embeddings(tokens, torch.tensor(list(positions)), torch.full_like(tokens, segment))

    def step(self, last, history):
        """Logits behind the last token, if there is one, whose keys and values join the history of its hypothesis."""
        step = len(history) + len(last)
        x = self.embed([*last, MASK], range(self.length + step - len(last), self.length + step + 1), 1)
        added = []
        for index, (layer, source) in enumerate(zip(self.model.layers, self.source, strict=True)):
            own = [entry[index] for entry in history]
            if index < LAYERS - 1:
                query, key, value = layer.attention.qkv(x).chunk(3, dim=1)
            else:
                key, value = project(layer, x, slice(1, 3))
                x = x[-1:]
                (query,) = project(layer, x, slice(0, 1))
            keys, values = (torch.cat([source[i], *(entry[i] for entry in own), (key, value)[i]]) for i in (0, 1))
            # The last query is the placeholder's, which sees itself too; the one before it stops at its own key.
            seen = [len(keys) - len(query) + 1 + i for i in range(len(query))]
            rows = [attend(query[i : i + 1], keys[:end], values[:end]) for i, end in enumerate(seen)]
            x = after_attention(layer, x, torch.cat(rows))
            added.append((key[:-1], value[:-1]))
        if last:
            history.append(added)
        return self.model.lm_head(x[-1:], self.model.embeddings.tokens.weight)[0]


def project(layer, x, parts):
    """Some of queries, keys and values (0, 1, 2) of states (L, H)."""
    qkv, rows = layer.attention.qkv, slice(parts.start * WIDTH, parts.stop * WIDTH)
    return linear(x, qkv.weight[rows], qkv.bias[rows]).chunk(parts.stop - parts.start, dim=1)


def attend(query, key, value):
    # (L, H) -> (h, L, d)
    query, key, value = (x.unflatten(1, (HEADS, -1)).transpose(0, 1) for x in (query, key, value))
    weights = (query @ key.transpose(1, 2) / math.sqrt(WIDTH // HEADS)).softmax(dim=-1)
    return (weights @ value).transpose(0, 1).flatten(1)


def after_attention(layer, x, attended):
    x = layer.attention_layer_norm(x + layer.attention.output(attended))
    return layer.final_layer_norm(x + layer.fc2(gelu(layer.fc1(x))))


def counted(function):
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        result = function()
    return result, counter.get_total_flops()


@pytest.mark.parametrize("beam", [1, 3])
def test_as_a_decoder_that_does_no_more(beam):
    model = tiny_model(3, encoder_layers=LAYERS, encoder_ffn_embed_dim=INNER)
    form, rng = tiny_form(), np.random.default_rng(5)
    sources = [words(rng, length - 2) for length in SOURCES]
    hypotheses = [[words(rng, TARGET).tolist() for _ in range(beam)] for _ in sources]
    work = needed_work(Sizes(LAYERS, WIDTH, INNER, VOCAB_SIZE), SOURCES, TARGET, beam)

    decoders, flops = counted(lambda: [FrugalDecoder(model, form.source(source)) for source in sources])
    assert work.prefill_flops == flops

    matrices = sum(p.numel() for p in [*model.layers.parameters(), *model.lm_head.dense.parameters()] if p.ndim == 2)
    matrices += model.embeddings.tokens.weight.numel()
    histories = [[[] for _ in range(beam)] for _ in sources]
    for step in range(TARGET):
        live = slice(0, beam if step else 1)  # all beams begin alike
        cached = [k for decoder in decoders for k in decoder.source]
        cached += [k for beams in histories for history in beams for entry in history for k in entry]
        assert work.step_bytes[step] == 4 * (matrices + sum(key.numel() + value.numel() for key, value in cached))

        def run(step=step, live=live):
            return [
                [decoder.step(tokens[max(step - 1, 0) : step], history) for tokens, history in pairs]
                for decoder, pairs in zip(
                    decoders, (list(zip(*both, strict=True))[live] for both in zip(hypotheses, histories, strict=True)),
                    strict=True,
                )
            ]  # fmt: skip

        logits, flops = counted(run)
        assert work.step_flops[step] == flops
        for rows, source, beams in zip(logits, sources, hypotheses, strict=True):
            expected = next_log_probs([model], form, source, [tuple(tokens[:step]) for tokens in beams[live]], 1.0)
            np.testing.assert_allclose(torch.stack(rows).log_softmax(dim=1).numpy(), expected, atol=1e-4, rtol=0)


def test_steps_grow_by_the_attention_alone():
    flops = needed_work(Sizes(LAYERS, WIDTH, INNER, VOCAB_SIZE), (30,), 20, 2).step_flops[1:]
    # One key more, for two queries in each lower layer and one in the last, in each of two hypotheses.
    assert {after - before for before, after in pairwise(flops)} == {2 * 4 * WIDTH * (2 * LAYERS - 1)}


def test_a_step_takes_the_longer_of_computing_and_reading():
    work = Work(prefill_flops=1000, step_flops=[100, 300], step_bytes=[50, 60])
    assert least_seconds(work, Rates(flops=100, bytes=25)) == pytest.approx(10 + 2 + 3)
