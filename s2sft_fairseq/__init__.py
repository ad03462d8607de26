"""A fairseq plugin that turns pretrained bidirectional encoders into text generators.

Give this folder to fairseq's commands as ``--user-dir``, or use the ``s2sft`` command, which does so itself. fairseq
looks for registries in ``tasks`` and ``models`` only, and not even there where this package is imported already:
everything that registers itself is therefore imported here.
"""

from s2sft_fairseq import errors, runtime

runtime.install()
errors.install_excepthook()

from s2sft_fairseq import criterions, models, optim, tasks  # noqa: E402  (fairseq must be patched first)
from s2sft_fairseq.tokenization import folder  # noqa: E402

__version__ = "0.1.0"

__all__ = ["criterions", "errors", "folder", "models", "optim", "runtime", "tasks"]
