"""Two commands that write to one folder at once: the second is refused at its start and changes nothing."""

import time

import pytest
from tokenizer_folders import write_wordpiece


@pytest.fixture
def refused(call_command):
    """Run a command that must be refused; its error must name the folder."""

    def run(folder, *words):
        before = {path: path.read_bytes() for path in folder.glob("*") if path.is_file()}
        done = call_command(*words, status=2)
        assert "Traceback" not in done.stderr
        error = done.stderr[done.stderr.rindex("error: ") :]
        assert error.startswith(f"error: {folder} is being written by another process")
        assert {path: path.read_bytes() for path in folder.glob("*") if path.is_file()} == before

    return run


def test_trainings(start_command, refused, call_command, tiny_data, tiny_options, tmp_path):
    folder = tmp_path / "checkpoints"
    words = ("train", tiny_data, *tiny_options.training, "--save-dir", folder, "--max-update")
    first = start_command(*words, 1_000_000)
    deadline = time.monotonic() + 120
    try:
        while not (folder / ".lock").exists():
            assert first.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        refused(folder, *words, 2)
    finally:
        first.kill()
        first.communicate()
    call_command(*words, 2)  # a killed process keeps no lock
    assert (folder / "checkpoint_last.pt").exists()


def test_tokenizing(refused, lock_elsewhere, call_command, tmp_path):
    write_wordpiece(tmp_path / "tokenizer")
    (tmp_path / "a.src").write_text("a\n")
    folder = tmp_path / "out"
    words = ("--tokenizer-dir", "tokenizer", "--input", "a.src", "--output-dir", folder)
    call_command("tokenize", *words)
    lock_elsewhere(folder / ".lock")
    (tmp_path / "a.src").write_text("other\n")
    refused(folder, "tokenize", *words)


def test_binarizing(refused, lock_elsewhere, call_command, tiny_corpus, tiny_options, tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    lock_elsewhere(folder / ".lock")
    refused(folder, "preprocess", *tiny_options.preprocess(tiny_corpus, folder))


def test_generating_from_binarized_data(refused, lock_elsewhere, tiny_data, tiny_training, tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    lock_elsewhere(folder / ".lock")
    refused(folder, "generate", tiny_data, "--path", tiny_training.checkpoint, "--cpu", "--results-path", folder)


def test_accepting(refused, lock_elsewhere, tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "SHA256SUMS").write_text("")
    lock_elsewhere(folder / ".lock")
    refused(folder, "doctor", "--accept", folder)


def test_converting(refused, lock_elsewhere, tmp_path):
    lock_elsewhere(tmp_path / ".encoder.lock")
    refused(tmp_path / "encoder", "convert", "./anything", "--to", tmp_path / "encoder")


def test_exporting(lock_elsewhere, call_command, tiny_training, tiny_corpus, tmp_path):
    write_wordpiece(tmp_path / "tokenizer")
    lock_elsewhere(tmp_path / ".exported.lock")
    words = ("--tokenizer-dir", tiny_corpus, "--to", tmp_path / "exported")
    done = call_command("export", tiny_training.checkpoint, *words, status=2)
    assert f"error: {tmp_path / 'exported'} is being written by another process" in done.stderr
    assert not (tmp_path / "exported").exists()
