"""Texts on which a regular expression or a nested loop could take minutes: 100,000 characters take seconds."""

import time
from pathlib import Path

import pytest

from s2sft_fairseq.api.streaming import stable_part
from s2sft_fairseq.corpora.data_to_text import read_e2e_file
from s2sft_fairseq.corpora.dialogue import read_persona_chat_file
from s2sft_fairseq.corpora.docstring_text import split_docstring
from s2sft_fairseq.corpora.iwslt14 import _by_name
from s2sft_fairseq.corpora.reading import Malformed
from s2sft_fairseq.corpora.squad import _letters
from s2sft_fairseq.corpora.summarization import read_sections
from s2sft_fairseq.errors import UserError, user_error_text
from s2sft_fairseq.evaluation.answers import answer_words
from s2sft_fairseq.evaluation.examples import split_sentences
from s2sft_fairseq.evaluation.fix_tokenization import STYLES, fix_tokenization
from s2sft_fairseq.evaluation.normalisation import bert_words
from s2sft_fairseq.tokenization.symbols import KeptTokens, read_symbol, write_symbol
from s2sft_fairseq.tokenization.vocabulary import read_vocab_txt
from s2sft_fairseq.tokenization.wordpiece import detokenize

LENGTH, MOST_SECONDS = 100_000, 5
# Strings that a text repeats: beginnings of what the expressions search, and what several of their parts can match.
UNITS = (
    *(
        " ",
        "\n",
        "\n\n",
        "\t",
        ".",
        ". ",
        "A. ",
        "a. ",
        "'",
        '"',
        "\"'",
        "' ",
        "' \" ",
        "(",
        ")",
        "[",
        "]",
        "[]",
        "{",
        "}",
    ),
    *(
        "a",
        "a ",
        "A",
        "1",
        "1.",
        "1 , 1 ",
        "a.",
        "a.a ",
        "a, ",
        "a = ",
        "a()",
        ")->",
        ") -> ",
        "a(",
        "-",
        "- ",
        "=",
        "= ",
    ),
    *(
        "=- ",
        "|",
        "||",
        "*",
        "**",
        "* ",
        "**a",
        "`",
        "``",
        "`a <",
        ":a:`",
        ":a:`a",
        "<",
        ">",
        "<a ",
        "<!--",
        "..",
        ".. ",
    ),
    *(
        "::",
        ": ",
        ".. a",
        "\\",
        "\\a",
        "\\frac{",
        "\\frac{a}{",
        "\\text {",
        "$",
        "$a",
        "${a",
        "%(a",
        "_{",
        "[a",
        "[#a",
        "]_",
    ),
    *(
        "http://",
        "<http://",
        "UserError: ",
        "a.UserError: ",
        "UserError: \n\n",
        "\n\nDuring handling",
        "<U+",
        "<U+2028",
    ),
    *(
        "<doc ",
        '<doc docid="',
        '<seg id="',
        '<seg id="1">',
        '<seg id="1">a</se',
        "name[",
        "name[a], ",
        "name[a]",
        "&lt",
    ),
    *(
        "[SN]",
        "[SN]A[SN]",
        "-l",
        "-lrb",
        "-lrb-",
        "\u56fd",
        "\u2028",
        "\u0301",
        "\U0001f600",
        "the ",
        "1 a",
        ">>> ",
        "@a:",
    ),
)


def texts():
    for unit in UNITS:
        yield unit * (LENGTH // len(unit))
        yield f"A. a{unit * (LENGTH // len(unit))}\x00!"


def of_file(read):
    """Return a function that reads a text from a file."""

    def read_text(text, path):
        path.write_text(text, encoding="utf-8", newline="")
        try:
            return read(path)
        except UserError:
            return None

    return read_text


KEPT = KeptTokens(["</s>", "[MASK]", "aaaa", "a a"])
READ = {
    "the text of an error": lambda text, _: user_error_text(RuntimeError(f"UserError: {text}")),
    "sentences": lambda text, _: split_sentences(text),
    "words of BERT": lambda text, _: bert_words(text),
    "words of the Penn Treebank": lambda text, _: fix_tokenization(text, STYLES["lower"]),
    "answers": lambda text, _: answer_words(text),
    "letters": lambda text, _: _letters(text),
    "detokenizing": lambda text, _: detokenize(text.split() + list(text[:20_000])),
    "a stable part": lambda text, _: stable_part(text),
    "symbols": lambda text, _: (write_symbol(text), read_symbol(text), KEPT.encode_around([text], list)),
    "a docstring": lambda text, _: split_docstring(text),
    "a test set of IWSLT": of_file(lambda path: _by_name(path, Malformed())),
    "a vocabulary": of_file(read_vocab_txt),
    "E2E": of_file(lambda path: list(read_e2e_file(path, Malformed()))),
    "Persona-Chat": of_file(lambda path: list(read_persona_chat_file(path, Malformed()))),
    "an article": of_file(lambda path: _sections(path)),
}


def _sections(path: Path):
    malformed = Malformed()
    with malformed.record(path, "article"):
        return read_sections(path, malformed)


@pytest.mark.parametrize("name", READ)
def test_time(name, tmp_path):
    slow = {}
    for text in texts():
        start = time.process_time()
        READ[name](text, tmp_path / "a.txt")
        if (took := time.process_time() - start) > MOST_SECONDS:
            slow[text[:20]] = round(took)
    assert slow == {}
