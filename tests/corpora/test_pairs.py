"""The user's own pairs: all formats, held-out pairs, and lines with errors."""

import gzip
import json

import pytest

from s2sft_fairseq.corpora.pairs import Fields, file_problems, hold_out, read_pairs, write_pairs
from s2sft_fairseq.corpora.reading import Malformed
from s2sft_fairseq.errors import UserError

PAIRS = [("a b", "A"), ("c", "C D"), ("e [SEP] f", "E")]
READ = [(("a b",), ("A",)), (("c",), ("C D",)), (("e ", " f"), ("E",))]


def lines(*texts):
    return "".join(f"{text}\n" for text in texts)


def json_lines(*records):
    return lines(*map(json.dumps, records))


def read(paths, fields=Fields()):  # noqa: B008
    malformed = Malformed()
    found = [(example.source, example.references) for example in read_pairs(paths, fields, malformed)]
    malformed.raise_any()
    return found


@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("ending", ["jsonl", "json", "tsv", "two files"])
def test_formats(tmp_path, ending, compressed):
    texts = {
        "jsonl": {"a.jsonl": json_lines(*({"src": source, "tgt": target, "id": 1} for source, target in PAIRS))},
        "json": {"a.json": json_lines(*({"src": source, "tgt": target, "id": 1} for source, target in PAIRS))},
        "tsv": {"a.tsv": lines(*map("\t".join, PAIRS))},
        "two files": {"a.de": lines(*(pair[0] for pair in PAIRS)), "a.en": lines(*(pair[1] for pair in PAIRS))},
    }[ending]
    paths = []
    for name, text in texts.items():
        paths.append(tmp_path / (f"{name}.gz" if compressed else name))
        paths[-1].write_bytes(gzip.compress(text.encode()) if compressed else text.encode())
    assert list(file_problems("--train", paths)) == []
    assert read(paths) == READ


def test_fields_and_references_of_json(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json_lines({"q": "one", "p": "two\nlines", "t": ["x", "y"]}))
    assert read([path], Fields(("q", "p"), "t")) == [(("one", "two\nlines"), ("x", "y"))]
    path.write_text(json_lines({"src": "one", "refs": ["x", "y"]}))
    assert read([path]) == [(("one",), ("x", "y"))]
    write_pairs({"train": [path], "valid": [path]}, tmp_path / "made")
    assert (tmp_path / "made" / "train.src").read_text() == "one\none\n"
    assert (tmp_path / "made" / "dev.refs.jsonl").read_text() == '{"refs": ["x", "y"]}\n'


def test_names_of_files(tmp_path):
    (tmp_path / "a.txt").touch()
    problems = [*file_problems("--train", [tmp_path / "a.txt"]), *file_problems("--valid", [tmp_path / "b"] * 3)]
    assert problems == [
        f"--train must be a .jsonl, .json, .tsv or .csv file, or two line-aligned files, but is {tmp_path}/a.txt alone",
        *[f"--valid {tmp_path}/b: no such file"] * 3,
        "--valid must be one file or two, but names 3",
    ]


def test_every_bad_line_is_named(tmp_path):
    train, valid = tmp_path / "train.jsonl", tmp_path / "valid.tsv"
    good = {"src": "a", "tgt": "b"}
    wrong = [
        "no json",
        "[]",
        '{"src": "a"}',
        '{"src": 1, "tgt": "b"}',
        '{"src": "a", "tgt": [1]}',
        '{"src": " ", "tgt": "b"}',
    ]
    train.write_text(lines(json.dumps(good), *wrong))
    valid.write_text(lines("a\tb", "alone", "a\t"))
    with pytest.raises(UserError) as error:
        write_pairs({"train": [train], "valid": [valid]}, tmp_path / "made")
    heading, *problems = str(error.value).split("\n")
    assert heading.startswith(f"8 malformed records (2 in {valid}, 6 in {train})")
    assert problems == [
        f"  - {valid}:2: must have two columns, source and target, but has 1",
        f"  - {valid}:3: the target is empty",
        f"  - {train}:2: is not valid JSON",
        f"  - {train}:3: must be an object, but is []",
        f"  - {train}:4: lacks 'tgt'",
        f"  - {train}:5: 'src' must be a text, but is 1",
        f"  - {train}:6: 'tgt' must be a text or a list of texts, but is [1]",
        f"  - {train}:7: the source is empty",
    ]
    assert not (tmp_path / "made").exists()
    stats = write_pairs({"train": [train], "valid": [valid]}, tmp_path / "made", skip_malformed=True)
    assert stats["lines"] == {"train": 1, "valid": 1, "dev": 1}
    (tmp_path / "short").write_text("a\n")
    (tmp_path / "long").write_text("a\nb\n")
    with pytest.raises(UserError, match=r"must have equally many lines, but .*short has 1, .*long has 2"):
        read([tmp_path / "short", tmp_path / "long"])


