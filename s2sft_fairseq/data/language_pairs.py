"""Which pairs and languages a data folder holds, as options name them."""

from dataclasses import dataclass

from s2sft_fairseq.errors import UserError

LANGUAGE_TOKEN = "__{}__"
"""The symbol that sources for targets in a language begin with, as ``s2sft convert --add-language-tokens`` adds it."""


@dataclass(frozen=True)
class LanguagePair:
    """A direction of the data."""

    source: str
    """Suffix of the sources."""
    target: str
    """Suffix of the targets."""
    language: str
    """Language of the targets; the same as their suffix unless given."""

    def __str__(self) -> str:
        return f"{self.source}-{self.target}"


def parse_pairs(text: str | None, option: str = "--lang-pairs") -> list[LanguagePair]:
    """Read ``en-de,de-en`` or, where the suffix of the targets is no language, ``src-tgt:en``; nothing of None.

    Raises:
        UserError: naming every pair that is neither, or comes twice.
    """
    pairs: list[LanguagePair] = []
    problems = []
    for word in text.split(",") if text else []:
        suffixes, _, language = word.partition(":")
        source, _, target = suffixes.partition("-")
        if not source or not target or "-" in target:
            problems.append(
                f"{option} must be pairs such as en-de or src-tgt:en, separated by commas, but has {word!r}"
            )
        elif any((pair.source, pair.target) == (source, target) for pair in pairs):
            problems.append(f"{option} has {source}-{target} twice")
        else:
            pairs.append(LanguagePair(source, target, language or target))
    if problems:
        raise UserError.of(problems)
    return pairs


def parse_languages(text: str | None, option: str = "--text-languages") -> list[str]:
    """Read the names of languages, separated by commas; nothing of None.

    Raises:
        UserError: if one is empty or comes twice.
    """
    languages = text.split(",") if text else []
    if not all(languages) or len(set(languages)) < len(languages):
        raise UserError(f"{option} must be different names, separated by commas, but is {text!r}")
    return languages
