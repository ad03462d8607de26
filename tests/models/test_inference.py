"""Models prepared for decoding, compared with the same models before."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import CLS, ENCODERS, PAD, SEP, model_inputs, padded, reference_example, tiny_form, tiny_model, words

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.inference.generator import SequenceGenerator
from s2sft_fairseq.inference.hypotheses import ReferenceScorer
from s2sft_fairseq.inference.options import SearchOptions
from s2sft_fairseq.models.inference import prepare_for_inference
from s2sft_fairseq.modules.cpu_linear import PackedLinear, QuantizedLinear, can_pack, can_quantize
from s2sft_fairseq.objectives.objective import OBJECTIVES
from s2sft_fairseq.objectives.packing import collate

SETTINGS = {
    "float32": {"bf16": False, "quantize": "none"},
    "bf16": {"bf16": True, "quantize": "none"},
    "int8": {"bf16": False, "quantize": "int8"},
}
# Root mean square differences of the logits, in standard deviations of all logits.
TOLERANCES = {"float32": 1e-5, "bf16": 0.15, "int8": 0.15}

needs_kernels = pytest.mark.skipif(
    not (can_pack(torch.ones(1, 1)) and can_quantize(torch.ones(1, 1))), reason="this machine has no packed kernels"
)


@pytest.fixture
def batch():
    """Four sources of different lengths and their targets."""
    rng = np.random.default_rng(0)
    form = tiny_form()
    pairs = [(words(rng, source), words(rng, target)) for source, target in ((9, 4), (5, 7), (14, 1), (1, 3))]
    sources = padded([form.source(source) for source, _ in pairs])
    targets = padded([np.append(target, SEP) for _, target in pairs])
    return {
        "sample": {"net_input": {"src_tokens": sources}, "target": targets},
        "packed": model_inputs(collate([reference_example(*pair, form) for pair in pairs])),
    }


def prepared(model, setting):
    prepare_for_inference(model, **SETTINGS[setting])
    return model


@needs_kernels
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("encoder", ENCODERS.values(), ids=ENCODERS)
def test_logits_of_a_prepared_model(encoder, setting, batch):
    model = tiny_model(3, **encoder)
    with torch.no_grad():
        expected = model(**batch["packed"])
        logits = prepared(model, setting)(**batch["packed"])
    difference = (logits.float() - expected).square().mean().sqrt() / expected.std()
    assert difference <= TOLERANCES[setting]
    assert (difference > 0.002) == (setting != "float32")  # 16 and 8 bits are really used
    assert model.get_normalized_probs(logits, log_probs=True).dtype == torch.float32


@needs_kernels
@pytest.mark.parametrize("encoder", ENCODERS.values(), ids=ENCODERS)
def test_hypotheses_of_a_packed_model(encoder, batch):
    options = SearchOptions(beam=3, max_len_b=6)
    model = tiny_model(3, **encoder)
    expected = SequenceGenerator([model], tiny_form(), options).generate([model], batch["sample"])
    prepared(model, "float32")
    found = SequenceGenerator([model], tiny_form(), options).generate([model], batch["sample"])
    for sentence, other in zip(found, expected, strict=True):
        assert [h["tokens"].tolist() for h in sentence] == [h["tokens"].tolist() for h in other]
        torch.testing.assert_close([h["score"] for h in sentence], [h["score"] for h in other], rtol=0, atol=1e-4)


@needs_kernels
@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize("encoder", ENCODERS.values(), ids=ENCODERS)
def test_scores_are_float32_and_those_of_the_whole_sequence(encoder, setting, batch):
    """The scorer's one pass gives hypotheses the scores of step-by-step decoding."""
    model = prepared(tiny_model(3, **encoder), setting)
    generator = SequenceGenerator([model], tiny_form(), SearchOptions(beam=2, max_len_b=6, never_generated=(PAD, CLS)))
    best = [sentence[0] for sentence in generator.generate([model], batch["sample"])]
    sample = {**batch["sample"], "target": padded([hypothesis["tokens"].numpy() for hypothesis in best])}
    scorer = ReferenceScorer([model], tiny_form(), OBJECTIVES["pseudo_masked"])
    rescored = [sentence[0] for sentence in scorer.generate([model], sample)]
    tolerance = 1e-4 if setting == "float32" else 0.2
    for hypothesis, again in zip(best, rescored, strict=True):
        assert hypothesis["score"].dtype == hypothesis["positional_scores"].dtype == torch.float32
        assert again["positional_scores"].dtype == torch.float32
        torch.testing.assert_close(
            again["positional_scores"], hypothesis["positional_scores"], rtol=tolerance, atol=tolerance
        )


