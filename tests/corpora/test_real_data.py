"""The parsers on the published data, if it is next to this checkout: the numbers of examples are the known ones."""

import csv
import gzip
import json
import shutil
from itertools import islice
from pathlib import Path

import pytest

from s2sft_fairseq.corpora.data_to_text import read_e2e
from s2sft_fairseq.corpora.glue import read_glue
from s2sft_fairseq.corpora.line_aligned import GIGAWORD, multi30k, read_line_aligned, sample
from s2sft_fairseq.corpora.reading import read_data_list
from s2sft_fairseq.corpora.squad import read_squad, read_squad_questions
from s2sft_fairseq.evaluation.answers import answer_words
from s2sft_fairseq.question_answering.squad_windows import WindowMaker
from s2sft_fairseq.tokenization.folder import open_tokenizer

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"


@pytest.fixture(autouse=True)
def shared_data() -> None:
    """Skip if the data is missing."""
    if not SHARED.is_dir():
        pytest.skip("../shared/data, the folder with the real data sets, is not beside this checkout")


def lines(path: Path) -> list[str]:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return text.decode().removesuffix("\n").split("\n")


@pytest.fixture
def squad_folder(tmp_path: Path) -> Path:
    """The raw folder: the published files, and the list of test articles, taken from the test set of Du et al."""
    for name in ("train-v1.1.json.gz", "dev-v1.1.json.gz"):
        (tmp_path / name).symlink_to(SHARED / "squad_v1.1" / name)
    passages = {line.partition(" [SEP] ")[0] for line in lines(SHARED / "squad_qg" / "test.src.gz")}
    titles = [
        article["title"]
        for article in read_data_list(tmp_path / "train-v1.1.json.gz")
        if " ".join(article["paragraphs"][0]["context"].split()) in passages
    ]
    (tmp_path / "doclist-test.txt").write_text("".join(f"{title}\n" for title in titles), encoding="utf-8")
    assert len(titles) == 44
    return tmp_path


def test_squad(squad_folder, malformed, pairs, sizes):
    """The pairs of the independently made text files; the order of articles differs."""
    for split, examples in read_squad(squad_folder, malformed).items():
        expected = zip(*(lines(SHARED / "squad_qg" / f"{split}.{side}.gz") for side in ("src", "tgt")), strict=True)
        found = [(source, target) for source, (target,) in pairs(examples)]
        assert len(found) == {"train": 75_722, "valid": 10_570, "test": 11_877}[split]
        assert sorted(found) == sorted(expected)
    swapped = read_squad(squad_folder, malformed, reversed_split=True)
    assert sizes(swapped) == {"train": 75_722, "valid": 11_877, "test": 10_570}
    assert not malformed.records


def test_e2e(tmp_path, malformed, pairs):
    for split, name in (("train", "trainset"), ("valid", "devset"), ("test", "testset_w_refs")):
        rows = zip(*(lines(SHARED / "e2e" / f"{split}.{side}") for side in ("src", "tgt")), strict=True)
        with (tmp_path / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([("mr", "ref"), *rows])
    splits = {split: pairs(examples) for split, examples in read_e2e(tmp_path, malformed).items()}
    assert not malformed.records
    assert {split: len(found) for split, found in splits.items()} == {"train": 42_061, "valid": 547, "test": 630}
    assert [sum(len(refs) for _, refs in splits[split]) for split in ("valid", "test")] == [4_672, 4_693]
    for split in ("valid", "test"):
        expected = [json.loads(line) for line in lines(SHARED / "e2e" / f"{split}.multi.jsonl")]
        assert sorted(splits[split]) == sorted((record["src"], record["refs"]) for record in expected)


def test_gigaword(malformed, pairs, sizes):
    splits = read_line_aligned(SHARED / "gigaword", GIGAWORD, malformed)
    assert sizes(splits) == {"train": 10_000, "valid": 1_000, "test": 1_951}
    train = read_line_aligned(SHARED / "gigaword", GIGAWORD, malformed)["train"]
    drawn = pairs(sample(train, 500, seed=1))
    assert len({source for source, _ in drawn}) > 490
    assert not malformed.records


def test_multi30k(malformed, sizes):
    splits = read_line_aligned(SHARED / "multi30k_en-de", multi30k("en", "de"), malformed)
    assert sizes(splits) == {
        **{"train": 29_000, "valid": 1_014, "test": 1_000},
        **{"test_2017_flickr": 1_000, "test_2017_mscoco": 461},
    }
    assert not malformed.records


@pytest.mark.parametrize(
    ("task", "counts"),
    [
        ("cola", {"train": 8_551, "valid": 1_043}),
        ("sst-2", {"train": 67_349, "valid": 872}),
        ("mrpc", {"train": 3_668, "valid": 408, "test": 1_725}),
    ],
)
def test_glue(malformed, sizes, task, counts):
    assert sizes(read_glue(SHARED / "glue", task, malformed)) == counts
    assert not malformed.records


def test_answers_from_windows(tmp_path, malformed):
    """The text of an answer's tokens is the answer, except for some answers that are a part of a word."""
    shutil.copy(SHARED / "vocab" / "bert-base-uncased-vocab.txt", tmp_path / "vocab.txt")
    windows = WindowMaker(open_tokenizer(tmp_path), max_positions=128, stride=32)
    questions = list(islice(read_squad_questions(SHARED / "squad_v1.1" / "dev-v1.1.json.gz", malformed), 0, None, 20))
    assert len(questions) > 500
    same = 0
    for question in questions:
        made, lines = windows.make(question)
        assert len(lines) == len(made.windows)
        assert max(len(line.split()) for line in lines) <= 126
        first, last = made.answer
        found = question.passage[made.offsets[first][0] : made.offsets[last][1]]
        same += answer_words(found) == answer_words(question.answers[0][0])
        assert any(start > 0 for start, _ in made.labels()) or last - first > 60
    assert same >= 0.99 * len(questions)
    assert not malformed.records
