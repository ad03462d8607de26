"""Convert the words of BERT's tokenizer to words of the Penn Treebank, the form of the references of some benchmarks.

UniLM, s2s-ft and ERNIE-GEN apply this step (`fix_tokenization` in their evaluation scripts) before they score
CNN/DailyMail, XSum, Gigaword and SQuAD question generation. The rules here are theirs, oddities included: scores after
other rules would not be comparable.
"""

import string
from collections.abc import Mapping
from dataclasses import dataclass, field

_LOWER = {
    **{"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"},
    **{"&": "&amp;", "<": "&lt;", ">": "&gt;", "[UNK]": "UNK", "<unk>": "UNK"},
}


@dataclass(frozen=True)
class Style:
    """The rules that apply to a benchmark."""

    replaced: Mapping[str, str] = field(default_factory=dict)
    """Words to replace, each with its replacement."""
    quotes: bool = False
    """Make opening and closing quotes different words."""
    hyphens: bool = False
    """Join hyphenated words, and make two hyphens a dash."""


STYLES = {
    # CNN/DailyMail
    "cased": Style({mark: word.upper() for mark, word in _LOWER.items() if word.endswith("b-")}, True, True),
    # Gigaword, and question generation with the references of Du et al. (2017)
    "lower": Style(_LOWER, True, True),
    # XSum
    "contractions": Style(),
}


def fix_tokenization(text: str, style: Style) -> str:
    """Apply the rules of a style to a text whose words are separated by spaces."""
    return " ".join(_Fixer(text.split(), style).run())


class _Fixer:
    """The state of one text. Each rule handles the word at a position, and returns the number of words it consumed."""

    def __init__(self, words: list[str], style: Style) -> None:
        self.words, self.style = words, style
        self.fixed: list[str] = []
        self.opened = {'"': False, "'": False}
        self.hyphenated = -1  # position of the word that is the second half of a hyphenated word

    def run(self) -> list[str]:
        rules = (
            *(self._replaced, self._double_quote, self._negation, self._clitic, self._single_quote),
            *(self._ellipsis, self._thousands, self._decimals, self._abbreviation, self._hyphen, self._other),
        )
        at = 0
        while at < len(self.words):
            at += next(filter(None, (rule(self.words[at], at) for rule in rules)))
        return self.fixed

    def _next(self, at: int, ahead: int = 1) -> str:
        """Return the word `ahead` positions later, or the empty string at the end."""
        return self.words[at + ahead] if at + ahead < len(self.words) else ""

    @property
    def _last(self) -> str:
        """The last word written, or the empty string."""
        return self.fixed[-1] if self.fixed else ""

    def _replaced(self, word: str, at: int) -> int:
        if word not in self.style.replaced:
            return 0
        self.fixed.append(self.style.replaced[word])
        return 1

    def _double_quote(self, word: str, at: int) -> int:
        return self._quote(word, "``", "''") if word == '"' and self.style.quotes else 0

    def _single_quote(self, word: str, at: int) -> int:
        return self._quote(word, "`", "'") if word == "'" and self.style.quotes else 0

    def _quote(self, word: str, opening: str, closing: str) -> int:
        self.fixed.append(closing if self.opened[word] else opening)
        self.opened[word] = not self.opened[word]
        return 1

    def _negation(self, word: str, at: int) -> int:
        """Don ' t -> do n't."""
        if word != "'" or not self._last.endswith("n") or self._next(at) != "t":
            return 0
        self.fixed[-1] = self._last[:-1]
        self.fixed.append("n't")
        return 2

    def _clitic(self, word: str, at: int) -> int:
        """He ' ll -> he 'll."""
        if word != "'" or self._next(at) not in ("s", "d", "ll"):
            return 0
        self.fixed.append("'" + self._next(at))
        return 2

    def _ellipsis(self, word: str, at: int) -> int:
        if self.words[at : at + 3] != ["."] * 3:
            return 0
        self.fixed.append("...")
        return 3

    def _thousands(self, word: str, at: int) -> int:
        """3 , 000 -> 3,000."""
        if word != "," or not _is_number(self._last) or not _is_number(self._next(at)):
            return 0
        self.fixed[-1] += "," + self._next(at)
        return 2

    def _decimals(self, word: str, at: int) -> int:
        """3 . 03 -> 3.03."""
        if word != "." or not self._last.isdigit() or not self._next(at).isdigit():
            return 0
        self.fixed[-1] += "." + self._next(at)
        return 2

    def _abbreviation(self, word: str, at: int) -> int:
        """U . N . -> U.N. . (not U.N.).

        The original looks for further letters one word too far ahead, and continues after the second letter.
        """
        if word != "." or not _is_capital(self._last) or not self._is_initial(at):
            return 0
        end = at + 3
        while self._is_initial(end):
            end += 2
        self.fixed[-1] += "".join(self.words[at:end])
        return 2

    def _is_initial(self, at: int) -> bool:
        return _is_capital(self._next(at)) and self._next(at, 2) == "."

    def _hyphen(self, word: str, at: int) -> int:
        if word != "-" or not self.style.hyphens:
            return 0
        if self._next(at) == "-":
            self.fixed.append("--")
            return 2
        if at and self._next(at) and self._last not in string.punctuation and not _is_mark(self._next(at)):
            self.fixed[-1] += "-"
            self.hyphenated = at + 1
        else:
            self.fixed.append("-")
        return 1

    def _other(self, word: str, at: int) -> int:
        if at == self.hyphenated and not _is_mark(word):
            self.fixed[-1] += word
        else:
            self.fixed.append(word)
        return 1


def _is_number(word: str) -> bool:
    return bool(word) and all(character.isdigit() or character == "," for character in word)


def _is_capital(word: str) -> bool:
    return len(word) == 1 and word.isupper()


def _is_mark(word: str) -> bool:
    return word[0] in string.punctuation
