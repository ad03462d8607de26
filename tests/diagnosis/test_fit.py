"""Parts that do not fit each other: each mistake by itself, and several at once."""

import json
import shutil

import pytest
import torch
from tiny_deltalm import write_deltalm

from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.checksums import write_checksums
from s2sft_fairseq.diagnosis.fit import check_parts
from s2sft_fairseq.diagnosis.parts import find_parts
from s2sft_fairseq.diagnosis.report import Report


@pytest.fixture
def run(tiny_parts, tmp_path):
    """A copy to change."""
    return shutil.copytree(tiny_parts, tmp_path / "run")


def checked(*paths):
    report = Report()
    parts = [part for path in paths for part in find_parts(path, report)]
    check_parts(parts, report)
    return report


def change(file, **settings):
    """Change settings of a JSON file, by names with points for dots, and accept it."""
    config = json.loads(file.read_text())
    for name, value in settings.items():
        *outer, last = name.split("__")
        inner = config
        for key in outer:
            inner = inner[key]
        inner[last] = value
    file.write_text(json.dumps(config))
    write_checksums(file.parent)


def reorder(file):
    """Exchange the last two lines, and accept the file."""
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join([*lines[:-2], lines[-1], lines[-2]]))
    if (file.parent / "SHA256SUMS").exists():
        write_checksums(file.parent)


def test_parts_that_fit(run):
    report = checked(run)
    assert report.problems == [] and report.notes == []
    assert checked(run / "data").problems == [] and checked().problems == []


def test_a_checkpoint_alone_is_not_checked_in_full(run):
    report = checked(run / "checkpoints")
    assert not report.problems and "give its encoder too" in report.notes[0]


def test_another_order_of_symbols_in_the_data(run):
    for side in ("src", "tgt"):
        reorder(run / "data" / f"dict.{side}.txt")
    (problem,) = checked(run / "encoder", run / "data").problems
    assert problem.startswith(f"{run}/data has other symbols than {run}/encoder")
    assert "symbol 13 is 'j', not 'i'" in problem and "--srcdict" in problem


def test_another_number_of_symbols(run):
    for side in ("src", "tgt"):
        with (run / "data" / f"dict.{side}.txt").open("a") as file:
            file.write("k 1\n")
    write_checksums(run / "data")
    (problem,) = checked(run / "checkpoints", run / "data").problems
    assert f"{run}/data has 16 symbols, but {run}/checkpoints/checkpoint_last.pt has 15" in problem


def test_a_tokenizer_of_another_vocabulary(run):
    for folder in ("model", "encoder"):
        with (run / folder / "vocab.txt").open("a") as file:
            file.write("k\n")
        with (run / folder / "dict.txt").open("a") as file:
            file.write("k 1\n")
        write_checksums(run / folder)
    problems = checked(run / "model").problems
    assert any("16 symbols, but its model was made with 15: copy the tokenizer" in problem for problem in problems)
    assert len(checked(run).problems) >= 2


def test_a_model_without_a_tokenizer(run):
    (run / "model" / "vocab.txt").unlink()
    write_checksums(run / "model")
    (problem,) = checked(run / "model").problems
    assert "no files of a tokenizer" in problem and "vocab.txt (WordPiece)" in problem


def test_other_files_of_the_tokenizer(run):
    (run / "model" / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    write_checksums(run / "model")
    (problem,) = checked(run / "model", run / "encoder").problems
    assert "lower-cases text: False" in problem and "tokenizer_config.json" in problem


def test_other_sizes(run):
    """A model and an encoder of another depth; neither fits its own weights then."""
    change(run / "encoder" / "config.json", sizes__encoder_layers=2)
    problems = checked(run / "model", run / "encoder").problems
    assert any("has encoder_layers 1, but" in problem and "trained from" in problem for problem in problems)
    assert any(
        "layers.1." in problem and "is missing" in problem and "convert it again" in problem for problem in problems
    )


def test_options_of_a_model(run):
    """All that contradict are named."""
    change(
        run / "model" / "config.json",
        task_state__layout__max_source_positions=60,
        task_state__layout__target_segment=7,
    )
    problems = checked(run / "model").problems
    assert len(problems) == 2 and all(problem.startswith(f"{run}/model: ") for problem in problems)
    assert "--max-source-positions (60)" in problems[0] and "--target-segment" in problems[1]


def test_a_checkpoint_that_names_an_unknown_model(run):
    file = run / "checkpoints" / "checkpoint_last.pt"
    state = load_checkpoint(file)
    state["cfg"]["model"]["_name"] = state["cfg"]["model"]["arch"] = "unheard_of"
    torch.save(state, file)
    assert any("unheard_of" in problem for problem in checked(run / "checkpoints").problems)


def test_a_checkpoint_with_other_weights(run):
    file = run / "checkpoints" / "checkpoint_last.pt"
    state = load_checkpoint(file)
    state["model"]["layers.0.fc1.weight"] = torch.zeros(3, 16)
    torch.save(state, file)
    (problem,) = checked(run / "checkpoints", run / "encoder").problems
    assert "checkpoint_last.pt: layers.0.fc1.weight must have the shape" in problem


def test_rows_of_embeddings(run):
    file = run / "checkpoints" / "checkpoint_last.pt"
    state = load_checkpoint(file)
    state["model"]["embeddings.tokens.weight"] = torch.zeros(9, 16)
    torch.save(state, file)
    (problem,) = checked(run / "checkpoints").problems
    assert "9 rows of embeddings, but 15 symbols" in problem


def test_an_encoder_decoder(tmp_path):
    """A checkpoint that does not say its symbols, too."""
    model = write_deltalm(tmp_path / "deltalm", tokenizer="wordpiece", languages=("en", "de"))
    for paths in ([model], [tmp_path / "deltalm.pt"], [model, tmp_path / "deltalm.pt"]):
        assert checked(*paths).problems == []
    change(model / "config.json", task_state__layout__max_source_positions=31)
    (problem,) = checked(model).problems
    assert "--max-source-positions" in problem and "31" in problem


def test_what_is_cut_is_a_note(run):
    change(run / "model" / "config.json", task_state__layout__max_source_positions=6)
    report = checked(run / "model", run / "data")
    assert not report.problems
    assert any(f"of the sources of train are cut to the 6 positions of {run}/model" in note for note in report.notes)


def test_several_mistakes_at_once(run):
    for side in ("src", "tgt"):
        reorder(run / "data" / f"dict.{side}.txt")
    (run / "model" / "vocab.txt").unlink()
    write_checksums(run / "model")
    change(run / "encoder" / "config.json", sizes__encoder_layers=2)
    text = "\n".join(checked(run).problems)
    assert "--srcdict" in text and "no files of a tokenizer" in text and "encoder_layers" in text
