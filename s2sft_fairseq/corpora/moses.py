"""Text as the scripts of Moses prepare it: tokens in lower case, and pairs of similar length.

The tokenizer is that of the optional package sacremoses, a port of Moses' tokenizer.perl.
"""

from collections.abc import Callable

from s2sft_fairseq.errors import package

LONGEST = 175
"""Maximum number of tokens of a side of a pair."""
RATIO = 1.5
"""Maximum ratio of the numbers of tokens of the two sides."""


def moses_tokenizer(language: str) -> Callable[[str], str]:
    """Return a function from a text to its tokens in lower case, with spaces between them.

    Raises:
        UserError: sacremoses is not installed.
    """
    tokenizer = package("sacremoses", "--moses").MosesTokenizer(lang=language)
    return lambda text: str(tokenizer.tokenize(text, return_str=True)).lower()


def is_clean(source: str, target: str) -> bool:
    """Return whether a tokenized pair stays, with the limits of fairseq's prepare-iwslt14.sh."""
    least, most = sorted((len(source.split()), len(target.split())))
    return least >= 1 and most <= LONGEST and most <= RATIO * least
