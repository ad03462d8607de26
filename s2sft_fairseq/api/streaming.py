"""A text piece by piece, while it is generated."""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from s2sft_fairseq.inference.search import BeamSearch
from s2sft_fairseq.tokenization.wordpiece import UNSPACED

_BOUNDARY = re.compile(rf"\s\S|(?<={UNSPACED.pattern})(?={UNSPACED.pattern})")  # of words, or of Chinese characters
# "the readers' own" turns into "the readers 'own'" where a second apostrophe follows.
_MAY_OPEN_A_QUOTATION = re.compile(r"(?<=s)'(?=\s|$)")


def stream(
    search: Callable[[], BeamSearch],
    text_of: Callable[[Tensor], str],
    seed: int | None,
    device: str,
    taking_turns: Callable[[], AbstractContextManager[Any]],
) -> Iterator[str]:
    """Yield the pieces of the text of a search.

    Args:
        search: begins the search of one hypothesis of one source.
        text_of: returns the text of tokens (T,).
        seed: of a sample; None: the search draws no random numbers.
        device: that draws them, ``cpu`` or ``cuda``.
        taking_turns: within it the model is not used by other threads. One turn a step: other threads need not wait
            until the last piece has been asked for.

    T: tokens.
    """
    shown = ""
    random = torch.cuda if device == "cuda" else torch.random
    with taking_turns(), torch.inference_mode():
        begun = search()
        begun.steps_between_questions = 1  # each piece is asked for as soon as it is there
        if seed is not None:
            torch.manual_seed(seed)
            state = random.get_rng_state()
    while True:
        with taking_turns(), torch.inference_mode():
            if seed is not None:
                random.set_rng_state(state)
            goes_on = begun.step()
            if seed is not None:
                state = random.get_rng_state()
        if not goes_on:
            break
        # The last word may still grow, and the end of a text may look otherwise than its middle.
        stable = stable_part(text_of(begun.tokens[0, 0]))
        if stable.startswith(shown) and len(stable) > len(shown):
            yield stable[len(shown) :]
            shown = stable
    yield text_of(begun.results[0][0]["tokens"])[len(shown) :]


def stable_part(text: str) -> str:
    """Return the beginning of a text that stays as it is when more tokens follow: all but its last word."""
    for last in list(_MAY_OPEN_A_QUOTATION.finditer(text))[-1:]:
        text = text[: last.start()]
    ends = [match.start() for match in _BOUNDARY.finditer(text)]
    return text[: ends[-1]].rstrip() if ends else ""
