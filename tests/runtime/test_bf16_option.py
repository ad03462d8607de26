"""--bf16 does not ask for a TPU."""

import pytest
from fairseq import options

from s2sft_fairseq.errors import UserError

OPTIONS = ["data", "--arch", "unilm_tiny"]


def parse(*words):
    return options.parse_args_and_arch(options.get_training_parser(default_task="unilm_seq2seq"), [*OPTIONS, *words])


@pytest.mark.parametrize("option", ["--bf16", "--memory-efficient-bf16"])
def test_bf16_alone(option):
    parsed = parse(option)
    assert parsed.bf16
    assert not parsed.tpu


@pytest.mark.parametrize("words", [["--tpu"], ["--tpu", "--bf16"]])
def test_a_tpu_that_was_asked_for(words):
    assert parse(*words).tpu


def test_fp16_as_well():
    with pytest.raises(UserError, match="--fp16 and --bf16 exclude each other: give one of them"):
        parse("--fp16", "--bf16")
    with pytest.raises(ValueError, match="--fp16 and --tpu"):
        parse("--fp16", "--tpu")


def test_neither():
    parsed = parse()
    assert not parsed.bf16
    assert not parsed.tpu


def test_options_that_are_returned_apart():
    parser = options.get_training_parser(default_task="unilm_seq2seq")
    parsed, unknown = options.parse_args_and_arch(parser, [*OPTIONS, "--bf16", "--foo"], parse_known=True)
    assert unknown == ["--foo"]
    assert not parsed.tpu
