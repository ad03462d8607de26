"""Words and punctuation marks, each a token of its own, to text with the spaces where people set them.

BERT's tokenizer splits at every punctuation mark and Chinese character and forgets where spaces were. The rules here
restore them as English text has them most often; where two spellings are possible, the more frequent one is taken.
"""

import re

_CLOSING = frozenset(".,;:!?)]}%”’»…")
_OPENING = frozenset("([{“«¿¡$£€¥@")
_QUOTES = frozenset("\"'")
_INSIDE_WORDS = frozenset("-\u2010\u2011\u2013\u2014_/^\u2019")  # with typographic hyphens, dashes and apostrophe
_CONTRACTIONS = frozenset({"s", "t", "re", "ve", "ll", "d", "m"})
_ORDINALS = frozenset({"st", "nd", "rd", "th", "s"})
_DOMAINS = frozenset({"com", "org", "net", "edu", "gov"})
_ELIDED = frozenset({"o", "d", "l"})  # o'clock, d'accord, l'eau
# What BERT splits into single characters, and the kana and punctuation that stand among them without spaces.
_UNSPACED = re.compile("[\u3001-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff01-\uff65\U00020000-\U0002fa1f]")
_SPECIAL = re.compile(r"\[[A-Z]+\]")


def detokenize(words: list[str]) -> str:
    """Join tokens with a space between two of them only where ordinary text has one."""
    padded = ["", *words, "", ""]
    # joined[i]: whether token i has no space before it, and no space after it
    joined = [_joined(*padded[at : at + 4]) for at in range(len(words))]
    quotes = [at for at, word in enumerate(words) if word in _QUOTES and joined[at] != (True, True)]
    open_quotes: set[str] = set()
    for number, at in enumerate(quotes):
        word = words[at]
        has_partner = any(words[later] == word for later in quotes[number + 1 :])
        plural = word == "'" and at and not has_partner and words[at - 1].endswith("s")  # the readers' own
        joined[at] = (True, False) if plural or word in open_quotes else (False, True)
        if not plural:
            open_quotes ^= {word}
    text = words[:1]
    for at in range(1, len(words)):
        text += [words[at]] if joined[at][0] or joined[at - 1][1] else [" ", words[at]]
    return "".join(text)


def _joined(before: str, word: str, after: str, second: str) -> tuple[bool, bool]:
    """Say whether `word` has no space before it, and no space after it.

    Args:
        before: the token before `word`, "" at the start.
        after: the token after it, "" at the end.
        second: the token after that.
    """
    if _SPECIAL.fullmatch(word):
        return False, False
    if word == "#":  # a digit that is masked, as in #.# or ##th, or the mark before a number
        return before == "#", after == "#" or after.isdigit() or (before == "#" and after in _ORDINALS)
    within_word = _is_letter(before[-1:]) and _is_letter(after[:1])
    within_number = _in_number(before) and _in_number(after)
    if (word in _INSIDE_WORDS and within_word) or word == "—":
        return True, True
    if word == "'" and within_word and (after.lower() in _CONTRACTIONS or before.lower() in _ELIDED):
        return True, True
    thousands = len(after) == 3 or after == second == "#"
    if within_number and (word in (".", ":") or (word == "," and thousands)):  # 3.14, 10:30, 1,000
        return True, True
    if word == "." and within_word and len(before) == len(after) == 1 and second == ".":  # e.g.
        return True, True
    if word == "." and within_word and (before == "www" or after in _DOMAINS):
        return True, True
    if word == ":" and ":" in (before, after):  # at::native
        return True, True
    if word == "_":
        return before[:1].isalnum() or before == "_", True
    if word == "-" and before == "-":
        return True, False
    if word == "-" and after.isdigit():  # a negative number
        return False, True
    if word in _CLOSING:
        return not _SPECIAL.fullmatch(before), False
    if word in _OPENING:
        return word == "(" and after == ")", True  # f()
    return bool(_UNSPACED.match(word) and _UNSPACED.match(before)), False


def _is_letter(character: str) -> bool:
    return character.isalnum() or character == "#"


def _in_number(token: str) -> bool:
    return token.isdigit() or token == "#"
