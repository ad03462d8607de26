"""`--bf16` and `--quantize` of the commands that decode."""

import pytest
import torch

from s2sft_fairseq.modules.cpu_linear import can_quantize

needs_int8 = pytest.mark.skipif(not can_quantize(torch.ones(1, 1)), reason="this CPU has no 8-bit kernels")

DECODING = ("--task", "unilm_seq2seq", "--beam", "2", "--max-len-b", "5", "--cpu")


def scores(output):
    """Return the scores of the best hypotheses by their line numbers."""
    rows = (line.split("\t") for line in output.splitlines() if line.startswith("H-"))
    return {number: float(score) for number, score, _ in rows}


@needs_int8
def test_eight_and_sixteen_bits_change_the_scores_a_little(call_command, tiny_training, tiny_data):
    command = ("generate", tiny_data, "--path", tiny_training.checkpoint, *DECODING)
    plain = scores(call_command(*command).stdout)
    assert len(plain) == 10
    for options in (("--bf16",), ("--quantize", "int8")):
        found = scores(call_command(*command, *options).stdout)
        assert found != plain
        assert found == pytest.approx(plain, abs=0.1)


@needs_int8
@pytest.mark.parametrize("other", ["--bf16", "--fp16"])
def test_int8_excludes_sixteen_bits(other, call_command, tiny_training, tiny_data):
    command = ("generate", tiny_data, "--path", tiny_training.checkpoint, *DECODING)
    done = call_command(*command, "--quantize", "int8", other, status=2)
    assert f"error: --quantize int8 and {other} exclude each other: give one of them\n" in done.stderr
    assert "Traceback" not in done.stderr


def test_validate_takes_the_model_as_it_is(call_command, tiny_training, tiny_data):
    """fairseq-validate does not prepare models; it accepts the option, which changes nothing."""
    command = ("validate", tiny_data, "--path", tiny_training.checkpoint, "--batch-size", "4", "--cpu")
    lines = [call_command(*command, *options).stdout.splitlines() for options in ((), ("--quantize", "int8"))]
    losses = [[line.partition("| loss ")[2] for line in run if "| loss " in line] for run in lines]
    assert losses[0] == losses[1] != []
