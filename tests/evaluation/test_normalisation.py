"""The processing of texts before they are compared, by hand."""

import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.evaluation.normalisation import (
    bert_words,
    normalise_hypothesis,
    normalise_reference,
    normalise_source,
    signature,
)
from s2sft_fairseq.evaluation.settings import TASKS, Settings

PLAIN = Settings()


def test_texts_are_left_alone_but_for_spaces():
    assert normalise_hypothesis(" A  (b) [X_SEP] c1 ", PLAIN) == "A (b) [X_SEP] c1"
    assert normalise_reference(" A  (b) <S_SEP> c1 ", PLAIN) == "A (b) <S_SEP> c1"


def test_cnndm():
    text = (
        "the man ( 42 ) didn ' t go home . [X_SEP] too few words here [X_SEP] the man didn ' t go home again . [X_SEP] "
        "he went to see an old friend instead ."
    )
    # The second sentence has only 4 words; 7 of the 8 words of the third occur before: the man did n't go home .
    first, second = "the man -LRB- 42 -RRB- did n't go home .", "he went to see an old friend instead ."
    assert normalise_hypothesis(text, TASKS["cnndm"]) == f"{first}\n{second}"
    assert normalise_hypothesis(text, replace(TASKS["cnndm"], truncate=12)) == f"{first}\nhe went"
    assert normalise_hypothesis(text, replace(TASKS["cnndm"], truncate=10)) == first
    assert normalise_reference("one . <S_SEP> two ( 2 ) .", TASKS["cnndm"]) == "one .\ntwo -LRB- 2 -RRB- ."


@pytest.mark.parametrize(("rate", "kept"), [(1.0, 3), (0.75, 3), (0.74, 2), (0.5, 2), (0.49, 1)])
def test_the_share_of_repeated_words(rate, kept):
    # 3 of 4 different words of the second sentence are in the first; 2 of 4 of the third are in those before.
    settings = Settings(hyp_separator="|", duplicate_rate=rate)
    sentences = normalise_hypothesis("a b c | A b c d | d a e f", settings).split("\n")
    assert len(sentences) == kept


def test_a_sentence_that_is_left_out_counts_as_seen():
    settings = Settings(hyp_separator="|", duplicate_rate=0.6)
    assert normalise_hypothesis("a b | a b c | c x", settings) == "a b\nc x"
    assert normalise_hypothesis("a b | a b c | c a x", settings) == "a b"


@pytest.mark.parametrize(
    ("limit", "expected"), [(0, "a b c\nd e"), (4, "a b c\nd"), (3, "a b c"), (1, "a"), (9, "a b c\nd e")]
)
def test_truncation_counts_words_over_sentences(limit, expected):
    assert normalise_hypothesis("a b c <q> d e", Settings(hyp_separator="<q>", truncate=limit)) == expected


def test_xsum():
    assert normalise_hypothesis("don ' t (ever) [x] - y", TASKS["xsum"]) == "do n't -LRB- ever -RRB- [ x ] - y"


def test_gigaword():
    assert normalise_hypothesis("( 11 of 25 )", TASKS["gigaword"]) == "-lrb- ## of 25 -rrb-"
    assert normalise_hypothesis("( 11 of 25 )", replace(TASKS["gigaword"], digits="all")) == "-lrb- ## of ## -rrb-"


def test_question_generation():
    assert normalise_hypothesis('What is " It " ?', TASKS["qg"]) == "what is `` it '' ?"
    assert normalise_hypothesis('Isn\'t it "It"?', TASKS["qg"]) == "is n't it `` it '' ?"
    assert normalise_reference("What is It (it's)?", TASKS["qg"]) == "what is it (it's)?"
    assert normalise_source(" The Source ", TASKS["qg"]) == "the source"
    assert normalise_source(" The Source ", PLAIN) == "The Source"


def test_contractions():
    text = "i ' m well - known , do n't ask , he ' s in"
    assert normalise_hypothesis(text, TASKS["persona_chat"]) == "i'm well-known , don't ask , he's in"
    detokenized = "i'm well-known, don't ask, he's in"
    assert normalise_hypothesis(detokenized, TASKS["persona_chat"]) == "i'm well-known , don't ask , he's in"
    assert normalise_reference(detokenized, TASKS["persona_chat"]) == "i'm well-known , don't ask , he's in"
    assert normalise_hypothesis("it ' s his , they ' ll don ' t go", TASKS["coqa"]) == "it 's his , they 'll do n't go"


