"""Patch fairseq, and register tasks, models, criterions and optimisers with it, by being imported.

fairseq looks for them in the folders ``tasks`` and ``models`` of a ``--user-dir`` only, and not even there where the
package is imported already: everything that registers itself is therefore imported here.
"""

import gc
import os
import sys

from s2sft_fairseq import errors, runtime

# What is imported stays. To look for garbage among it takes half a second, so commands leave it out of every later
# search. Other programs may have made objects of their own before, whose garbage must be found.
_collects = gc.isenabled()
_is_command = os.path.basename(sys.argv[0]).startswith(("fairseq-", "s2sft"))
gc.disable()
runtime.install()
errors.install_excepthook()

from s2sft_fairseq import criterions, models, optim, tasks  # noqa: E402  (fairseq must be patched first)
from s2sft_fairseq.tokenization import fairseq_bpe  # noqa: E402

if _collects:
    if _is_command:
        gc.freeze()
    gc.enable()

__all__ = ["criterions", "fairseq_bpe", "models", "optim", "tasks"]
