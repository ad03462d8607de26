"""``s2sft prepare`` on small files of each benchmark in its raw format."""

import pytest
from raw_corpora import RAW, UNDERSTANDING

from s2sft_fairseq.recipes.benchmarks import BENCHMARKS

# The numbers of lines of files that differ from the usual ones.
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


def test_fewer_pairs_than_are_drawn(tmp_path, call_command):
    RAW["gigaword"](tmp_path / "raw")
    words = ("prepare", "gigaword", "--raw", "raw", "--size")
    done = call_command(*words, "10k", "--output", "small")
    assert "--size 10k takes all 12 training pairs, for there are not 10,000" in done.stderr
    assert "training pairs" not in call_command(*words, "full", "--output", "full").stderr


def test_malformed_pairs_are_not_drawn(tmp_path, call_command):
    """The sample has its full size although some pairs are left out."""
    lines = {side: [f"{side} {number}" for number in range(10_003)] for side in ("src", "tgt")}
    lines["tgt"][5] = lines["src"][7] = " "
    (tmp_path / "raw").mkdir()
    for split in ("train", "valid", "test"):
        for side in ("src", "tgt"):
            kept = lines[side][: None if split == "train" else 4]
            (tmp_path / "raw" / f"{split}.{side}").write_text("".join(f"{line}\n" for line in kept))
    done = call_command("prepare", "gigaword", "--raw", "raw", "--output", "small", "--size", "10k", "--skip-malformed")
    assert "train 10,000" in done.stdout
    assert "left out 2 malformed records" in done.stderr
