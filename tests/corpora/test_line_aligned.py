"""Line-aligned corpora: the file names of a layout, and samples."""

from pathlib import Path

import pytest
from raw_corpora import RAW, line_aligned, write_lines

from s2sft_fairseq.corpora.line_aligned import (
    GIGAWORD,
    GIGAWORD_10K,
    PLAIN,
    multi30k,
    read_line_aligned,
    sample,
    wikilingua,
    wmt10,
    xgiga,
    xqg,
)
from s2sft_fairseq.corpora.reading import Example
from s2sft_fairseq.corpora.writing import write_corpus
from s2sft_fairseq.errors import UserError


@pytest.mark.parametrize(
    ("task", "layouts"),
    [
        ("gigaword", GIGAWORD),
        ("wikilingua", wikilingua("es")),
        ("wmt10", wmt10("fr", "en")),
        ("wmt10", wmt10("en", "fr")),
        ("xgiga", xgiga("fr")),
        ("xqg", xqg("zh")),
    ],
)
def test_layouts(tmp_path, malformed, sizes, task, layouts):
    RAW[task](tmp_path)
    assert sizes(read_line_aligned(tmp_path, layouts, malformed)) == {"train": 12, "valid": 4, "test": 4}
    assert not malformed.records


def test_further_test_sets_are_read_where_they_are(tmp_path, malformed, sizes):
    RAW["multi30k"](tmp_path)
    splits = read_line_aligned(tmp_path, multi30k("de", "en"), malformed)
    assert sizes(splits) == {"train": 12, "valid": 4, "test": 4, "test_2017_flickr": 3}


def test_source_and_target(tmp_path, malformed, pairs):
    for name in ("train", "val", "test_2016_flickr"):
        write_lines(tmp_path / f"{name}.en", ["a dog"])
        write_lines(tmp_path / f"{name}.de", ["ein Hund"])
    assert pairs(read_line_aligned(tmp_path, multi30k("en", "de"), malformed)["test"]) == [("a dog", ["ein Hund"])]
    assert pairs(read_line_aligned(tmp_path, multi30k("de", "en"), malformed)["test"]) == [("ein Hund", ["a dog"])]


def test_fields_of_a_question(tmp_path, malformed, pairs):
    RAW["xqg"](tmp_path)
    found = pairs(read_line_aligned(tmp_path, xqg("zh"), malformed)["test"])
    assert found[3] == ("塔 在 河 边 3 。 [SEP] 河 边 3", ["塔 在 哪 里 3 ？"])


def test_unilms_own_10k_come_first(tmp_path, malformed, pairs):
    line_aligned("{split}.{column}.txt", "src", "tgt", valid="dev")(tmp_path)
    assert len(pairs(read_line_aligned(tmp_path, GIGAWORD_10K, malformed)["train"])) == 12
    for column in ("src", "tgt"):
        write_lines(tmp_path / f"train.{column}.10k", ["chosen"])
    assert pairs(read_line_aligned(tmp_path, GIGAWORD_10K, malformed)["train"]) == [("chosen", ["chosen"])]
    assert len(pairs(read_line_aligned(tmp_path, GIGAWORD, malformed)["train"])) == 12


def test_no_known_layout(tmp_path, malformed):
    write_lines(tmp_path / "train.x.fr", ["a"])
    with pytest.raises(UserError) as raised:
        read_line_aligned(tmp_path, xgiga("fr"), malformed)
    names = "train.x.fr, train.y.fr, dev.x.fr, dev.y.fr, test.x.fr, test.y.fr"
    assert str(raised.value) == (
        f"--raw {tmp_path} holds the files of no known layout (plain or .gz):\n"
        f"  - one layout needs {names}, but the folder lacks {names.removeprefix('train.x.fr, ')}"
    )


def numbered(count: int) -> list[Example]:
    return [Example(Path("raw"), number, (str(number),), ("x",)) for number in range(count)]


def test_samples_are_drawn_evenly_in_order_and_again():
    drawn = [example.where for example in sample(numbered(100), 10, seed=1)]
    assert drawn == sorted(set(drawn))
    assert len(drawn) == 10
    assert drawn == [example.where for example in sample(numbered(100), 10, seed=1)]
    assert drawn != [example.where for example in sample(numbered(100), 10, seed=2)]
    # 2,000 draws of 2 of 8: each example is expected in 500, with a standard deviation of 19.
    counts = [0] * 8
    for seed in range(2000):
        for example in sample(numbered(8), 2, seed):
            counts[int(example.source[0])] += 1
    assert all(abs(count - 500) < 100 for count in counts)


def test_no_more_than_there_are():
    assert list(sample(numbered(3), 10, seed=1)) == numbered(3)


@pytest.mark.parametrize(("name", "what"), [("train.src", "source"), ("train.tgt", "target")])
def test_an_empty_line_is_reported_under_the_name_of_its_file(tmp_path, malformed, name, what):
    for split in ("train", "valid", "test"):
        for side in ("src", "tgt"):
            (tmp_path / f"{split}.{side}").write_text("a\nb\n")
    (tmp_path / name).write_text("a\n\n")
    with pytest.raises(UserError, match=rf"{tmp_path / name}:2: the {what} is empty"):
        write_corpus(read_line_aligned(tmp_path, [PLAIN], malformed), tmp_path / "corpus", malformed)
