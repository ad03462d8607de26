"""The CSV files of the E2E challenge and WebNLG's XML files."""

import re

import pytest
from raw_corpora import e2e, webnlg, webnlg_file, write

from s2sft_fairseq.corpora.data_to_text import read_e2e, read_e2e_file, read_webnlg, read_webnlg_file
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
    assert (test[0].where, test[0].references) == (5, ("",))  # the only one, so that it is reported


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
    assert [(row.where, row.references) for row in read_e2e_file(path, malformed)] == [
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
def test_damaged_csv_files(tmp_path, malformed, text, problem):
    path = write(tmp_path / "a.csv", text)
    with pytest.raises(UserError, match=re.escape(problem)):
        list(read_e2e_file(path, malformed))


def test_no_utf8(tmp_path, malformed):
    (tmp_path / "a.csv").write_bytes(b"mr,ref\nname[Caf\xe9],x\n")
    with pytest.raises(UserError, match=r"a\.csv must be UTF-8, but byte 15 is not"):
        list(read_e2e_file(tmp_path / "a.csv", malformed))


def test_english(tmp_path, malformed, pairs, sizes):
    webnlg(tmp_path)
    assert pairs(read_webnlg(tmp_path, "en", malformed)["test"])[1] == (
        'Tower 17 | location | Old town [SEP] Tower 17 | runwayLength | "17.0"',
        ["Tower 17 is in the old town.", "The old town has Tower 17."],
    )
    assert sizes(read_webnlg(tmp_path, "en", malformed)) == {"train": 12, "valid": 4, "test": 4}
    assert not malformed.records


def test_russian(tmp_path, malformed, pairs):
    webnlg(tmp_path)
    assert pairs(read_webnlg(tmp_path, "ru", malformed)["valid"])[0][1] == ["Башня 12 в старом городе."]


def test_texts_without_a_language_are_english(tmp_path, malformed, pairs):
    path = write(tmp_path / "a.xml", webnlg_file(1).replace(' lang="en"', ""))
    assert len(pairs(read_webnlg_file(path, "en", malformed))[0][1]) == 2


def test_malformed_entries(tmp_path, malformed):
    text = webnlg_file(3).replace("Tower_0 | location |", "Tower_0 | location").replace("mtriple>Tower_1", "x>Tower_1")
    text = text.replace("Old_town</mtriple>", "Old_town</x>", 2).replace("Old_town</x>", "Old_town</mtriple>", 1)
    path = write(tmp_path / "a.xml", text.replace('"1.0"</mtriple>', '"1.0"</x>'))
    assert len(list(read_webnlg_file(path, "en", malformed))) == 1
    needed = "an mtriple must be subject | property | object, but is 'Tower_0 | location Old_town'"
    assert malformed.lines() == [
        f"{path}, entry 1 (Airport, Id0): {needed}",
        f"{path}, entry 2 (Airport, Id1): has no mtriple",
    ]


def test_damaged_files_are_named_with_the_line(tmp_path, malformed):
    path = write(tmp_path / "a.xml", "<benchmark>\n<entries>\n</benchmark>\n")
    assert list(read_webnlg_file(path, "en", malformed)) == []
    assert malformed.lines() == [f"{path}:3: is no well-formed XML: mismatched tag: line 3, column 2"]


def test_missing_splits(tmp_path, malformed):
    webnlg(tmp_path)
    (tmp_path / "en" / "dev" / "2triples" / "Airport.xml").unlink()
    with pytest.raises(UserError, match=r"must hold en/dev/\*triples/\*\.xml$"):
        read_webnlg(tmp_path, "en", malformed)
