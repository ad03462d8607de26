"""Patch fairseq, and register tasks, models, criterions and optimisers with it, by being imported.

fairseq looks for them in the folders ``tasks`` and ``models`` of a ``--user-dir`` only, and not even there where the
package is imported already: everything that registers itself is therefore imported here.
"""

import gc

from s2sft_fairseq import errors, runtime

_collects = gc.isenabled()
gc.disable()  # looking for garbage among what is imported takes a quarter of a second
runtime.install()
errors.install_excepthook()

from s2sft_fairseq import criterions, models, optim, tasks  # noqa: E402  (fairseq must be patched first)
from s2sft_fairseq.tokenization import fairseq_bpe  # noqa: E402

if _collects:
    gc.enable()

__all__ = ["criterions", "fairseq_bpe", "models", "optim", "tasks"]
