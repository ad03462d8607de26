"""A missing --arch is named."""

import pytest
from fairseq import options

from s2sft_fairseq.errors import UserError


def test_names_the_option_and_our_architectures():
    parser = options.get_training_parser(default_task="unilm_seq2seq")
    with pytest.raises(UserError, match=r"--arch is needed: .*minilm_l6_h384.*unilm_tiny, or one of fairseq"):
        options.parse_args_and_arch(parser, ["data"])
