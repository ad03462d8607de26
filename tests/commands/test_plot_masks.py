"""`s2sft plot masks`: its options, their defaults and mistakes. The pictures are tested in `tests/plots`."""

import csv
import shlex
import sys

import numpy as np
import pytest

THANKS = "Thank you for inviting me to your party last week"


def rows_of(file) -> list[dict[str, str]]:
    with file.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def test_the_command(call_command, tmp_path):
    words = ["--method", "blocks", "--source", "x", "--target", "y z", "--block-length", "target"]
    done = call_command("plot", "masks", *words, "--output", str(tmp_path / "masks.png"))
    assert done.stdout == f"plot: wrote {tmp_path}/masks.png and {tmp_path}/masks.csv\n"
    assert (tmp_path / "masks.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "masks.csv").open(encoding="utf-8", newline="") as stream:
        heading, *rows = csv.reader(stream)
    assert heading[:7] == ["token", "position", "segment", "step", "group", "label", "section"]
    assert [row[0] for row in rows] == heading[7:]
    # One block, which sees the source and itself; no content is packed.
    assert np.array([row[7:] for row in rows]).astype(int).tolist() == [[1, 1, 1, 0, 0, 0]] * 3 + [[1] * 6] * 3


@pytest.mark.parametrize(
    ("words", "has_word_flow"),
    [
        ("", True),
        ("--block-length random:2", True),
        ("--block-length 2", False),
        ("--word-flow-weight 0", False),
        ("--block-length target --word-flow-weight 0.3", True),
    ],
)
def test_the_word_flow_of_blocks(words, has_word_flow, call_command, tmp_path):
    """Its default is that of training: with random lengths."""
    example = ["--method", "blocks", "--source", "x", "--target", "y z", "--output", "masks.svg"]
    call_command("plot", "masks", *example, *words.split())
    assert ("word flow" in {row["section"] for row in rows_of(tmp_path / "masks.csv")}) == has_word_flow


def test_the_command_with_spans(call_command, tmp_path):
    example = ["--source", "x", "--target", "a pub in the city", "--spans", "a pub", "in the city"]
    call_command("plot", "masks", "--method", "infilling", *example, "--output", "masks.svg")
    rows = [row for row in rows_of(tmp_path / "masks.csv") if row["section"] == "span flow"]
    assert [(row["label"], row["step"]) for row in rows] == [
        *(("a", "2"), ("pub", "2"), ("in", "4"), ("the", "4"), ("city", "4"), ("[SEP]", "7")),
    ]


def test_the_command_with_a_source_that_is_read_from_left_to_right(call_command, tmp_path):
    example = ["--source", "x", "--target", "y", "--source-visibility", "causal", "--output", "masks.svg"]
    call_command("plot", "masks", "--method", "causal", *example)
    assert [row["step"] for row in rows_of(tmp_path / "masks.csv")] == ["-1", "0", "1", "2"]


def test_the_command_with_a_text(call_command, tmp_path):
    words = ["--method", "unilmv2", "--text", "a b c d", "--output", "masks.svg"]
    call_command("plot", "masks", *words, "--block-prob", "0")
    rows = rows_of(tmp_path / "masks.csv")
    assert [row["section"] for row in rows] == ["context"] * 6 + ["originals", "placeholders"]  # 15 % of 4 is one
    further = ["--language-model", "ae", "--mask-ratio", "0.5", "--block-prob", "1", "--block-lengths", "2-2"]
    call_command("plot", "masks", *words, *further)
    rows = rows_of(tmp_path / "masks.csv")
    assert {row["section"] for row in rows} == {"context"} and sum(row["label"] != "" for row in rows) == 2


def test_the_command_of_deltalm(call_command, tmp_path):
    """The default takes out 15 % in spans of 3 tokens; a pair is drawn as it is."""
    call_command("plot", "masks", "--method", "deltalm", "--text", THANKS, "--output", "masks.svg")
    tokens = [row["token"] for row in rows_of(tmp_path / "masks.csv")]
    assert len(tokens) == 14 and tokens.count("<extra_id_0>") == 2
    further = ["--span-density", "0.4", "--mean-span-length", "2", "--seed", "2"]
    call_command("plot", "masks", "--method", "deltalm", "--text", THANKS, *further, "--output", "masks.svg")
    labels = [row["label"] for row in rows_of(tmp_path / "masks.csv") if row["section"] == "decoder"]
    assert " ".join(labels) == "<extra_id_0> for inviting <extra_id_1> last week </s>"
    call_command("plot", "masks", "--method", "deltalm", "--source", "x", "--target", "y", "--output", "masks.svg")
    assert [row["token"] for row in rows_of(tmp_path / "masks.csv")] == ["x", "</s>", "</s>", "y"]


PAIR = "--source x --target 'y z' --output masks.png"
MISTAKES = {
    "blocks": (
        "--method blocks --source ' ' --target y --block-length 0 --output masks.txt --target-mask-prob 1.5 "
        "--word-flow-weight 1",
        [
            "--source has no words",
            "--block-length must be a number from 1 on, random, random:N or target, but is '0'",
            "--output must end in .png, .svg, .pdf, but is masks.txt",
            "--target-mask-prob must be between 0 and 1, but is 1.5",
            "--word-flow-weight must be at least 0 and below 1, but is 1",
        ],
    ),
    "options of other methods": (
        f"{PAIR} --block-length 2 --noise-prob 0.5 --word-flow-weight 0.5 --text 'a b'",
        [
            "--block-length does nothing with --method pseudo_masked",
            "--noise-prob does nothing with --method pseudo_masked",
            "--word-flow-weight does nothing with --method pseudo_masked",
            "--text does nothing with --method pseudo_masked",
        ],
    ),
    "no texts": (
        "--output masks.png",
        ["--source is needed with --method pseudo_masked\n", "--target is needed with --method pseudo_masked\n"],
    ),
    "spans": (
        f"{PAIR} --method infilling --spans y 'z y' 'y [SEP]' 'a b c d' --word-flow-weight 0.5",
        [
            "--spans must be two or three words each, none of them special, but one is 'y'",
            "--spans must be two or three words each, none of them special, but one is 'y [SEP]'",
            "--spans must be two or three words each, none of them special, but one is 'a b c d'",
            "--spans must be words side by side in --target, but 'z y' are not",
            "--word-flow-weight does nothing with --method infilling",
        ],
    ),
    "spans of causal": (f"{PAIR} --method causal --spans 'y z'", ["--spans does nothing with --method causal"]),
    "unilmv2": (
        f"--method unilmv2 {PAIR} --mask-ratio 1 --block-prob 2 --block-lengths 6-2 --span-density 0.5 --spans 'y z'",
        [
            "--text is needed with --method unilmv2\n",
            "--mask-ratio must be above 0 and below 1, but is 1",
            "--block-prob must be between 0 and 1, but is 2",
            "--block-lengths must be a range of at least 1, such as 2-6, but is 6-2",
            "--source does nothing with --method unilmv2",
            "--target does nothing with --method unilmv2",
            "--span-density does nothing with --method unilmv2",
            "--spans does nothing with --method unilmv2",
        ],
    ),
    "unilmv2, words": (
        "--method unilmv2 --text '[SEP] [CLS]' --output masks.png",
        ["--text must have words besides special symbols, but is '[SEP] [CLS]'"],
    ),
    "deltalm, no texts": (
        "--method deltalm --output masks.png",
        [
            "--source is needed with --method deltalm, or --text",
            "--target is needed with --method deltalm, or --text",
        ],
    ),
    "deltalm, a text and a pair": (
        f"--method deltalm --text 'a b' {PAIR} --span-density 1 --mean-span-length 0.5 --mask-ratio 0.5",
        [
            "--source does nothing with --text",
            "--target does nothing with --text",
            "--span-density must be above 0 and below 1, but is 1",
            "--mean-span-length must be at least 1, but is 0.5",
            "--mask-ratio does nothing with --method deltalm",
        ],
    ),
    "deltalm, a pair": (
        f"--method deltalm {PAIR} --span-density 0.5 --mean-span-length 2",
        ["--span-density does nothing without --text", "--mean-span-length does nothing without --text"],
    ),
    "deltalm, words": (
        "--method deltalm --text a --output masks.png",
        ["--text must have at least 2 words with --method deltalm, but has 1"],
    ),
}


@pytest.mark.parametrize(("words", "stated"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(words, stated, call_command):
    """All at once."""
    said = call_command("plot", "masks", *shlex.split(words), status=2).stderr
    assert [text for text in stated if text not in said] == [], said


def test_masked_fine_tuning_masks_half_of_the_target(call_command, tmp_path):
    """The corruption is the paper's."""
    words = ["--method", "masked", "--source", "x", "--target", "a b c d e f g h i j", "--output", "masks.svg"]
    call_command("plot", "masks", *words)
    assert 0 < sum(row["label"] != "" for row in rows_of(tmp_path / "masks.csv")) < 11


def test_matplotlib_is_missing(call_command, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    words = ["--source", "x", "--target", "y", "--output", str(tmp_path / "masks.png")]
    assert "pip install matplotlib" in call_command("plot", "masks", *words, status=2).stderr
