"""Passage and answer in one source: segment, limit and side per field in training; generation needs no option."""

import random

import pytest
from command_output import generated, scores

FIELDS = (
    *("--source-segments", "0,1", "--source-truncation", "right,left", "--source-field-positions", "9,4"),
    *("--max-source-positions", "12"),
)
TESTED = [
    "a b c [SEP] d e",
    "a b c d e f g h i j [SEP] a b c d e",
    "a b",
    "[SEP]",
    "",
    "a b c d e f g h [SEP] i [SEP] j",
]
# The remainder in 12 positions: 10 for the fields with the [SEP] between them, 11 without the last [SEP].
KEPT = {
    "pseudo_masked": ["a b c [SEP] d e", "a b c d e f [SEP] c d e", "a b", "", "", "a b c d e f [SEP] i [SEP] j"],
    "causal": ["a b c [SEP] d e", "a b c d e f g [SEP] c d e", "a b", "", "", "a b c d e f g [SEP] i [SEP] j"],
}


@pytest.fixture
def data(call_command, tmp_path, tiny_corpus, tiny_options):
    """Binarized passages and answers; the target is the answer."""
    draw = random.Random(2)
    raw = tmp_path / "raw"
    raw.mkdir()
    (raw / "dict.txt").write_text((tiny_corpus / "dict.txt").read_text())
    for split in ("train", "valid", "test"):
        pairs = [
            (
                " ".join(draw.choices("abcde", k=draw.randint(1, 9))),
                " ".join(draw.choices("fghij", k=draw.randint(1, 5))),
            )
            for _ in TESTED * 2
        ]
        sources = TESTED if split == "test" else [f"{passage} [SEP] {answer}" for passage, answer in pairs]
        (raw / f"{split}.src").write_text("".join(f"{line}\n" for line in sources))
        (raw / f"{split}.tgt").write_text("".join(f"{answer}\n" for _, answer in pairs[: len(sources)]))
    call_command("preprocess", *tiny_options.preprocess(raw, tmp_path / "data"))
    return tmp_path / "data"


@pytest.mark.parametrize("method", list(KEPT))
def test_passage_and_answer(data, call_command, tiny_options, tmp_path, method):
    call_command(
        *("train", data, *tiny_options.training, "--finetune-method", method, *FIELDS),
        *("--max-update", "30", "--save-dir", "saved"),
    )
    options = ("--path", "saved/checkpoint_last.pt", "--cpu", "--beam", "2", "--nbest", "2")
    by_generate = call_command("generate", data, *options)
    assert {number: texts[0] for number, texts in generated(by_generate.stdout, "S").items()} == dict(
        enumerate(KEPT[method])
    )
    # Empty fields have an empty hypothesis.
    assert [set(generated(by_generate.stdout)[number]) for number in (3, 4)] == [{""}, {""}]

    (tmp_path / "lines.txt").write_text("".join(f"{line}\n" for line in TESTED))
    by_interactive = call_command("interactive", data, *options, "--input", "lines.txt", "--buffer-size", "4").stdout
    assert generated(by_interactive) == generated(by_generate.stdout)
    for number, of_example in scores(by_generate.stdout).items():
        assert scores(by_interactive)[number] == pytest.approx(of_example, abs=1e-4)

    # With the whole reference as the prefix, its score is computed step by step.
    reference = scores(call_command("generate", data, *options[:3], "--score-reference").stdout)
    stepwise = scores(call_command("generate", data, *options[:3], "--beam", "1", "--prefix-size", "9").stdout)
    with_content = [number for number, kept in enumerate(KEPT[method]) if kept]
    for number in with_content:
        assert stepwise[number] == pytest.approx(reference[number], abs=2e-4)

    other = call_command("generate", data, *options[:3], "--score-reference", "--source-segments", "1,0")
    assert "--source-segments 1,0 overrides what the checkpoint was fine-tuned with, 0,1" in other.stderr
    # Some texts can have equal scores by chance.
    assert any(scores(other.stdout)[number] != pytest.approx(reference[number], abs=1e-3) for number in with_content)
