"""GLUE's nine tasks, each from its own columns."""

import re

import pytest
from raw_corpora import GLUE_LABELS, glue, glue_file, sentence, write_lines

from s2sft_fairseq.corpora.glue import TASKS, read_glue
from s2sft_fairseq.corpora.reading import Malformed
from s2sft_fairseq.errors import UserError

PAIRS = [name for name in TASKS if name not in ("cola", "sst-2")]


@pytest.mark.parametrize("name", TASKS)
def test_every_task(tmp_path, malformed, name):
    glue(tmp_path)
    splits = {split: list(examples) for split, examples in read_glue(tmp_path, name, malformed).items()}
    assert not malformed.records
    more = {"valid1": 4, "test1": 3, "test2": 2} if name == "mnli" else {}
    assert {split: len(found) for split, found in splits.items()} == {"train": 12, "valid": 4, "test": 3, **more}
    labels = GLUE_LABELS.get(TASKS[name].folder, ("1", "0"))
    assert [example.references for example in splits["valid"][:2]] == [(labels[0],), (labels[1],)]
    first, second = f'{sentence(1)} "said', sentence(101, 5)
    assert splits["train"][1].source == ((first, second) if name in PAIRS else (first,))
    assert splits["test"][1].source == splits["train"][1].source
    assert all(not example.references for example in splits["test"])
    # The folder of the task itself is accepted, and test sets may be missing: fairseq numbers the existing ones.
    for path in (tmp_path / TASKS[name].folder).glob("test*"):
        path.unlink()
    found = read_glue(tmp_path / TASKS[name].folder, name, malformed)
    assert sorted(found) == (["train", "valid", "valid1"] if name == "mnli" else ["train", "valid"])


def test_mrpc_of_its_authors(tmp_path, malformed):
    columns = "\ufeffQuality,#1 ID,#2 ID,#1 String,#2 String"
    glue_file(tmp_path / "msr_paraphrase_train.txt", columns, ["1"] * 5)
    glue_file(tmp_path / "msr_paraphrase_test.txt", columns, ["0"] * 2)
    for name in ("msr_paraphrase_train.txt", "msr_paraphrase_test.txt"):
        (tmp_path / name).write_text(re.sub(r"(?m)^x\t", "1\t", (tmp_path / name).read_text()))
    with pytest.raises(UserError, match=r"but lacks dev_ids\.tsv$"):
        read_glue(tmp_path, "mrpc", malformed)
    write_lines(tmp_path / "dev_ids.tsv", ["11\t21", "13\t23"])
    splits = {split: list(examples) for split, examples in read_glue(tmp_path, "mrpc", malformed).items()}
    assert not malformed.lines()
    assert [example.where for example in splits["train"]] == [2, 4, 6]
    assert [example.where for example in splits["valid"]] == [3, 5]
    assert [example.references for example in splits["test"]] == [("1",), ("1",)]


def test_malformed_rows(tmp_path, malformed):
    write_lines(tmp_path / "train.tsv", ["index\tsentence1\tsentence2\tscore", "0\ta\tb\t5.1", "1\ta\tb", "2\ta\tb\tx"])
    (tmp_path / "dev.tsv").write_bytes(b"index\tsentence1\tsentence2\tscore\n0\ta\t\xff\t1\n1\tc\td\t1\n")
    splits = read_glue(tmp_path, "sts-b", malformed)
    assert not list(splits["train"])
    assert len(list(splits["valid"])) == 1
    train = tmp_path / "train.tsv"
    assert malformed.lines() == [
        f"{train}:2: the label must be a number from 0 to 5, but is '5.1'",
        f"{train}:3: must have 4 cells, but has 3",
        f"{train}:4: the label must be a number from 0 to 5, but is 'x'",
        f"{tmp_path / 'dev.tsv'}:2: is not valid UTF-8",
    ]
    malformed = Malformed()
    write_lines(train, ["sentence\tlabel", "fine\t1", "bad\t2"])
    assert len(list(read_glue(tmp_path, "sst-2", malformed)["train"])) == 1
    assert malformed.lines() == [f"{train}:3: the label must be one of 0, 1, but is '2'"]


def test_missing_files_and_columns(tmp_path, malformed):
    with pytest.raises(UserError, match=r"but lacks train\.tsv, dev_matched\.tsv, dev_mismatched\.tsv$"):
        read_glue(tmp_path, "mnli", malformed)
    for name in ("train", "dev"):
        write_lines(tmp_path / f"{name}.tsv", ["index\tquestion", "0\tx"])
    with pytest.raises(UserError) as raised:
        list(read_glue(tmp_path, "qnli", malformed)["train"])
    assert str(raised.value) == (
        f"{tmp_path / 'train.tsv'} must have the columns question, sentence, label, but lacks sentence, label; it has: "
        "index, question"
    )
