"""Small pickles with values of billions of parts."""

import pytest
from fairseq import checkpoint_utils
from hostile_files import save_weights

from s2sft_fairseq.errors import UserError


def test_a_list_that_is_ten_billion_values(tmp_path):
    """Each list refers ten times to the next one; the file is smaller than 2 kB."""
    value = ["x"]
    for _ in range(10):
        value = [value] * 10
    path = save_weights(
        tmp_path, {"model": {}, "cfg": {"model": {"_name": value}, "task": {"more": value}}, "args": None}
    )
    assert path.stat().st_size < 2000
    with pytest.raises(UserError, match=r"pytorch_model\.bin: cfg must be a dictionary of options, but is nested"):
        checkpoint_utils.load_checkpoint_to_cpu(str(path))
