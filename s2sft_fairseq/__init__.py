"""A fairseq plugin that turns pretrained bidirectional encoders into text generators.

Give this folder to fairseq's commands as ``--user-dir``, use the ``s2sft`` command, which does so itself, or use models
in Python: ``from s2sft_fairseq import Seq2Seq``. Importing `s2sft_fairseq.plugin` patches fairseq and registers tasks,
models and criterions. This package imports the plugin if fairseq is already imported. Otherwise it imports fairseq and
PyTorch, which takes seconds, only when one of its classes is used.
"""

import logging
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"
__all__ = ["Classifier", "Reader", "Seq2Seq", "finetune"]

if TYPE_CHECKING:
    from s2sft_fairseq.api.seq2seq import Seq2Seq
    from s2sft_fairseq.api.understanding import Classifier, Reader
    from s2sft_fairseq.recipes.finetune import finetune

_WHERE = {
    "Seq2Seq": "s2sft_fairseq.api.seq2seq",
    "Classifier": "s2sft_fairseq.api.understanding",
    "Reader": "s2sft_fairseq.api.understanding",
    "finetune": "s2sft_fairseq.recipes.finetune",
}

if sys.version_info >= (3, 14):
    from s2sft_fairseq import optional_types

    optional_types.install()

# fairseq's module for speech logs on import that a package is missing, which text does not need.
logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)
if "fairseq" in sys.modules:  # fairseq imports this folder as its --user-dir
    from s2sft_fairseq import plugin as plugin


def __getattr__(name: str) -> Any:
    """Import a class or function of `__all__` when it is first used."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)
