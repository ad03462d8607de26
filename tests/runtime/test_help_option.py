"""--help shows the options of the task, the model and the criterion that are given."""

import pytest
from fairseq import options


def help_text(capsys, *words):
    parser = options.get_training_parser(default_task="unilm_seq2seq")
    with pytest.raises(SystemExit) as exit_:
        options.parse_args_and_arch(parser, list(words))
    assert exit_.value.code == 0
    return capsys.readouterr().out


def test_with_architecture_and_criterion(capsys):
    text = help_text(capsys, "--help", "--arch", "unilm_tiny", "--criterion", "mask_attention")
    assert "--finetune-method {causal,infilling,masked,pseudo_masked}" in text
    assert "--encoder-embed-dim ENCODER_EMBED_DIM" in text
    assert "--label-smoothing" in text


def test_without_them(capsys):
    text = help_text(capsys, "-h")
    assert "--finetune-method {causal,infilling,masked,pseudo_masked}" in text
    assert "--encoder-embed-dim" not in text
    assert "--label-smoothing" not in text


def test_without_help_the_options_are_parsed(capsys):
    parser = options.get_training_parser(default_task="unilm_seq2seq")
    parsed = options.parse_args_and_arch(parser, ["data", "--arch", "unilm_tiny", "--batch-size", "3"])
    assert (parsed.data, parsed.batch_size, parsed.arch) == ("data", 3, "unilm_tiny")
    assert capsys.readouterr().out == ""
