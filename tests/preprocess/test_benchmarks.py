"""``s2sft prepare`` on small files of each benchmark in its raw format."""

import pytest
from raw_corpora import RAW, UNDERSTANDING

from s2sft_fairseq.corpora.benchmarks import BENCHMARKS

# Lines of each file, where they are others.
PAIRS = {"train": 12, "valid": 4, "dev": 4, "test": 4}
LINES = {
    "squad_qg": {**PAIRS, "train": 8},
    "e2e": {**PAIRS, "dev": 2, "test": 2},
    "multi30k": {**PAIRS, "test_2017_flickr": 3},
    "coqa": {"train": 12, "valid": 48, "dev": 12},
    "iwslt14": {"train": 67, "valid": 3, "dev": 3, "test": 10},
    "webnlg": {**PAIRS, "train": 24, "valid": 8},
}
FURTHER = {
    "gigaword": [("--size", "10k", "--seed", "3")],
    "multi30k": [("--source-lang", "de", "--target-lang", "en")],
    "squad_qg": [("--split", "reversed")],
    "wmt10": [("--from-english",)],
    "iwslt14": [("--from-english",)],
}


@pytest.mark.parametrize(("task", "options"), [(task, words) for task in RAW for words in [(), *FURTHER.get(task, [])]])
def test_raw_to_text(task, options, tmp_path, call_command):
    RAW[task](tmp_path / "raw")
    language = ("--lang", "zh") if task == "xqg" else ()
    done = call_command("prepare", task, "--raw", "raw", "--output", "corpus", *language, *options)
    expected = LINES.get(task, PAIRS)
    assert done.stdout == "corpus: " + ", ".join(f"{k} {v}" for k, v in expected.items()) + "\n"
    for name, lines in expected.items():
        side = "tgt" if name in ("train", "valid") else "refs.jsonl"
        for suffix in ("src", side):
            assert (tmp_path / "corpus" / f"{name}.{suffix}").read_bytes().count(b"\n") == lines


def test_every_benchmark_is_tested():
    assert set(BENCHMARKS) == {*RAW, *UNDERSTANDING}
