"""Patch fairseq, and register tasks, models, criterions and optimisers with it, by being imported.

fairseq looks for them in the folders ``tasks`` and ``models`` of a ``--user-dir`` only, and not even there where the
package is imported already: everything that registers itself is therefore imported here.
"""

import gc
import os
import sys

from s2sft_fairseq import errors, runtime

# What is imported stays. To look for garbage among it takes half a second, so it is left out of every later search; but
# not where the process may have made objects of its own before, with PyTorch, as fairseq's commands have not.
_collects = gc.isenabled()
_is_fresh = "torch" not in sys.modules or os.path.basename(sys.argv[0]).startswith("fairseq-")
gc.disable()
runtime.install()
errors.install_excepthook()

from s2sft_fairseq import criterions, models, optim, tasks  # noqa: E402  (fairseq must be patched first)
from s2sft_fairseq.tokenization import fairseq_bpe  # noqa: E402

if _collects:
    if _is_fresh:
        gc.freeze()
    gc.enable()

__all__ = ["criterions", "fairseq_bpe", "models", "optim", "tasks"]
