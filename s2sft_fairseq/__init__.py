"""A fairseq plugin that turns pretrained bidirectional encoders into text generators.

Give this folder to fairseq's commands as ``--user-dir``, or use the ``s2sft`` command, which does so itself. In Python,
import `s2sft_fairseq.plugin` to patch fairseq and to register tasks, models and criterions. This package does so by
itself where fairseq is imported before it, and else imports neither fairseq nor PyTorch, which take seconds.
"""

import sys

__version__ = "0.1.0"

if "fairseq" in sys.modules:  # which reads this folder as its --user-dir
    from s2sft_fairseq import plugin as plugin
