"""`s2sft score` gives the scores of fairseq and sacreBLEU, also where fairseq-score fails."""

import io
import random
import sys

import pytest
import sacrebleu
from fairseq.data import Dictionary
from fairseq.scoring import bleu
from fairseq_cli import score as fairseq_score

from s2sft_fairseq.evaluation.bleu import fairseq_bleu

HYPOTHESES = ["The cat sat on the mat .", "a dog barks at me", "", "an <unk> word ", "the the the cat"]
REFERENCES = ["the cat sat on the mat .", "a dog barks loudly at me", "nothing", "an <unk>  word", "the cat"]


@pytest.fixture
def files(tmp_path):
    for name, lines in (("sys", HYPOTHESES), ("ref", REFERENCES)):
        (tmp_path / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
    return "--sys", "sys", "--ref", "ref"


@pytest.mark.parametrize("options", [[], ["--ignore-case"], ["--order", "2"]])
def test_the_figure_of_fairseq(call_command, files, capsys, monkeypatch, options):
    ours = call_command("score", *files, *options).stdout
    monkeypatch.setattr(sys, "argv", ["fairseq-score", *files, *options])
    fairseq_score.cli_main()
    assert ours == capsys.readouterr().out.splitlines()[-1] + "\n"
    assert ours.startswith("BLEU")


def test_ignoring_case_matters(call_command, files):
    assert call_command("score", *files).stdout != call_command("score", *files, "--ignore-case").stdout


@pytest.mark.parametrize("lowercase", [False, True])
def test_the_figure_of_sacrebleu(call_command, files, lowercase):
    score, signature = call_command("score", *files, "--sacrebleu", *["--ignore-case"] * lowercase).stdout.splitlines()
    assert score == str(sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES], lowercase=lowercase))
    assert signature.startswith("nrefs:1|case:lc" if lowercase else "nrefs:1|case:mixed")


@pytest.mark.parametrize("order", [1, 3, 4])
def test_a_figure_for_each_sentence(call_command, files, order):
    lines = call_command("score", *files, "--sentence-bleu", "--order", order).stdout.splitlines()
    dictionary = Dictionary()
    scorer = bleu.Scorer(bleu.BleuConfig(pad=dictionary.pad(), eos=dictionary.eos(), unk=dictionary.unk()))
    for number, (hypothesis, reference) in enumerate(zip(HYPOTHESES, REFERENCES, strict=True)):
        scorer.reset(one_init=True)
        scorer.add(dictionary.encode_line(reference), dictionary.encode_line(hypothesis))
        assert lines[number] == f"{number} {scorer.result_string(order)}"


def test_random_words_get_the_scores_of_fairseq():
    draw, dictionary = random.Random(1), Dictionary()
    texts = [" ".join(draw.choices(["a", "b", "c", "<unk>"], k=draw.randint(0, 12))) for _ in range(600)]
    hypotheses, references = texts[:300], texts[300:]
    scorer = bleu.Scorer(bleu.BleuConfig(pad=dictionary.pad(), eos=dictionary.eos(), unk=dictionary.unk()))
    for hypothesis, reference in zip(hypotheses, references, strict=True):
        scorer.add(dictionary.encode_line(reference), dictionary.encode_line(hypothesis))
    for order in range(1, 5):
        assert fairseq_bleu(hypotheses, references, order) == scorer.result_string(order)


def test_hypotheses_on_the_standard_input(call_command, files, monkeypatch):
    expected = call_command("score", *files).stdout
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in HYPOTHESES)))
    assert call_command("score", "--ref", "ref").stdout == expected
    monkeypatch.setattr(sys, "stdin", io.StringIO(HYPOTHESES[0]))
    assert "ref has 5 lines, the standard input 1" in call_command("score", "--ref", "ref", status=2).stderr


def test_refuses_different_numbers_of_lines(call_command, files, tmp_path):
    (tmp_path / "sys").write_text("one\n")
    assert "sys has 1, ref has 5" in call_command("score", *files, status=2).stderr


def test_names_a_missing_file(call_command):
    stderr = call_command("score", "--sys", "nothing", "--ref", "nowhere", status=2).stderr
    assert "nothing: cannot be read" in stderr
    assert "nowhere: cannot be read" in stderr


def test_standard_input_that_is_not_utf8(call_command, tmp_path, monkeypatch):
    (tmp_path / "ref").write_text("a\nb\n")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\nb\xff\n"), encoding="utf-8"))
    stderr = call_command("score", "--ref", tmp_path / "ref", status=2).stderr
    assert "--sys -" in stderr and "line 2: can't decode byte 0xff, byte 2" in stderr
