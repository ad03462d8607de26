"""WebNLG's XML files."""

import pytest
from raw_corpora import webnlg, webnlg_file, write

from s2sft_fairseq.corpora.webnlg import read_entries, read_webnlg
from s2sft_fairseq.errors import UserError


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
    assert len(pairs(read_entries(path, "en", malformed))[0][1]) == 2


def test_malformed_entries(tmp_path, malformed):
    text = webnlg_file(3).replace("Tower_0 | location |", "Tower_0 | location").replace("mtriple>Tower_1", "x>Tower_1")
    text = text.replace("Old_town</mtriple>", "Old_town</x>", 2).replace("Old_town</x>", "Old_town</mtriple>", 1)
    path = write(tmp_path / "a.xml", text.replace('"1.0"</mtriple>', '"1.0"</x>'))
    assert len(list(read_entries(path, "en", malformed))) == 1
    needed = "an mtriple must be subject | property | object, but is 'Tower_0 | location Old_town'"
    assert malformed.lines() == [
        f"{path}, entry 1 (Airport, Id0): {needed}",
        f"{path}, entry 2 (Airport, Id1): has no mtriple",
    ]


def test_damaged_files_are_named_with_the_line(tmp_path, malformed):
    path = write(tmp_path / "a.xml", "<benchmark>\n<entries>\n</benchmark>\n")
    assert list(read_entries(path, "en", malformed)) == []
    assert malformed.lines() == [f"{path}:3: is no well-formed XML: mismatched tag: line 3, column 2"]


def test_missing_splits(tmp_path, malformed):
    webnlg(tmp_path)
    (tmp_path / "en" / "dev" / "2triples" / "Airport.xml").unlink()
    with pytest.raises(UserError, match=r"must hold en/dev/\*triples/\*\.xml$"):
        read_webnlg(tmp_path, "en", malformed)
