"""The beginning of a source as its summary: the baseline that summarization is compared with.

Usual are the first three sentences on CNN/DailyMail (See et al. 2017), the first one on XSum (Narayan et al. 2018) and
about the first eight words for headlines (Rush et al. 2015, who take 75 characters).
"""

import re
from dataclasses import dataclass

UNITS = ("sentences", "words")
_SPECIFICATION = re.compile(rf"([1-9][0-9]*)-({'|'.join(UNITS)})")

# The end of a sentence: a mark, maybe closing quotes and brackets, white space, and what a sentence begins with.
_END = re.compile(r"""[.!?]["'\u201d\u2019)\]]*\s+(?=["'\u201c\u2018(\[]*[A-Z0-9])""")
# After these a stop ends no sentence. Single capitals are initials, or U.S.
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\"'.])(?:[A-Z]|Mr|Mrs|Ms|Dr|Prof|Rev|Gen|Col|Lt|Sgt|Capt|Sen|Rep|Gov|St|Jr|Sr|No|vs|Inc|Co|Corp|Ltd|"
    r"Jan|Feb|Aug|Sept|Oct|Nov|Dec|e\.g|i\.e)$"
)


@dataclass(frozen=True)
class Lead:
    """So many sentences or words."""

    count: int
    unit: str

    @classmethod
    def parse(cls, text: str) -> "Lead":
        """Read ``3-sentences`` or ``8-words``.

        Raises:
            ValueError: it is neither.
        """
        if (found := _SPECIFICATION.fullmatch(text)) is None:
            raise ValueError(f"must be a number of sentences or words, such as 3-sentences, but is {text}")
        return cls(int(found[1]), found[2])

    def of(self, text: str, separator: str = "") -> str:
        """Return the beginning of a text, with `separator` between its sentences."""
        if self.unit == "words":
            return " ".join(text.split()[: self.count])
        return f" {separator} ".join(split_sentences(text)[: self.count]).replace("  ", " ")

    def __str__(self) -> str:
        return f"lead-{self.count}-{self.unit}"


def split_sentences(text: str) -> list[str]:
    """Split English text, without data or a model: a few abbreviations are known, others end a sentence."""
    sentences, start = [], 0
    for end in _END.finditer(text):
        if text[end.start()] == "." and _ABBREVIATION.search(text[start : end.start()]):
            continue
        sentences.append(text[start : end.end()].strip())
        start = end.end()
    return [*sentences, text[start:].strip()]
