"""Importing this module patches fairseq, and registers tasks, models, criterions and optimizers with it.

fairseq only imports the folders ``tasks`` and ``models`` of a ``--user-dir``, and not even these if the package is
already imported. So this module imports everything that registers itself.
"""

import gc
import os
import sys

from s2sft_fairseq import errors, runtime

# Imported objects are never freed, and a garbage collection over them takes half a second. So commands exclude them
# from later collections. Other programs may have objects of their own, which must still be collected.
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
