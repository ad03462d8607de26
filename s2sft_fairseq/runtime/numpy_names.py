"""NumPy names that fairseq still uses and NumPy has dropped.

`np.percentile(interpolation=)` and `np.compat.long` break `--num-batch-buckets`, `np.compat.long` breaks
`--sample-break-mode eos`, `np.int` breaks the span masks of `fairseq.data.data_utils`.
"""

import types

import numpy as np
from fairseq.data import data_utils, language_pair_dataset, token_block_dataset


def _percentile(*args: object, interpolation: str = "linear", **kwargs: object) -> np.ndarray:
    return np.percentile(*args, method=interpolation, **kwargs)


def numpy_with_old_names() -> types.ModuleType:
    """NumPy as a module of its own with the dropped names; NumPy itself is left as it is."""
    module = types.ModuleType("numpy")
    module.__dict__.update(vars(np))
    module.int = int
    module.compat = types.SimpleNamespace(long=int)
    module.percentile = _percentile
    return module


def apply() -> None:
    """Give the three fairseq modules that text data passes through a NumPy that has these names."""
    numpy = numpy_with_old_names()
    for user in (data_utils, language_pair_dataset, token_block_dataset):
        user.np = numpy
