"""Streaming: the parts of a text while it is generated."""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from s2sft_fairseq.inference.search import BeamSearch
from s2sft_fairseq.tokenization.wordpiece import UNSPACED

_BOUNDARY = re.compile(rf"\s\S|(?<={UNSPACED.pattern})(?={UNSPACED.pattern})")  # between words or Chinese characters
# "the readers' own" becomes "the readers 'own'" if a second apostrophe follows.
_MAY_OPEN_A_QUOTATION = re.compile(r"(?<=s)'(?=\s|$)")


def stream(
    search: Callable[[], BeamSearch],
    text_of: Callable[[Tensor], str],
    taking_turns: Callable[[], AbstractContextManager[Any]],
) -> Iterator[str]:
    """Yield the text that a search generates, part by part.

    Args:
        search: starts the search for one hypothesis for one source.
        text_of: returns the text of tokens (T,).
        taking_turns: returns a context manager that keeps other threads from using the model. It is entered once per
            step, so other threads do not wait for the end of the stream.

    T: tokens.
    """
    shown = ""
    with taking_turns(), torch.inference_mode():
        begun = search()
        begun.steps_between_questions = 1  # check for the end after each step: each part is read at once
    while True:
        with taking_turns(), torch.inference_mode():
            goes_on = begun.step()
        if not goes_on:
            break
        # The last word may still grow, and detokenization may treat the end of a text differently from its middle.
        stable = stable_part(text_of(begun.tokens[0, 0]))
        if stable.startswith(shown) and len(stable) > len(shown):
            yield stable[len(shown) :]
            shown = stable
    yield text_of(begun.results[0][0]["tokens"])[len(shown) :]


def stable_part(text: str) -> str:
    """Return the beginning of a text that further tokens cannot change: all but its last word."""
    for last in list(_MAY_OPEN_A_QUOTATION.finditer(text))[-1:]:
        text = text[: last.start()]
    ends = [match.start() for match in _BOUNDARY.finditer(text)]
    return text[: ends[-1]].rstrip() if ends else ""