def test_languages():
    assert normalise_hypothesis("L'Été à Nîmes", TASKS["fr"]) == "l'ete a nimes"
    assert normalise_hypothesis("中国 AI 好", TASKS["zh"]) == "中 国 a i 好"
    assert normalise_reference("中国", TASKS["zh"]) == "中 国"


def test_pretokenizing():
    settings = Settings(pretokenize="nltk")
    assert normalise_hypothesis("I can't, really.", settings) == "I ca n't , really ."
    assert normalise_reference("(No.)", settings) == "( No . )"


def test_russian_words(monkeypatch):
    """Razdel is not a required package: a fake module returns its words."""
    words = [SimpleNamespace(text=word) for word in ("Что-то", "стоит", "1,5", "тыс", ".", "«", "руб", "»")]
    monkeypatch.setitem(sys.modules, "razdel", SimpleNamespace(tokenize=lambda text: words if text else []))
    settings = Settings(pretokenize="razdel", ref_separator="|")
    assert normalise_hypothesis("Что-то стоит 1,5 тыс. «руб»", settings) == "Что-то стоит 1,5 тыс . « руб »"
    assert normalise_reference("Что-то стоит 1,5 тыс. «руб»|", settings) == "Что-то стоит 1,5 тыс . « руб »\n"
    assert "|pretok:razdel" in signature(settings)
    monkeypatch.setitem(sys.modules, "razdel", None)
    with pytest.raises(UserError, match=r"--pretokenize razdel needs the package razdel, .* pip install razdel"):
        normalise_hypothesis("Что-то", settings)


def test_the_words_of_razdel_itself():
    pytest.importorskip("razdel", reason="razdel is not installed")
    settings = Settings(pretokenize="razdel")
    assert normalise_hypothesis("Что-то стоит 1,5 тыс. «руб»", settings) == "Что-то стоит 1,5 тыс . « руб »"


def test_the_words_of_bert():
    pre_tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed").pre_tokenizers
    every = "".join(chr(code) for code in range(0x20, 0x600) if not chr(code).isspace() and chr(code).isprintable())
    for text in ("Don't (ever) pay $5.50, £3 or ½ at at::native!", "中文 and 한국어", every):
        spaced = "".join(f" {letter} " if "\u4e00" <= letter <= "\u9fff" else letter for letter in text)
        expected = [word for word, _ in pre_tokenizers.BertPreTokenizer().pre_tokenize_str(spaced)]
        assert bert_words(text).split() == expected
    assert bert_words("a[UNK], [X_SEP] [mask]<unk>") == "a [UNK] , [X_SEP] [ mask ] <unk>"
    assert bert_words(bert_words("don't (ever)")) == bert_words("don't (ever)")


def test_the_signature_names_the_settings():
    assert signature(PLAIN) == "case:kept|split:line|trunc:no"
    assert signature(TASKS["cnndm"]) == (
        "case:kept|split:[X_SEP]/<S_SEP>|trunc:160|fix:cased|brackets:all|minwords:5|dup:0.7|words:bert|norm:both"
    )
    assert signature(TASKS["gigaword"]) == "case:kept|split:line|trunc:no|fix:lower|digits:one|words:bert"
    assert signature(TASKS["zh"]) == "case:lower|split:line|trunc:no|words:characters"
    assert signature(TASKS["fr"]) == "case:lower|split:line|trunc:no|accents:no"
    assert signature(TASKS["wikilingua"]) == "case:kept|split:line|trunc:no|pretok:nltk"
    assert signature(TASKS["coqa"]) == "case:kept|split:line|trunc:no|contractions:coqa"


def test_signatures_of_different_settings_differ():
    changes = [
        *(dict(hyp_separator="."), dict(ref_separator="."), dict(pretokenize="nltk"), dict(contractions="coqa")),
        *(dict(fix_tokenization="cased"), dict(brackets="round"), dict(digits="one"), dict(min_sentence_words=2)),
        *(dict(duplicate_rate=0.5), dict(truncate=70), dict(lowercase=True), dict(strip_accents=True)),
        *(dict(characters=True), dict(bert_words=True), dict(normalise_references=True)),
    ]
    assert len({signature(Settings(**change)) for change in [{}, *changes]}) == len(changes) + 1
