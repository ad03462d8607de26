"""``s2sft rerank``: from a recorded search to texts."""

import json

from called import call


def hypothesis(text, *scores):
    tokens = [*text.split(), "[SEP]"]
    return {"text": text, "score": 0.0, "tokens": tokens, "positional_scores": list(scores)}


LINES = [
    {"index": 0, "hypotheses": [hypothesis("a", -1.0, -1.0), hypothesis("a b\nc", -1.0, -1.0, -0.5, -0.5)]},
    {"index": 1, "hypotheses": [hypothesis("é", -2.0, -1.0)]},
    {"index": 2, "hypotheses": []},
]


def test_texts_and_objects(tmp_path):
    (tmp_path / "search.jsonl").write_text("".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in LINES))
    words = ("rerank", "--input", "search.jsonl", "--output")
    for options, best in (
        (("--lenpen", 0), "a"),
        ((), "a b c"),
        (("--length-penalty", "gnmt", "--lenpen", "0.1"), "a"),
    ):
        done = call(tmp_path, *words, "out", *options, "--overwrite")
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "out").read_text(encoding="utf-8") == f"{best}\né\n\n"
    done = call(tmp_path, *words, "new.jsonl", "--nbest", 2)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in (tmp_path / "new.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [[one["text"] for one in each["hypotheses"]] for each in found] == [["a b\nc", "a"], ["é"], []]
    assert [one["score"] for one in found[0]["hypotheses"]] == [-0.75, -1.0]
    again = call(tmp_path, "rerank", "--input", "new.jsonl", "--output", "again", "--lenpen", 0)
    assert again.returncode == 0 and (tmp_path / "again").read_text(encoding="utf-8") == "a\né\n\n"


def test_mistakes(tmp_path):
    (tmp_path / "out").write_text("x\n")
    words = ("--input", "test.txt", "--output", "out", "--nbest", 2, "--lenpen", "nan")
    done = call(tmp_path, "rerank", *words)
    assert done.returncode == 2
    for option in (
        "--input must be a .jsonl file",
        "--output out exists already",
        "--nbest 2 needs",
        "--lenpen must be",
    ):
        assert option in done.stderr
    done = call(tmp_path, "rerank", "--input", "no.jsonl", "--output", "a.gz", "--nbest", 0)
    for option in ("--input must be a file", "must not end in .gz", "--nbest must be at least 1"):
        assert option in done.stderr
    assert (tmp_path / "out").read_text() == "x\n"


def test_the_record_is_not_replaced(tmp_path):
    record = tmp_path / "search.jsonl"
    record.write_text(f"{json.dumps(LINES[0])}\n")
    before = record.read_text()
    done = call(tmp_path, "rerank", "--input", "search.jsonl", "--output", "./search.jsonl", "--overwrite")
    assert done.returncode == 2 and "--output must be another file than --input" in done.stderr
    assert record.read_text() == before


def test_no_hypothesis_is_long_enough(tmp_path):
    (tmp_path / "search.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in LINES))
    words = ("rerank", "--input", "search.jsonl", "--output", "out", "--min-len")
    done = call(tmp_path, *words, 3)
    assert done.returncode == 0 and (tmp_path / "out").read_text() == "a b c\n\n\n"
    assert "1 of 2 recorded searches have no hypothesis of --min-len 3 tokens" in done.stdout + done.stderr
    done = call(tmp_path, *words, 4, "--overwrite")
    assert done.returncode == 2 and "2 of 2 recorded searches have no hypothesis of --min-len 4" in done.stderr
    assert (tmp_path / "out").read_text() == "a b c\n\n\n"
