"""The state of an output after an interruption at any time."""

import contextlib
import fcntl
import hashlib
import json
import os
import subprocess

import pytest
from tokenizer_folders import write_wordpiece

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.inference.files import ResumableOutput, file_state, tokenizer_state

SETTINGS = {"--beam": 2, "--input": {"path": "in", "size": 3}, "--source": ["a"]}
LINES = [f"line {number}: ä" for number in range(10)]


@pytest.fixture
def output(tmp_path):
    """An output in windows of 3 lines, opened again by each call."""
    return lambda **changes: ResumableOutput(tmp_path / "new" / "out.txt", {**SETTINGS, **changes}, window=3)


def run(output, stop=10):
    """Append windows until at least `stop` lines are there; finish with all of them."""
    with output as opened:
        for first in range(opened.done, len(LINES), 3):
            if first >= stop:
                return
            opened.append(LINES[first : first + 3])
        opened.finish()


def test_a_run_without_interruption(output):
    run(output())
    assert output().path.read_text() == "".join(f"{line}\n" for line in LINES)
    assert [path.name for path in output().path.parent.iterdir()] == ["out.txt"]


@pytest.mark.parametrize("size", range(110))
def test_resumes_from_any_cut(output, size):
    run(output(), stop=9)
    whole = "".join(f"{line}\n" for line in LINES).encode()
    assert output().part.read_bytes() == whole[: whole.index(b"line 9")]
    output().part.write_bytes(whole[:size])
    with output() as opened:
        assert opened.done == whole[:size].count(b"\n") // 3 * 3
        assert opened.part.read_bytes().decode() == "".join(f"{line}\n" for line in LINES[: opened.done])
    run(output())
    assert output().path.read_bytes() == whole


def test_does_not_resume_with_other_settings(output):
    run(output(), stop=6)
    changed = output(**{"--beam": 3, "--input": {"path": "in", "size": 4}, "--lenpen": 1})
    with pytest.raises(UserError) as error, changed:
        pass
    assert str(error.value).splitlines() == [
        f"{changed.part} was begun with other settings (to start anew remove {changed.part}, or give --output another "
        "name):",
        "  - --beam was 2, now is 3",
        "  - --input, size was 3, now is 4",
        "  - --lenpen was None, now is 1",
    ]
    # Paths and tuples are compared in their JSON form.
    with output(**{"--source": ("a",)}) as opened:
        assert opened.done == 6
    output().record.unlink()
    with pytest.raises(UserError, match=r"cannot be resumed: out\.txt\.part\.json is missing"), output():
        pass


def test_an_empty_part_is_started_again(output):
    run(output(), stop=0)
    assert json.loads(output().record.read_text()) == SETTINGS
    with output(**{"--beam": 3}) as opened:
        assert (opened.done, json.loads(opened.record.read_text())["--beam"]) == (0, 3)


def test_two_processes_do_not_write_one_output(output):
    with output(), pytest.raises(UserError, match="is being written by another process"), output():
        pass


def test_the_state_of_a_file_changes_with_it(tmp_path):
    path = tmp_path / "file"
    path.write_text("a")
    before = file_state(path)
    assert before == file_state(path)
    path.write_text("ab")
    assert file_state(path) != before
    times = path.stat()
    path.write_text("ac")  # same size and time
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert file_state(path)["sha256"] == hashlib.sha256(b"ac").hexdigest()


@pytest.mark.process
def test_the_state_of_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["bash", "-c", "echo text >pipe"], cwd=tmp_path):
        state = file_state(tmp_path / "pipe")
    assert state == {"path": "a pipe", "sha256": hashlib.sha256(b"text\n").hexdigest()}


def test_the_state_of_a_tokenizer_changes_with_each_of_its_files(tmp_path):
    write_wordpiece(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("no part of it")
    before = tokenizer_state(tmp_path)
    assert before.keys() == {"path", "vocab.txt", "tokenizer_config.json"}
    (tmp_path / "notes.txt").write_text("other")
    assert tokenizer_state(tmp_path) == before
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    after = tokenizer_state(tmp_path)
    assert [name for name in before if before[name] != after[name]] == ["tokenizer_config.json"]


def test_an_output_that_another_process_finishes_meanwhile(output, monkeypatch):
    flock = fcntl.flock

    def finished_before(file, how):
        flock(file, how)
        output().part.rename(output().path)

    monkeypatch.setattr(fcntl, "flock", finished_before)
    with pytest.raises(UserError, match="is being written by another process"), output():
        pass
    assert output().path.read_text() == ""


def test_a_name_that_is_not_utf8_can_be_resumed(tmp_path):
    (tmp_path / "a\udcff").write_text("text")
    settings = {"--input": file_state(tmp_path / "a\udcff")}
    for done in (0, 2):
        with contextlib.suppress(SystemExit), ResumableOutput(tmp_path / "out", settings, 2) as output:
            assert output.done == done
            output.append(["a", "b"])
            raise SystemExit
