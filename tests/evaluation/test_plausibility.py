"""A score of 0 for texts that are equal is never printed without a word."""

import unicodedata

import pytest

from s2sft_fairseq.commands.evaluate import main
from s2sft_fairseq.evaluation.normalisation import equality
from s2sft_fairseq.evaluation.plausibility import Letters

CHINESE, THAI, RUSSIAN = "今天天气很好", "วันนี้อากาศดีมาก", "сегодня хорошая погода"
FRENCH = "l'été à la forêt d'érables"
DECOMPOSED = unicodedata.normalize("NFD", FRENCH)


@pytest.fixture
def scored(tmp_path, capsys, caplog):
    def score(hypotheses, references, *options, task="rouge"):
        for name, lines in (("hyp", hypotheses), ("ref", references)):
            (tmp_path / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        caplog.clear()
        main(["--task", task, "--hyp", str(tmp_path / "hyp"), "--ref", str(tmp_path / "ref"), *options])
        table = capsys.readouterr().out
        names, values = (line.split() for line in table.splitlines()[:2])
        warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
        return dict(zip(names, map(float, values[1:]), strict=True)), warnings, table

    return score


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (CHINESE, ("--characters", "--rouge-tokenizer", "space")),
        (THAI, ("--characters", "--rouge-tokenizer", "space")),
        (RUSSIAN, ("--rouge-tokenizer", "unicode")),
    ],
)
def test_equal_texts_of_other_scripts(scored, text, advice):
    scores, warnings, _ = scored([text, "other"], [text, "words"])
    assert set(scores.values()) == {0.0}
    (dropped, zero) = warnings
    assert "100 % of the letters" in dropped or "% of the letters" in dropped
    assert "1 of 2 hypotheses equal a reference, but score about 0 in ROUGE-1, ROUGE-2" in zero and "line 1" in zero
    for warning in warnings:
        assert " ".join(advice) in warning
    scores, warnings, _ = scored([text], [text], *advice)
    assert set(scores.values()) == {100.0} and warnings == []


@pytest.mark.parametrize(
    ("task", "options", "advice"),
    [
        ("bleu", (), ("--bleu-tokenize", "zh")),
        ("qg", ("--no-group-by-source", "--metrics", "coco_bleu"), ("--characters",)),
        ("persona_chat", ("--metrics", "distinct"), None),
        ("coqa", (), None),
    ],
)
def test_other_metrics(scored, task, options, advice):
    scores, warnings, _ = scored([CHINESE], [CHINESE], *options, task=task)
    if advice is None:
        assert warnings == []
        return
    assert set(scores.values()) == {0.0}
    assert "equal a reference" in warnings[-1] and " ".join(advice) in warnings[-1]
    scores, warnings, _ = scored([CHINESE], [CHINESE], *options, *advice, task=task)
    assert list(scores.values()) == pytest.approx([100.0]) and warnings == []


def test_a_score_of_nearly_0(scored):
    """BLEU of two Thai words is smoothed to 0.10, which says as little as 0."""
    text, options = f"{THAI} {THAI}", ("--no-group-by-source", "--metrics", "coco_bleu")
    scores, warnings, _ = scored([text], [text], *options, task="qg")
    assert 0 < scores["BLEU-4"] < 1
    assert "equal a reference, but score about 0 in BLEU-4" in warnings[-1] and "--characters" in warnings[-1]


@pytest.mark.parametrize("task", ["rouge", "bleu", "coqa", "sst-2"])
def test_unicode_forms(scored, task):
    options = ("--rouge-tokenizer", "space") if task == "rouge" else ()
    word = ("été", unicodedata.normalize("NFD", "été"))
    scores, warnings, _ = scored([word[0], "a b c d"], [word[1], "a b c d"], *options, task=task)
    assert any("NFC" in warning and "references" in warning and "--unicode-form nfc" in warning for warning in warnings)
    assert any("1 of 2 hypotheses equal a reference" in each and "--unicode-form nfc" in each for each in warnings)
    scores, warnings, table = scored([FRENCH], [DECOMPOSED], *options, "--unicode-form", "nfc", task=task)
    assert list(scores.values()) == pytest.approx([100.0] * len(scores))
    assert "unicode:nfc" in table and warnings == []


def test_compatible_characters(scored):
    scores, warnings, _ = scored(["\uff21\uff22 \uff23"], ["AB C"])
    assert scores["ROUGE-1"] == 0 and "--unicode-form" in warnings[-1]
    scores, warnings, table = scored(["\uff21\uff22 \uff23"], ["AB C"], "--unicode-form", "nfkc")
    assert scores["ROUGE-1"] == 100 and warnings == [] and "unicode:nfkc" in table


def test_texts_that_the_task_empties(scored):
    _, warnings, _ = scored(["two words"], ["two words"], task="cnndm")
    assert any("hypotheses are empty" in warning for warning in warnings)
    assert "--min-sentence-words" in warnings[-1]


def test_short_and_empty_texts(scored):
    scores, warnings, _ = scored(["yes", ""], ["yes", "no"])
    assert scores["ROUGE-1"] == 50 and scores["ROUGE-2"] == 0
    assert "1 of 2 hypotheses are empty, first the one of line 2" in warnings[0]
    assert "score about 0 in ROUGE-2" in warnings[1] and "too few words" in warnings[1]
    assert scored(["a b c d"], ["a b c e"])[1] == []


def test_equality():
    assert equality("a  b", ["c", "a b "]) == "exact"
    assert equality(FRENCH, [DECOMPOSED]) == equality(DECOMPOSED, [FRENCH]) == "unicode"
    assert equality("A", ["a"]) == equality("", [""]) == equality("a", []) == ""


def test_letters():
    assert Letters.of("ab 1 été") == Letters(5, 2, 0)
    assert (
        Letters.of(CHINESE).has_no_words and Letters.of("កម្ពុជា").has_no_words and not Letters.of(RUSSIAN).has_no_words
    )
    assert Letters.of(RUSSIAN).are_dropped and not Letters.of("a" * 60 + "é").are_dropped
