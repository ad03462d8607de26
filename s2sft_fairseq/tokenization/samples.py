"""Texts on which two tokenizers are compared: programs differ in blanks, scripts, unknown characters and symbols."""

from typing import TYPE_CHECKING

from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.tokenization.symbols import read_symbol

if TYPE_CHECKING:
    from s2sft_fairseq.tokenization.folder import Tokenizer

SAMPLES = (
    # blanks: none, leading, trailing, several, tabs, no-break, ideographic, of no width, at the end of a line
    *("", " ", " a", "a ", "  a", "a  ", "a  b", "a   b  c", "\ta", "a\tb", "a\t\tb", "a\u00a0b", "\u00a0a"),
    *("a\u3000b", "a\u2009b", "a\u200bb", "a\ufeffb", "\ufeffa", "a\u2028b", "a\u0085b", "a\u001cb", "a\u0000b"),
    # SentencePiece's blank, bytes of a fallback, what WordPiece and fastBPE write within words
    *("\u2581a", "a \u2581 b", "a\u2581b", "<0x41>", "a<0xE4>b", "##a", "a@@ b", "<U+0020>"),
    # capitals, accents in one character and in two, digits, compatibility characters, punctuation
    *(
        "The Cat SAT",
        "caf\u00e9 na\u00efve",
        "cafe\u0301 nai\u0308ve",
        "\u0130stanbul stra\u00dfe \u01c5",
        "3,141.59 2nd",
    ),
    *("\ufb01 \u00bd \uff21\uff11 \u2460 \u00b2", "can't; \u201cyes\u201d \u2014 no... (e.g.) a/b_c"),
    # several marks of a letter, marks that do not compose, Hangul in its parts, half-width kana
    *(
        "vie\u0323\u0302t ve\u0302\u0301",
        "\u041e\u0301\u043d\u0430 X\u0301",
        "\u1112\u1161\u11ab",
        "\uff8a\uff9e\uff9d \uff5e",
    ),
    # other scripts
    *(
        "\u65e5\u672c\u8a9e\u306e \u30c6\u30ad\u30b9\u30c8",
        "\u4f60\u597d\uff0c\u4e16\u754c\u3002",
        "\ud55c\uad6d\uc5b4",
    ),
    *(
        "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645",
        "\u0928\u092e\u0938\u094d\u0924\u0947",
    ),
    *(
        "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
        "\u041f\u0440\u0438\u0432\u0435\u0442 \u0451",
        "\u0393\u03b5\u03b9\u03ac",
    ),
    # characters that vocabularies lack
    *("\U0001f600 a", "a\U0001f600b", "\U0001f469\u200d\U0001f469\u200d\U0001f467", "\ue000x", "\U0010fffd \u0378"),
)
"""Texts without special symbols. A line end cannot stand in a text."""


def samples(dictionary: PretrainedDictionary) -> list[str]:
    """Return the samples, and texts that hold the special symbols of a dictionary, and those of others, as text."""
    names = ("bos", "pad", "eos", "unk", "mask")
    own = [read_symbol(dictionary.symbols[getattr(dictionary, name)()]) for name in names]
    others = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", "[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"]
    tokens = dict.fromkeys([*own, *others])
    return [
        *SAMPLES,
        *(text for token in tokens for text in (token, f"a {token} b", f"a{token}b", f"{token}{token} a")),
    ]


def ids_of(tokenizer: "Tokenizer", text: str) -> list[int]:
    """Return the ids that a tokenizer gives a text, without special symbols."""
    return [tokenizer.dictionary.index(symbol) for symbol in tokenizer.encode(text).split()]
