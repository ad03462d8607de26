"""Reading the files of fairseq-preprocess, and errors for data that is missing, damaged or does not fit."""

import os

import numpy as np
import pytest
import torch
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder, make_builder
from tiny import SEP, tiny_dictionary, words

from s2sft_fairseq.data.binarized_text import (
    LanguagePair,
    find_languages,
    load_dictionary,
    load_split,
    parse_languages,
    parse_pairs,
)
from s2sft_fairseq.errors import UserError


def test_pairs_and_languages_by_hand():
    assert parse_pairs("en-de,src-tgt:fr") == [LanguagePair("en", "de", "de"), LanguagePair("src", "tgt", "fr")]
    assert parse_pairs(None) == [] and parse_languages(None) == []
    with pytest.raises(UserError) as error:
        parse_pairs("en,de-en,de-en:de,a-b-c")
    assert error.value.problems == [
        "--lang-pairs must be pairs such as en-de or src-tgt:en, separated by commas, but has 'en'",
        "--lang-pairs has de-en twice",
        "--lang-pairs must be pairs such as en-de or src-tgt:en, separated by commas, but has 'a-b-c'",
    ]
    with pytest.raises(UserError, match="must be different names, separated by commas, but is 'de,de'"):
        parse_languages("de,de")


def rows(count, seed):
    rng = np.random.default_rng(seed)
    return [np.append(words(rng, rng.integers(0, 6)), SEP) for _ in range(count)]


def write(folder, split, language, texts, pair="body-title"):
    prefix = str(folder / f"{split}.{pair}.{language}")
    builder = MMapIndexedDatasetBuilder(prefix + ".bin", dtype=np.uint16)
    for ids in texts:
        builder.add_item(torch.from_numpy(ids))
    builder.finalize(prefix + ".idx")


@pytest.fixture
def folder(tmp_path):
    for split, count in (("train", 7), ("valid", 3)):
        write(tmp_path, split, "body", rows(count, 1))
        write(tmp_path, split, "title", rows(count, 2))
    for language in ("body", "title"):
        tiny_dictionary().save(str(tmp_path / f"dict.{language}.txt"))
    (tmp_path / "preprocess.log").write_text("a log\n")
    return tmp_path


def load(folder, split="train", source="body", target="title", impl=None, combine=False):
    return load_split(folder, split, source, target, tiny_dictionary(), impl, combine)


def as_lists(dataset):
    return [dataset[i].tolist() for i in range(len(dataset))]


def test_a_split(folder):
    source, target = load(folder)
    assert as_lists(source) == [ids.tolist() for ids in rows(7, 1)]
    assert as_lists(target) == [ids.tolist() for ids in rows(7, 2)]
    assert list(source.sizes) == [len(ids) for ids in rows(7, 1)]


def test_the_other_direction(folder):
    source, target = load(folder, source="title", target="body")
    assert as_lists(source) == [ids.tolist() for ids in rows(7, 2)]
    assert as_lists(target) == [ids.tolist() for ids in rows(7, 1)]


def test_a_split_in_several_parts(folder):
    write(folder, "train1", "body", rows(2, 3))
    write(folder, "train1", "title", rows(2, 4))
    source, target = load(folder, combine=True)
    assert [source[i].tolist() for i in range(9)] == [ids.tolist() for ids in rows(7, 1) + rows(2, 3)]
    assert len(target) == 9
    assert list(source.sizes) == [len(ids) for ids in rows(7, 1) + rows(2, 3)]
    assert len(load(folder)[0]) == 7
    (folder / "train1.body-title.title.idx").unlink()
    (folder / "train1.body-title.title.bin").unlink()
    with pytest.raises(
        UserError, match=rf"^of the 2 parts of the split 'train' in {folder} only 1 have targets \(title\)$"
    ):
        load(folder, combine=True)
    assert len(load(folder)[1]) == 7


def test_raw_text(folder):
    (folder / "test.body-title.body").write_text("w5 w6\n\nw7\n")
    (folder / "test.body-title.title").write_text("w8\nw9\nw10 nowhere\n")
    source, target = load(folder, "test", impl="raw")
    assert as_lists(source) == [[5, 6, SEP], [SEP], [7, SEP]]
    assert as_lists(target) == [[8, SEP], [9, SEP], [10, 1, SEP]]


@pytest.mark.parametrize("pair", ["body-title", "body-None"])
def test_sources_alone(tmp_path, pair):
    write(tmp_path, "test", "body", rows(4, 5), pair)
    source, target = load(tmp_path, "test")
    assert len(source) == 4
    assert target is None


def test_languages_come_from_the_file_names(folder):
    assert find_languages(folder) == ("body", "title")


