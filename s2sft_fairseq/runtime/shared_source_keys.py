"""Beam search of encoder-decoders: keys and values of the source once for each sentence, not once for each hypothesis.

fairseq's attention can do so where it is told the size of the beam, but nobody tells it: the generator calls a method
that no model has. It must not know a beam either while it reads whole targets, as in training between two validations,
for it would take rows of the batch for hypotheses of one sentence.
"""

import functools
from collections.abc import Callable
from typing import Any

from fairseq.sequence_generator import SequenceGenerator


def _with_beam_size(generate: Callable) -> Callable:
    @functools.wraps(generate)
    def _generate(self: SequenceGenerator, *args: Any, **options: Any) -> Any:
        models = [model for model in self.model.models if hasattr(model, "share_source_keys")]
        for model in models:
            model.share_source_keys(self.beam_size)
        try:
            return generate(self, *args, **options)
        finally:
            for model in models:
                model.share_source_keys(1)

    return _generate


def apply() -> None:
    """Tell models that have ``share_source_keys`` the size of the beam, for as long as a search takes."""
    SequenceGenerator._generate = _with_beam_size(SequenceGenerator._generate)
