"""What is done to texts before they are compared, by hand."""

from dataclasses import replace

import pytest

from s2sft_fairseq.evaluation.normalisation import (
    normalise_hypothesis,
    normalise_reference,
    normalise_source,
    signature,
)
from s2sft_fairseq.evaluation.settings import Settings
from s2sft_fairseq.evaluation.tasks import TASKS

PLAIN = Settings()


def test_texts_are_left_alone_but_for_spaces():
    assert normalise_hypothesis(" A  (b) [X_SEP] c1 ", PLAIN) == "A (b) [X_SEP] c1"
    assert normalise_reference(" A  (b) <S_SEP> c1 ", PLAIN) == "A (b) <S_SEP> c1"


def test_cnndm():
    text = (
        "the man ( 42 ) didn ' t go home . [X_SEP] too few words here [X_SEP] the man didn ' t go home again . [X_SEP] "
        "he went to see an old friend instead ."
    )
    # The second sentence has 4 words; of the third, 7 of 8 words were there before: the man did n't go home .
    first, second = "the man -LRB- 42 -RRB- did n't go home .", "he went to see an old friend instead ."
    assert normalise_hypothesis(text, TASKS["cnndm"]) == f"{first}\n{second}"
    assert normalise_hypothesis(text, replace(TASKS["cnndm"], truncate=12)) == f"{first}\nhe went"
    assert normalise_hypothesis(text, replace(TASKS["cnndm"], truncate=10)) == first
    assert normalise_reference("one . <S_SEP> two ( 2 ) .", TASKS["cnndm"]) == "one .\ntwo ( 2 ) ."


@pytest.mark.parametrize(("rate", "kept"), [(1.0, 3), (0.75, 3), (0.74, 2), (0.5, 2), (0.49, 1)])
def test_the_share_of_repeated_words(rate, kept):
    # 3 of 4 different words of the second sentence stand in the first; 2 of 4 of the third in those before.
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
    assert normalise_hypothesis("don ' t (ever) [x] - y", TASKS["xsum"]) == "do n't -LRB- ever -RRB- [x] - y"


def test_gigaword():
    assert normalise_hypothesis("( 11 of 25 )", TASKS["gigaword"]) == "-lrb- ## of 25 -rrb-"
    assert normalise_hypothesis("( 11 of 25 )", replace(TASKS["gigaword"], digits="all")) == "-lrb- ## of ## -rrb-"


def test_question_generation():
    assert normalise_hypothesis('What is " It " ?', TASKS["qg"]) == "what is `` it '' ?"
    assert normalise_reference("What is It ?", TASKS["qg"]) == "what is it ?"
    assert normalise_source(" The Source ", TASKS["qg"]) == "the source"
    assert normalise_source(" The Source ", PLAIN) == "The Source"


def test_contractions():
    text = "i ' m well - known , do n't ask , he ' s in"
    assert normalise_hypothesis(text, TASKS["persona_chat"]) == "i'm well-known , don't ask , he's in"
    assert normalise_hypothesis("it ' s his , they ' ll don ' t go", TASKS["coqa"]) == "it 's his , they 'll do n't go"


def test_languages():
    assert normalise_hypothesis("L'Été à Nîmes", TASKS["fr"]) == "l'ete a nimes"
    assert normalise_hypothesis("中国 AI 好", TASKS["zh"]) == "中 国 a i 好"
    assert normalise_reference("中国", TASKS["zh"]) == "中 国"


def test_pretokenizing():
    settings = Settings(pretokenize="nltk")
    assert normalise_hypothesis("I can't, really.", settings) == "I ca n't , really ."
    assert normalise_reference("(No.)", settings) == "( No . )"


def test_the_signature_tells_what_is_done():
    assert signature(PLAIN) == "case:kept|split:line|trunc:no"
    assert signature(TASKS["cnndm"]) == (
        "case:kept|split:[X_SEP]/<S_SEP>|trunc:160|fix:cased|brackets:all|minwords:5|dup:0.7"
    )
    assert signature(TASKS["gigaword"]) == "case:kept|split:line|trunc:no|fix:lower|digits:one"
    assert signature(TASKS["zh"]) == "case:lower|split:line|trunc:no|words:characters"
    assert signature(TASKS["fr"]) == "case:lower|split:line|trunc:no|accents:no"
    assert signature(TASKS["wikilingua"]) == "case:kept|split:line|trunc:no|pretok:nltk"
    assert signature(TASKS["coqa"]) == "case:kept|split:line|trunc:no|contractions:coqa"


def test_signatures_of_different_settings_differ():
    changes = [
        *(dict(hyp_separator="."), dict(ref_separator="."), dict(pretokenize="nltk"), dict(contractions="coqa")),
        *(dict(fix_tokenization="cased"), dict(brackets="round"), dict(digits="one"), dict(min_sentence_words=2)),
        *(dict(duplicate_rate=0.5), dict(truncate=70), dict(lowercase=True), dict(strip_accents=True)),
        dict(characters=True),
    ]
    assert len({signature(Settings(**change)) for change in [{}, *changes]}) == len(changes) + 1