def test_no_or_several_language_pairs(folder, tmp_path):
    with pytest.raises(
        UserError, match=r"^data folder .*absent does not exist: it must be one that fairseq-preprocess wrote"
    ):
        find_languages(folder / "absent")
    (tmp_path / "empty").mkdir()
    given = r"^--source-lang and --target-lang must be given: .* holds language pairs"
    with pytest.raises(UserError, match=f"{given}: none$"):
        find_languages(tmp_path / "empty")
    write(folder, "test", "en", rows(1, 1), pair="en-de")
    with pytest.raises(UserError, match=f"{given}: body-title, en-de$"):
        find_languages(folder)


def test_one_dictionary_is_shared(folder):
    assert load_dictionary(folder, "body", "title").symbols == tiny_dictionary().symbols
    (folder / "dict.title.txt").unlink()
    assert load_dictionary(folder, "body", "title").symbols == tiny_dictionary().symbols
    assert load_dictionary(folder, "body", "body").symbols == tiny_dictionary().symbols


def test_dictionaries_that_differ(folder):
    tiny_dictionary(size=49).save(str(folder / "dict.title.txt"))
    with pytest.raises(UserError) as raised:
        load_dictionary(folder, "body", "title")
    assert str(raised.value) == (
        f"source and target must share one dictionary, but differ in {folder}: dict.body.txt has 50 and dict.title.txt "
        "has 49 symbols; give fairseq-preprocess --joined-dictionary and --srcdict"
    )


def test_no_dictionary(folder):
    with pytest.raises(UserError, match=r"must hold dict\.x\.txt and dict\.y\.txt, but holds neither$"):
        load_dictionary(folder, "x", "y")


def test_a_missing_split_is_reported_with_the_existing_ones(folder, tmp_path):
    with pytest.raises(
        UserError, match=rf"^no data for the split 'test' \(body-title\) in {folder}; it has: train, valid$"
    ):
        load(folder, "test")
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"it has: none$"):
        load(tmp_path / "empty")


@pytest.mark.parametrize("language", ["body", "title"])
def test_source_and_target_of_different_counts(folder, language):
    write(folder, "train", language, rows(5, 6))
    counts = (5, 7) if language == "body" else (7, 5)
    message = rf"train\.body-title\.body has {counts[0]} examples, but .*train\.body-title\.title has {counts[1]}: "
    with pytest.raises(UserError, match=message + "line n of the target must belong to line n of the source"):
        load(folder)


@pytest.mark.parametrize("language", ["body", "title"])
def test_truncated_ids(folder, language):
    path = folder / f"train.body-title.{language}.bin"
    whole = path.read_bytes()
    for length in (len(whole) - 1, len(whole) // 2, 1):
        path.write_bytes(whole[:length])
        message = rf"{path.name} is truncated: needs {len(whole)} bytes, has {length}; run fairseq-preprocess again$"
        with pytest.raises(UserError, match=message):
            load(folder)


def test_a_truncated_index(folder):
    """The index can end at any byte."""
    path = folder / "train.body-title.title.idx"
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(UserError, match=r"train\.body-title\.title\.idx .*damaged; run fairseq-preprocess again"):
            load(folder)


@pytest.mark.parametrize("impl", ["cached", "lazy"])
def test_formats_that_are_not_mapped_to_memory(tmp_path, impl):
    """Without the check, a truncated file would give random ids."""
    prefix = str(tmp_path / "test.body-title.body")
    builder = make_builder(prefix + ".bin", impl)
    for ids in rows(7, 1):
        builder.add_item(torch.from_numpy(ids))
    builder.finalize(prefix + ".idx")
    source, _ = load(tmp_path, "test", impl=impl)
    assert as_lists(source) == [ids.tolist() for ids in rows(7, 1)]
    size = os.path.getsize(prefix + ".bin")
    os.truncate(prefix + ".bin", size - 1)
    with pytest.raises(UserError, match=rf"body\.bin is truncated: needs {size} bytes, has {size - 1}; run fairseq"):
        load(tmp_path, "test", impl=impl)


@pytest.mark.parametrize("suffix", ["idx", "bin"])
@pytest.mark.parametrize("language", ["body", "title"])
def test_half_of_a_file(folder, language, suffix):
    """The error is neither "no such split", nor are the data used without targets."""
    path = folder / f"train.body-title.{language}.{suffix}"
    path.unlink()
    with pytest.raises(UserError, match=rf"{path.name} is missing beside .*; run fairseq-preprocess again$"):
        load(folder)


def test_an_empty_split(tmp_path):
    write(tmp_path, "test", "body", [])
    with pytest.raises(
        UserError, match=r"test\.body-title\.body\.idx or \.bin is empty or damaged; run fairseq-preprocess"
    ):
        load(tmp_path, "test")