@pytest.mark.parametrize(
    ("pairs", "held_out"), [(5, 1), (200, 40), (1000, 50), (5000, 100), (60_000, 1000)]
)  # fmt: skip
def test_how_many_are_held_out(tmp_path, pairs, held_out):
    path = tmp_path / "a.tsv"
    path.write_text(lines(*(f"{number}\tx" for number in range(pairs))))
    examples = list(read_pairs([path], Fields(), Malformed()))
    assert sum(map(hold_out(examples), examples)) == held_out


def test_held_out_pairs_depend_on_the_sources_alone(tmp_path):
    pairs = [(f"source {number % 100}", f"target {number}") for number in range(250)]
    found = []
    for name, order in (("one", pairs), ("other", pairs[::-1])):
        path = tmp_path / f"{name}.tsv"
        path.write_text(lines(*map("\t".join, order)))
        stats = write_pairs({"train": [path]}, tmp_path / name)
        assert stats["settings"]["held out"]
        train, valid = ((tmp_path / name / f"{split}.src").read_text().splitlines() for split in ("train", "valid"))
        assert len(train) + len(valid) == 250 and not set(train) & set(valid)
        references = [
            json.loads(line)["refs"] for line in (tmp_path / name / "dev.refs.jsonl").read_text().splitlines()
        ]
        assert {len(each) for each in references} <= {2, 3} and sum(map(len, references)) == len(valid)
        found.append(set(valid))
    assert found[0] == found[1]


def test_too_few_to_hold_out(tmp_path):
    (tmp_path / "a.tsv").write_text("a\tb\n" * 4)
    with pytest.raises(UserError, match=r"--valid is needed: .* but it has 4"):
        write_pairs({"train": [tmp_path / "a.tsv"]}, tmp_path / "made")
    (tmp_path / "a.tsv").write_text("a\tb\n" * 9)
    with pytest.raises(UserError, match=r"--valid is needed: all 9 pairs of --train have the same source"):
        write_pairs({"train": [tmp_path / "a.tsv"]}, tmp_path / "made")


@pytest.mark.parametrize("text", ["", "article\theadline\n"])
def test_no_pairs(tmp_path, text):
    (tmp_path / "a.tsv").write_text(text)
    with pytest.raises(UserError, match=r"--train has no pairs"):
        write_pairs({"train": [tmp_path / "a.tsv"]}, tmp_path / "made")


def test_the_first_pairs_only(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text(lines(*(f"{number}\tx" for number in range(9))))
    stats = write_pairs({"train": [path], "valid": [path], "test": [path]}, tmp_path / "made", limit=2)
    assert stats["lines"] == {"train": 2, "valid": 2, "dev": 2, "test": 2}


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.jsonl", '{"article": "a", "highlights": "b"}\n' * 9,
         "a.jsonl:1: lacks 'src': it has article, highlights (--source and --target, or source= and target=, name"),
        ("a.jsonl", '{"src": "a", "tgt": NaN}\n' * 9, "a.jsonl:1: 'tgt' must be a text, but is nan"),
        ("a.jsonl", '[{"src": "a", "tgt": "b"}]\n', "a.jsonl:1: begins a JSON array: one object a line is needed"),
        ("a.jsonl", '["a", "b"]\n' * 9, "a.jsonl:1: must be an object, but is ['a', 'b']"),
        ("a.jsonl", '[\n{"src": "a", "tgt": "b"}\n]\n', "a.jsonl:1: begins a JSON array: one object a line is needed"),
        ("a.tsv", "a\tb\tc\n" * 9, "a.tsv:1: must have two columns, source and target, but has 3: 'a', 'b', 'c'"),
        ("a.csv", "a\0,b\n" * 9, "a.csv:1: holds a NUL character"),
    ],
)  # fmt: skip
def test_malformed_lines_come_before_a_missing_validation_set(tmp_path, name, text, problem):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError) as error:
        write_pairs({"train": [tmp_path / name]}, tmp_path / "made")
    heading, first, *_ = str(error.value).split("\n")
    assert "malformed records" in heading and "--valid" not in str(error.value)
    assert problem in first
    with pytest.raises(UserError, match=r"(--train has no pairs|--valid is needed: )(.|\n)*:1: "):
        write_pairs({"train": [tmp_path / name]}, tmp_path / "made", skip_malformed=True)


@pytest.mark.parametrize(("source", "names"), [("article", ("article",)), (["q", "p"], ("q", "p")), (("q",), ("q",))])
def test_fields_of_a_program(source, names):
    """A text is one name."""
    assert Fields.of(source, "t") == Fields(names, "t")


@pytest.mark.parametrize(
    ("source", "target", "problem"),
    [((), "t", "source must be a name or a list"), (7, "t", "source must be"), ([""], "t", "source must be"),
     ("s", 7, "target must be a name, but is 7"), ("s", "s", "must be different names, but are s, s")],
)  # fmt: skip
def test_fields_that_are_no_names(source, target, problem):
    with pytest.raises(UserError, match=problem):
        Fields.of(source, target)