@needs_kernels
@pytest.mark.parametrize(("setting", "kind"), [("float32", PackedLinear), ("int8", QuantizedLinear)])
def test_no_plain_layer_is_left(setting, kind):
    model = prepared(tiny_model(), setting)
    assert not any(isinstance(module, torch.nn.Linear) for module in model.modules())
    # Four in each of two layers, the dense layer of the head and its output.
    assert sum(isinstance(module, kind) for module in model.modules()) == 10


@needs_kernels
def test_only_gelu_is_fused_into_the_kernel(batch):
    for activation, fused in (("gelu", True), ("gelu_tanh", False), ("relu", False)):
        model = tiny_model(3, activation_fn=activation)
        with torch.no_grad():
            expected = model(**batch["packed"])
            logits = prepared(model, "float32")(**batch["packed"])
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
        assert all(isinstance(layer.activation, torch.nn.Identity) == fused for layer in model.layers)


def test_bf16_converts_every_parameter():
    model = prepared(tiny_model(relative=True), "bf16")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


def test_int8_contradicts_sixteen_bits_and_other_devices():
    with pytest.raises(UserError, match=r"^--quantize int8 and --bf16 exclude each other: give one of them$"):
        prepare_for_inference(tiny_model(), bf16=True, quantize="int8")
    with pytest.raises(UserError, match=r"^--quantize int8 and --fp16 exclude each other: give one of them$"):
        prepare_for_inference(tiny_model().half(), bf16=False, quantize="int8")
    with pytest.raises(UserError) as error:
        prepare_for_inference(tiny_model().half().to("meta"), bf16=False, quantize="int8")
    assert error.value.problems == [
        "--quantize int8 and --fp16 exclude each other: give one of them",
        "--quantize int8 needs the CPU, but the model is on meta: give --cpu too",
    ]


def test_on_another_device_only_bf16_changes_the_model():
    model = tiny_model().to("meta")
    before = list(model.modules())
    prepare_for_inference(model, bf16=True, quantize="none")
    assert list(model.modules()) == before
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


@pytest.mark.skipif(not can_quantize(torch.ones(1, 1)), reason="this CPU has no 8-bit kernels")
@pytest.mark.process
def test_a_cpu_whose_8_bit_sums_overflow_is_refused():
    """OneDNN is told to use AVX2 only, which has no instructions for 8 bits."""
    program = (
        "import s2sft_fairseq.plugin\n"
        "from tiny import tiny_model\n"
        "from s2sft_fairseq.models.inference import prepare_for_inference\n"
        "prepare_for_inference(tiny_model(), bf16=False, quantize='int8')"
    )
    tests = Path(__file__).parents[1] / "support"
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2", "PYTHONPATH": os.pathsep.join([str(tests), *sys.path])}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode != 0
    assert "error: --quantize int8 needs a CPU that multiplies 8-bit numbers (VNNI instructions)" in done.stderr


@pytest.mark.parametrize(
    ("amx", "avx512", "warned"), [(False, False, True), (True, False, False), (False, True, False)]
)
def test_bf16_without_instructions_is_warned_of(amx, avx512, warned, monkeypatch, caplog):
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512, raising=False)
    prepare_for_inference(tiny_model(), bf16=True, quantize="none")
    assert ("--bf16 is slow on this CPU" in caplog.text) == warned


def test_weights_that_overflow_in_float16():
    model = tiny_model()
    with torch.no_grad():
        model.layers[0].fc1.weight[0, 0] = 1e5
    with pytest.raises(UserError, match=r"--fp16 .* layers\.0\.fc1\.weight is infinite; give --bf16"):
        prepare_for_inference(model.half(), bf16=False, quantize="none")
