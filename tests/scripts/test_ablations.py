"""The ablations of pre-training, from plain text to tables, with tiny random models; what they refuse."""

import re
from pathlib import Path

import pytest
from called import call_script
from raw_corpora import RAW, UNDERSTANDING, WORDS, sentence, write_lines

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
SETTINGS = ("--text", "text", "--tokenizer-dir", "vocab", "--output", "out", "--updates", 2, "--seeds", 1)
SETTINGS += ("--pretraining-updates", 2, "--pretraining-tokens", 300)
MEAN = r"\d+\.\d\d \(\d+\.\d\d to \d+\.\d\d\)"


def ablation(name, folder, *words):
    return call_script(SCRIPTS / f"{name}_ablation.py", folder, *words)


@pytest.fixture
def folder(tmp_path):
    for name, documents in (("train", 12), ("valid", 3)):
        lines = [text for number in range(documents) for text in (sentence(number), sentence(number + 1), "")]
        write_lines(tmp_path / "text" / f"{name}.txt", lines)
    symbols = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", *WORDS, *map(str, range(10)))
    write_lines(tmp_path / "vocab" / "vocab.txt", symbols)
    return tmp_path


@pytest.mark.slow  # two pre-trainings and five fine-tunings
@pytest.mark.process
def test_parts_of_ernie_gen(folder):
    RAW["e2e"](folder / "raw")
    words = (*SETTINGS, "--cpu", "--raw", "e2e=raw", "--", "--batch", 4, "--workers", 1)
    done = ablation("ernie_gen", folder, *words)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    head, _, *rows = (folder / "out" / "e2e.md").read_text().splitlines()
    assert head.startswith("| method | seeds | BLEU |")
    names = [
        *("causal", "pseudo-masked", "infilling", "infilling, noise"),
        "infilling, noise, span pre-training",
    ]
    assert [row.split(" | ")[0] for row in rows] == [f"| {name}" for name in names]
    assert all(re.search(MEAN, row) for row in rows)

    again = ablation("ernie_gen", folder, *words)
    assert again.returncode == 0, again.stderr
    assert " ...\n" not in again.stdout


@pytest.mark.slow  # a pre-training and a fine-tuning
@pytest.mark.process
def test_objectives_of_unilmv2(folder):
    UNDERSTANDING["glue"](folder / "raw")
    words = (*SETTINGS, "--objectives", "ae+par", "--cpu", "--raw", "mnli=raw", "--", "--batch", 4, "--workers", 1)
    done = ablation("unilmv2", folder, *words)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    head, _, row = (folder / "out" / "mnli.md").read_text().splitlines()
    assert head == "| objective | seeds | accuracy |"
    assert re.fullmatch(rf"\| ae\+par \| 1 \| {MEAN} \|", row)


@pytest.mark.parametrize("name", ["ernie_gen", "unilmv2"])
def test_refuses_unreadable_input(folder, name):
    refused = ablation(name, folder, *SETTINGS, "--raw", "e2e")
    assert refused.returncode == 2
    assert "--raw must be TASK=DIR, but is e2e" in refused.stderr
    refused = ablation(name, folder, *SETTINGS, "--raw", "sst2=text", "squad_qg=nowhere")
    assert "--raw must be TASK=DIR, but sst2 is none of c" in refused.stderr
    assert "; nowhere is no folder" in refused.stderr
    begins = ablation(name, folder, *SETTINGS, "--raw", "e2e=raw", "--encoder", "minilm")
    assert "--encoder: not allowed with argument --tokenizer-dir" in begins.stderr
    assert not (folder / "out").exists()
