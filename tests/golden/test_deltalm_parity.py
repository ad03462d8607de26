"""The `deltalm` model compared with the original plugin: logits, losses, gradients, checkpoints, beam search."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.sequence_generator import SequenceGenerator
from recorded_deltalm import (
    CASES,
    CHECKPOINTS,
    MODELS,
    PAD,
    POSITIONS,
    SETTINGS,
    VOCAB_SIZE,
    Task,
    batch,
    config,
    model,
    weights,
)

from s2sft_fairseq.checkpoints.deltalm import interleave
from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.models.convert import convert
from s2sft_fairseq.models.deltalm import DeltaLMModel

pytestmark = pytest.mark.rounding

SIDES = ("left", "right")
SEARCHES = [(case, name) for case in MODELS for name in CASES[case] if name.startswith("beam")]
WITH_LOGITS = [case for case in CHECKPOINTS if "logits" in batch(case, "left")]
# The recorded maximum, without eos; some hypotheses reach it.
MAX_TOKENS = max(len(best["tokens"]) for case, name in SEARCHES for found in CASES[case][name] for best in found) - 1


def run(built, recorded):
    out, _ = built(recorded["src_tokens"], recorded["src_lengths"], recorded["prev_output_tokens"])
    nll = torch.nn.functional.cross_entropy(
        out.flatten(0, 1), recorded["target"].flatten(), ignore_index=PAD, reduction="sum"
    )
    return out, nll


@pytest.mark.parametrize("case", MODELS)
@pytest.mark.parametrize("side", SIDES)
def test_the_states_of_the_encoder(case, side):
    recorded = batch(case, side)
    with torch.no_grad():
        states = model(case).encoder(recorded["src_tokens"], recorded["src_lengths"])["encoder_out"][0].transpose(0, 1)
    real = recorded["src_tokens"] != PAD
    torch.testing.assert_close(states[real], recorded["encoder_out"][real], atol=1e-4, rtol=0)


@pytest.mark.parametrize("case", MODELS)
@pytest.mark.parametrize("side", SIDES)
def test_logits_and_loss(case, side):
    recorded = batch(case, side)
    with torch.no_grad():
        logits, nll = run(model(case), recorded)
    real = recorded["target"] != PAD
    torch.testing.assert_close(logits[real], recorded["logits"][real], atol=1e-4, rtol=0)
    assert nll.item() == pytest.approx(recorded["nll_sum"].item(), rel=1e-3)


@pytest.mark.parametrize("case", MODELS)
def test_gradients(case):
    recorded, built = batch(case, "left"), model(case)
    run(built, recorded)[1].backward()
    parameters = dict(built.named_parameters())
    names = CASES[case]["grad_param_names"]
    assert set(names) == set(parameters)
    ours = np.array([parameters[name].grad.norm().item() for name in names])
    np.testing.assert_allclose(ours, recorded["grad_l2"].numpy(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("case", MODELS)
def test_the_names_of_all_parameters(case):
    ours = [(name, list(value.shape)) for name, value in model(case).state_dict().items()]
    assert sorted(ours) == sorted((name, shape) for name, shape in CASES[case]["state_dict"])


@pytest.mark.parametrize(("case", "search"), SEARCHES)
def test_n_best_lists(case, search):
    beam, penalty = re.fullmatch(r"beam(\d+)_lenpen([\d.]+)", search).groups()
    built, recorded = model(case), batch(case, "left")
    built.make_generation_fast_(need_attn=False)
    generator = SequenceGenerator(
        [built],
        Task().target_dictionary,
        beam_size=int(beam),
        len_penalty=float(penalty),
        max_len_a=0,
        max_len_b=MAX_TOKENS,
    )
    sample = {"net_input": {name: recorded[name] for name in ("src_tokens", "src_lengths")}}
    found = generator(sample)
    assert len(found) == len(CASES[case][search]) == len(recorded["src_tokens"])
    for ours, theirs in zip(found, CASES[case][search], strict=True):
        assert [hypothesis["tokens"].tolist() for hypothesis in ours] == [one["tokens"] for one in theirs]
        assert [float(one["score"]) for one in ours] == pytest.approx([one["score"] for one in theirs], abs=1e-4)


def recorded_checkpoint(case, tmp_path):
    """Write the recorded checkpoint to a file, with random values if only keys and shapes are recorded."""
    draw = torch.Generator().manual_seed(1)
    values = weights(case) or {
        name: torch.randn(shape, generator=draw) for name, shape in CASES[case]["checkpoint_keys"]
    }
    path = tmp_path / "deltalm.pt"
    torch.save({"weights": values}, path)
    return path, values


@pytest.mark.parametrize("case", CHECKPOINTS)
def test_the_origin_of_each_parameter(case, tmp_path):
    path, values = recorded_checkpoint(case, tmp_path)
    torch.manual_seed(5)
    built = DeltaLMModel.build_model(config(case, pretrained=str(path)), Task())
    state = built.state_dict()
    came_from = CASES[case]["model_key_from_checkpoint_key_and_copied_rows"]
    assert set(came_from) == set(state)
    assert {name for name, origins in came_from.items() if not origins} == set(
        CASES[case]["model_keys_not_in_checkpoint"]
    )
    for name, origins in came_from.items():
        for origin, rows in origins:
            assert torch.equal(state[name][:rows], values[origin][:rows]), name
            assert rows == min(len(state[name]), len(values[origin])), name
    rows = [len(state[name]) for name in ("encoder.embed_tokens.weight", "decoder.embed_positions.weight")]
    assert rows == [VOCAB_SIZE, POSITIONS + PAD + 1]


@pytest.mark.parametrize("case", WITH_LOGITS)
def test_the_logits_of_a_checkpoint(case, tmp_path):
    path, _ = recorded_checkpoint(case, tmp_path)
    recorded = batch(case, "left")
    with torch.no_grad():
        logits, nll = run(DeltaLMModel.build_model(config(case, pretrained=str(path)), Task()).eval(), recorded)
    real = recorded["target"] != PAD
    torch.testing.assert_close(logits[real], recorded["logits"][real], atol=1e-4, rtol=0)
    assert nll.item() == pytest.approx(recorded["nll_sum"].item(), rel=1e-3)


@pytest.mark.parametrize("case", WITH_LOGITS)
def test_the_logits_of_a_converted_checkpoint(case, tmp_path):
    """Use `s2sft convert` and its folder, in which every row has a symbol."""
    path, _ = recorded_checkpoint(case, tmp_path)
    # The file lists neither fairseq's four symbols nor symbols for the last rows.
    (tmp_path / "dict.txt").write_text("".join(f"w{number} 1\n" for number in range(VOCAB_SIZE - 10)))
    convert(path, tmp_path / "folder")
    symbols = PretrainedDictionary.load(str(tmp_path / "folder" / "dict.txt"))
    assert len(symbols) == VOCAB_SIZE
    task = SimpleNamespace(source_dictionary=symbols, target_dictionary=symbols)
    recorded = batch(case, "left")
    built = DeltaLMModel.build_model(config(case, pretrained=str(tmp_path / "folder")), task).eval()
    with torch.no_grad():
        logits, nll = run(built, recorded)
    real = recorded["target"] != PAD
    torch.testing.assert_close(logits[real], recorded["logits"][real], atol=1e-4, rtol=0)
    assert nll.item() == pytest.approx(recorded["nll_sum"].item(), rel=1e-3)


@pytest.mark.parametrize("rule", [case for case in CASES.values() if "map" in case])
def test_the_rule_of_the_paper(rule):
    """Each decoder parameter equals the encoder parameter that the recorded table names."""
    table = rule["map"]
    case = next(name for name in MODELS if CASES[name]["args"]["encoder_layers"] == rule["encoder_layers"])
    encoder = {
        name.removeprefix("encoder."): value
        for name, value in model(case).state_dict().items()
        if name.startswith("encoder.layers.")
    }
    interleaved = interleave(encoder, rule["decoder_layers"])
    decoder = {name: value for name, value in interleaved.items() if name.startswith("decoder.")}
    assert {name.removeprefix("decoder.") for name in decoder} == set(table)
    for ours, theirs in table.items():
        assert torch.equal(decoder[f"decoder.{ours}"], encoder[theirs]), ours


def test_named_architectures():
    from fairseq.models import ARCH_CONFIG_REGISTRY

    from s2sft_fairseq.models.deltalm import DeltaLMConfig, complete_sizes, transformer_config

    for name in ("base", "large"):
        options = DeltaLMConfig()
        ARCH_CONFIG_REGISTRY[f"deltalm_{name}"](options)
        complete_sizes(options, {}, {})
        settings = transformer_config(options)
        recorded = SimpleNamespace(**SETTINGS[f"arch_{name}"])
        assert options.max_positions == recorded.max_positions == settings.max_source_positions
        for option, value in vars(recorded).items():
            if option != "max_positions":
                assert getattr(settings, option) == value, option
