"""Which slots of an E2E source a text gets wrong: what a reader of the text would be told in error, or not at all.

A source of E2E looks like ``name[Blue Spice], food[French], near[Café Sicilia]``. Four of its slots stand in texts
almost word by word: a text is without fault if it has the values of all of them, and no food of another kind.
"""

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

CHECKED = ("name", "near", "food", "area")
FOODS = ("chinese", "english", "fast food", "french", "indian", "italian", "japanese")
OTHER_WORDS = {"city centre": ("city center", "centre of the city", "center of the city")}
"""Other ways to write a value; all others stand in texts as they are."""
_SLOT = re.compile(r"(\w[\w ]*)\[([^\]]*)\]")


class Faults(NamedTuple):
    """The faults of a text."""

    missing: tuple[str, ...]
    """The slots, of `CHECKED`, whose values the text lacks."""
    other_food: bool
    """Whether it names a food that the source does not."""

    @property
    def none(self) -> bool:
        """Whether the text is without fault."""
        return not self.missing and not self.other_food


def plain(text: str) -> str:
    """Return a text in lower case without accents, with single spaces."""
    parts = unicodedata.normalize("NFD", text.lower())
    letters = "".join(part for part in parts if unicodedata.category(part) != "Mn")
    return " ".join(letters.split())


def slots_of(source: str) -> dict[str, str]:
    """Return the slots of a source and their values, both in plain letters."""
    return {plain(name): plain(value) for name, value in _SLOT.findall(source)}


def faults(source: str, text: str) -> Faults:
    """Return the faults of a text for a source."""
    slots, words = slots_of(source), plain(text)
    missing = tuple(name for name in CHECKED if name in slots and not _has(words, slots[name]))
    for place in ("name", "near"):  # names of places may hold a food, as "Raja Indian Cuisine"
        words = words.replace(slots.get(place, "\n"), " ")
    others = [food for food in FOODS if food in words and food != slots.get("food")]
    return Faults(missing, bool(others))


def _has(words: str, value: str) -> bool:
    return any(form in words for form in (value, *OTHER_WORDS.get(value, ())))


def rates(sources: Sequence[str], texts: Sequence[str]) -> dict[str, list[float]]:
    """Return, for each text (N,), whether it is without fault and whether it names another food, as 0 or 1."""
    found = [faults(source, text) for source, text in zip(sources, texts, strict=True)]
    return {
        "without fault": [float(each.none) for each in found],
        "other food": [float(each.other_food) for each in found],
    }
