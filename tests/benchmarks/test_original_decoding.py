"""The baseline finds our hypotheses with the same weights, and repeats the original's redundant work."""

import numpy as np
import pytest
import torch
from generation_baselines import bert2bert, original
from generation_systems import Setting, ours, prepare
from original_decoding import OriginalDecoder
from tiny import PAD, SEP, TINY_SIZES, VOCAB_SIZE, padded, tiny_form, tiny_model, words
from torch.utils.flop_counter import FlopCounterMode

from s2sft_fairseq.modules.cpu_linear import can_quantize

LENGTHS, STEPS = (9, 4, 20, 13), 10


@pytest.fixture(scope="module")
def model():
    return tiny_model(4)


@pytest.fixture(scope="module")
def sources():
    rng = np.random.default_rng(8)
    return padded([tiny_form().source(words(rng, length)) for length in LENGTHS])


def setting(beam, steps=STEPS):
    return Setting("unilm_tiny", VOCAB_SIZE, 24, steps, beam, torch.device("cpu"), seed=1)


def no_tick():
    pass


@pytest.mark.parametrize("beam", [1, 2, 5])
def test_the_same_hypotheses(model, sources, beam):
    expected = ours(setting(beam), model)(sources, no_tick)
    assert expected.shape == (len(LENGTHS), STEPS)
    assert SEP not in expected
    found = original(setting(beam), model)(sources, no_tick)
    assert found.tolist() == expected.tolist()


def test_beams_do_move(model, sources):
    """Otherwise the reordering would not be tested."""
    wide, greedy = (original(setting(beam), model)(sources, no_tick) for beam in (5, 1))
    assert wide.tolist() != greedy.tolist()


def test_the_weights_are_ours_and_not_copies(model):
    decode = original(setting(1), model)
    decoder = next(cell.cell_contents for cell in decode.__closure__ if isinstance(cell.cell_contents, OriginalDecoder))

    def storages(weights):
        return {matrix.untyped_storage().data_ptr() for matrix in weights.parameters() if matrix.ndim == 2}

    assert storages(decoder.model) == storages(model)


@pytest.mark.parametrize("beam", [1, 3])
def test_everything_is_projected_again_for_every_beam(model, sources, beam):
    layers, width, inner = (TINY_SIZES[f"encoder_{name}"] for name in ("layers", "embed_dim", "ffn_embed_dim"))

    def flops(rows, new, keys):
        projected = new * (2 * width * width + 2 * width * inner) + keys * 2 * width * width
        head = width * width + width * VOCAB_SIZE
        return 2 * rows * (layers * (projected + 2 * new * keys * width) + head)

    length = sources.size(1)
    expected = flops(len(sources), length + 1, length + 1)
    expected += sum(flops(len(sources) * beam, 2, length + step + 1) for step in range(1, STEPS))
    with FlopCounterMode(display=False) as counter:
        original(setting(beam), model)(sources, no_tick)
    assert counter.get_total_flops() == expected


def test_steps_that_are_left_out_lengthen_the_history(model, sources):
    def flops(measured):
        with FlopCounterMode(display=False) as counter:
            tokens = original(setting(3), model, measured)(sources, no_tick)
        assert tokens.shape == (len(LENGTHS), STEPS)
        return counter.get_total_flops()

    none, last, second = flops([]), flops([STEPS - 1]), flops([1])
    more_keys = len(LENGTHS) * 3 * (STEPS - 2) * (2 * 2 * 16 * 16 + 2 * 2 * 2 * 16) * TINY_SIZES["encoder_layers"]
    assert last - none == second - none + more_keys


def test_every_system_ticks_at_every_step(sources):
    model = tiny_model(4)
    ticks = []
    for decode in (ours(setting(2), model), original(setting(2), model), bert2bert(setting(2))):
        count = []
        tokens = decode(sources, lambda count=count: count.append(1))
        assert tokens.shape == (len(LENGTHS), STEPS)
        ticks.append(len(count))
    # The original's first step also encodes the source, in one pass.
    assert ticks == [STEPS, STEPS - 1, STEPS]


def test_bert2bert_goes_on_to_the_end(sources):
    tokens = bert2bert(setting(3))(sources, no_tick)
    assert tokens.shape == (len(LENGTHS), STEPS)
    assert SEP not in tokens[:, :-1]


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_precisions(sources, precision):
    model = tiny_model(4)
    if precision == "int8" and not can_quantize(model.embeddings.tokens.weight):
        pytest.skip("this CPU does not multiply 8-bit numbers")
    prepare(model, precision)
    tokens = ours(setting(2), model)(sources, no_tick)
    assert tokens.shape == (len(LENGTHS), STEPS)
    assert PAD <= tokens.min() <= tokens.max() < VOCAB_SIZE
    if precision == "float32":
        assert tokens.tolist() == ours(setting(2), tiny_model(4))(sources, no_tick).tolist()
