"""Errors that fairseq reports about options reach the user as a sentence; possible bugs keep their traceback."""

import numpy as np
import pytest
import torch
from fairseq import utils
from fairseq.data import FairseqDataset, data_utils

from s2sft_fairseq.errors import stated_by_fairseq


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (
            ["--batch-size", "8", "--lr-scheduler", "polynomial_decay"],
            "--lr-scheduler polynomial_decay needs --max-update",
        ),
        (["--optimizer", "adam", "--batch-size", "8", "--fp16", "--amp"], "Cannot use fp16 and AMP together"),
    ],
)
def test_options(call_command, tiny_data, tiny_options, words, text):
    layout = ("--criterion", "mask_attention", "--max-source-positions", 16, "--max-target-positions", 16)
    done = call_command("train", tiny_data, *tiny_options.model, *layout, *words, status=2)
    assert done.stderr.startswith(f"error: {text}")
    assert "Traceback" not in done.stderr


def caught(function, *arguments):
    with pytest.raises(Exception) as raised:
        function(*arguments)
    return raised.value


def test_files(tmp_path):
    assert stated_by_fairseq(caught(open, tmp_path / "none")) == f"{tmp_path / 'none'}: No such file or directory"
    assert stated_by_fairseq(OSError("disk on fire")) == "disk on fire"


def test_errors_that_fairseq_raises_itself():
    assert stated_by_fairseq(caught(utils.get_activation_fn, "none")) == "--activation-fn none not supported"


def test_possible_bugs():
    assert stated_by_fairseq(caught(FairseqDataset().size, 0)) is None  # raised by fairseq, but without a text
    assert stated_by_fairseq(caught(data_utils.collate_tokens, [], 0)) is None
    assert stated_by_fairseq(caught(np.stack, [])) is None
    assert stated_by_fairseq(caught(torch.ones(2).view, 3)) is None
