"""``s2sft prepare glue`` on small files; tests/end_to_end/test_question_answering.py runs ``s2sft prepare squad``."""

from raw_corpora import glue, glue_file


def test_files_of_tasks(tmp_path, call_command):
    glue(tmp_path / "raw")
    words = ("prepare", "glue", "--raw", "raw", "--output")
    done = call_command(*words, "mnli", "--task", "mnli", "--limit", 2)
    assert done.stdout == "mnli: train 2, valid 2, valid1 2, test 2, test1 2, test2 2\n"
    assert (tmp_path / "mnli" / "labels.txt").read_text() == "contradiction\nentailment\nneutral\n"
    assert (tmp_path / "mnli" / "valid1.label").read_text() == "neutral\nentailment\n"
    assert not (tmp_path / "mnli" / "test.label").exists()
    assert (tmp_path / "mnli" / "train.txt").read_text().count(" [SEP] ") == 2
    call_command(*words, "sts-b", "--task", "sts-b")
    assert not (tmp_path / "sts-b" / "labels.txt").exists()
    assert (tmp_path / "sts-b" / "valid.label").read_text() == "2.500\n0.0\n5\n2.500\n"


def test_malformed_rows(tmp_path, call_command):
    glue(tmp_path / "raw")
    path = tmp_path / "raw" / "SST-2" / "train.tsv"
    glue_file(path, "sentence label", ["1", "2", "x"])
    words = ("prepare", "glue", "--raw", tmp_path / "raw", "--output", "sst-2", "--task", "sst-2")
    error = call_command(*words, status=2).stderr
    assert f"2 malformed records (2 in {path}); --skip-malformed leaves them out:" in error
    assert f"{path}:3: the label must be one of 0, 1, but is '2'" in error
    assert "sst-2: train 1, valid 4, test 3" in call_command(*words, "--skip-malformed").stdout
