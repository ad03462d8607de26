"""The CSV files of the E2E challenge."""

import re

import pytest
from raw_corpora import e2e, write

from s2sft_fairseq.corpora.e2e import read_e2e, read_rows
from s2sft_fairseq.errors import UserError


def test_references_of_scored_sets_are_grouped(tmp_path, malformed, pairs):
    e2e(tmp_path)
    splits = {split: pairs(examples) for split, examples in read_e2e(tmp_path, malformed).items()}
    assert {split: len(rows) for split, rows in splits.items()} == {"train": 12, "valid": 2, "test": 2}
    meaning = "name[The the], eatType[pub], priceRange[£20-25], customer rating[5 out of 5]"
    first = ['A pub, "The the", the old tower stands near river bridge and 0 .']
    assert splits["train"][0] == (meaning, first)
    assert splits["test"][0] == (meaning, [*first, 'A pub, "The the", river and small pass every summer the tower 1 .'])
    assert not malformed.records


def test_groups_keep_the_order_and_ignore_spacing(tmp_path, malformed, pairs):
    for name in ("trainset.csv", "devset.csv"):
        write(tmp_path / name, "mr,ref\nname[A],one\n")
    text = 'mr,ref\n"name[B], food[C]",one\nname[A],two\n"name[B],  food[C]",three\nname[A],\n'
    write(tmp_path / "testset_w_refs.csv", text)
    test = list(read_e2e(tmp_path, malformed)["test"])
    assert pairs(test[1:]) == [("name[B], food[C]", ["one", "three"]), ("name[A]", ["two"])]
    assert (test[0].where, test[0].references) == (5, ("",))  # alone, to be reported


def test_malformed_rows(tmp_path, malformed):
    rows = [
        "name[A],fine",
        "name[A]",
        '"name[A],\nfood[B]",two lines',
        "name[A;B],x",
        "colour[red],x",
        "name[],x",
        "a,b,c",
    ]
    path = write(tmp_path / "a.csv", "\ufeffmr,ref\r\n" + "".join(f"{row}\r\n" for row in rows))
    assert [(row.where, row.references) for row in read_rows(path, malformed)] == [
        (2, ("fine",)),
        (4, ("two lines",)),
        (6, ("x",)),
    ]
    needed = "mr must be slot[value], slot[value] ... of known slots, but is"
    assert malformed.lines() == [
        f"{path}:3: must have 2 columns, but has 1",
        f"{path}:7: {needed} 'colour[red]'",
        f"{path}:8: {needed} 'name[]'",
        f"{path}:9: must have 2 columns, but has 3",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("MR,ref\n", "must have the columns mr, ref, but has MR, ref"),
        ("", "must have the columns mr, ref, but has none"),
        ('mr,ref\nname[A],"open\n', "a.csv:2 must be CSV: unexpected end of data"),
    ],
)
def test_damaged_files(tmp_path, malformed, text, problem):
    path = write(tmp_path / "a.csv", text)
    with pytest.raises(UserError, match=re.escape(problem)):
        list(read_rows(path, malformed))


def test_no_utf8(tmp_path, malformed):
    (tmp_path / "a.csv").write_bytes(b"mr,ref\nname[Caf\xe9],x\n")
    with pytest.raises(UserError, match=r"a\.csv must be UTF-8, but byte 15 is not"):
        list(read_rows(tmp_path / "a.csv", malformed))
