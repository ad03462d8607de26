"""Hypotheses of trained models for 500 sources in each mode of decoding, with scores, compared to recordings.

A recording is a text file of this folder. It has the score and the letters of the best hypothesis of each source, and
first a checksum of the whole output: all of the n best, and the scores of their tokens. On a processor that rounds like
the recording one, everything is equal to the last digit. On others a score may differ by 1e-5; and if two hypotheses
are nearly equal, rounding decides, so up to 1 % of the sources may have another hypothesis. To write the recordings
again, after a change that is meant to change them::

    OMP_NUM_THREADS=1 python -m pytest tests/golden/hypotheses --record

The models are checkpoints, ``NAME.pt.gz``, with 16-bit weights to be small. They have learned to write a few letters in
reverse order, replacing every fifth at random. The same command trains a missing model.
"""

import gzip
import hashlib
import io
import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import s2sft
from processor import fingerprint

from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.modules.cpu_linear import can_quantize

pytestmark = pytest.mark.rounding

FOLDER = Path(__file__).parent
SOURCES, LETTERS = 500, "abcdefgh"
SYMBOLS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS)
UPDATES = 1000

TRAINING = (
    *("--random-init", "--encoder-layers", 2, "--encoder-embed-dim", 32, "--encoder-ffn-embed-dim", 48),
    *("--encoder-attention-heads", 2, "--max-positions", 40, "--max-source-positions", 14),
    *("--max-target-positions", 16, "--dropout", 0, "--attention-dropout", 0, "--label-smoothing", 0),
    *("--lr", 0.003, "--lr-scheduler", "polynomial_decay", "--warmup-updates", 30, "--total-num-update", UPDATES),
    *("--max-update", UPDATES, "--batch-size", 20, "--seed", 3, "--cpu", "--num-workers", 0),
    *("--disable-validation", "--no-epoch-checkpoints", "--no-save-optimizer-state", "--log-format", "none"),
)
METHODS = ("pseudo_masked", "masked", "causal", "infilling")
MODELS: dict[str, tuple[Any, ...]] = {
    **{method: ("--arch", "unilm_tiny", "--finetune-method", method, *TRAINING) for method in METHODS},
    "deltalm": ("--arch", "deltalm_tiny", "-s", "src", "-t", "tgt", *TRAINING),
}

BEAM = ("--beam", 5, "--nbest", 3)
GNMT = ("--length-penalty", "gnmt", "--lenpen", 0.9)
MODES: dict[str, tuple[Any, ...]] = {
    "greedy": ("--beam", 1),
    "exact": (*BEAM, "--early-stop", "exact"),
    "fairseq": (*BEAM, "--early-stop", "fairseq"),
    "never": (*BEAM, *GNMT, "--early-stop", "never"),
    "sampled": ("--sampling", "--beam", 3, "--nbest", 3, "--seed", 7),
    "sampled_of_few": ("--sampling", "--sampling-topk", 3, "--temperature", 1.5, "--beam", 2, "--nbest", 2),
    "sampled_of_likely": ("--sampling", "--sampling-topp", 0.7, "--beam", 2, "--nbest", 2),
    "without_repetitions": (*BEAM, "--no-repeat-ngram-size", 1, "--no-repeat-ngram-ignore", "a|b"),
    "longer": (*BEAM, "--min-len", 6, "--lenpen", 0.5),
    "unfinished": (*BEAM, *GNMT, "--keep-unfinished", "--max-len-b", 3),
    "rank_each_step": (*BEAM, *GNMT, "--rank-each-step"),
    "draft_placeholders": ("--beam", 1, "--draft-placeholders", 2),
    "draft_source": ("--beam", 1, "--draft-source", 3),
    "prefix": (*BEAM, "--prefix-size", 2),
    "reference": ("--score-reference",),
    "bf16": (*BEAM, "--bf16"),
    "int8": ("--beam", 1, "--quantize", "int8", "--batch-size", SOURCES),
}
MODES["raw_text"] = MODES["exact"]
OTHER = {
    "causal": ("greedy", "exact", "sampled", "draft_source", "reference"),
    "masked": ("exact",),
    "infilling": ("greedy", "exact", "draft_placeholders", "rank_each_step", "reference"),
    "deltalm": ("greedy", "exact", "fairseq", "sampled", "longer", "prefix", "reference", "raw_text"),
    "pseudo_masked:masked": ("exact",),
}
RUNS = [f"{models}-{mode}" for models, modes in {"pseudo_masked": MODES, **OTHER}.items() for mode in modes]
FROM_BINARIZED = ("exact", "prefix", "reference")
"""Modes with binarized data, which print all digits of the scores; the other modes use raw text."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, recording: bool) -> Path:
    """A folder with the sources and their references, binarized as `data`, the dictionary, and the models."""
    folder, draw = tmp_path_factory.mktemp("hypotheses"), random.Random(4)

    def write(name: str, lines: list[str]) -> None:
        (folder / name).write_text("".join(f"{line}\n" for line in lines))

    def target(source: list[str]) -> list[str]:
        after = dict(zip(LETTERS, LETTERS[1:] + LETTERS[0], strict=True))
        return [letter if draw.random() < 0.8 else after[letter] for letter in source[::-1]]

    write("vocab.txt", list(SYMBOLS))
    write("dict.txt", [f"{symbol} 1" for symbol in SYMBOLS])
    for split, number in (("train", 600), ("test", SOURCES)):
        sources = [draw.choices(LETTERS, k=draw.choice((3, 4, 4, 4, 5))) for _ in range(number)]
        write(f"{split}.src", list(map(" ".join, sources)))
        write(f"{split}.tgt", [" ".join(target(source)) for source in sources])
    words = ("-s", "src", "-t", "tgt", "--trainpref", "train", "--testpref", "test", "--workers", 1)
    s2sft(folder, "preprocess", *words, "--srcdict", "dict.txt", "--joined-dictionary", "--destdir", "data")
    for model in MODELS:
        path = FOLDER / f"{model}.pt.gz"
        if recording and not path.exists():
            s2sft(folder, "train", "data", *MODELS[model], "--save-dir", model)
            path.write_bytes(gzip.compress(small(folder / model / "checkpoint_last.pt"), mtime=0))
        (folder / f"{model}.pt").write_bytes(gzip.decompress(path.read_bytes()))
    return folder


def small(checkpoint: Path) -> bytes:
    """Return a checkpoint file with 16-bit weights and without anything that decoding does not use."""
    state = load_checkpoint(checkpoint)
    state["model"] = {name: value.half() for name, value in state["model"].items()}
    state["extra_state"] = {"epoch": state["extra_state"]["train_iterator"]["epoch"]}
    state["cfg"]["common"]["user_dir"] = None
    file = io.BytesIO()
    torch.save(state, file)
    return file.getvalue()


def generated(data: Path, name: str) -> tuple[str, list[str]]:
    """Generate; return a checksum of everything, and a line for the best hypothesis of each source."""
    models, mode = name.split("-")
    path = ":".join(f"{model}.pt" for model in models.split(":"))
    words = ("--path", path, "--cpu", "--max-len-b", 8, "--batch-size", 250, "--num-workers", 0, *MODES[mode])
    words += ("-s", "src", "-t", "tgt") if models == "deltalm" else ()
    if mode in FROM_BINARIZED:
        printed = s2sft(data, "generate", "data", "--gen-subset", "test", *words)
        found = re.findall(r"^[HP]-(\d+)\t(.*)$", printed, re.M)
        found.sort(key=lambda line: int(line[0]))  # keeps the order of lines of one source
        best = dict(reversed([line for line in found if line[1].count("\t") == 1]))
        pairs = [best[str(number)].split("\t") for number in range(SOURCES)]
        return checksum("\n".join(map("\t".join, found))), [
            line_of(float(score), text.split()) for score, text in pairs
        ]
    raw = ("--tokenizer-dir", ".", "--input", "test.src", "--output", f"{name}.jsonl")
    s2sft(data, "generate", *raw, *words)
    written = (data / f"{name}.jsonl").read_text()
    best = [json.loads(line)["hypotheses"][0] for line in written.splitlines()]
    return checksum(written), [line_of(one["score"], one["tokens"]) for one in best]


def line_of(score: float, tokens: Sequence[str]) -> str:
    """Return a line of a recording; nine digits are enough for a float32 score."""
    return f"{score:.9g}\t{''.join(tokens).replace('[SEP]', '.')}"


def checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def compare(name: str, found: tuple[str, list[str]], recording: bool) -> None:
    """Compare with the recording, as exactly as this processor allows."""
    path, (all_found, best) = FOLDER / f"{name.replace(':', '+')}.txt", found
    assert len(best) == SOURCES
    if recording:
        path.write_text("".join(f"{line}\n" for line in (f"{fingerprint()} {all_found}", *best)))
    head, *expected = path.read_text().splitlines()
    processor, all_expected = head.split()
    if processor == fingerprint():
        assert best == expected
        assert all_found == all_expected, "the best hypotheses are equal, but not the others or the scores of tokens"
        return
    if name.endswith(("bf16", "int8")):
        pytest.skip("recorded on a processor that rounds otherwise")
    pairs = [(ours.split("\t"), theirs.split("\t")) for ours, theirs in zip(best, expected, strict=True)]
    scores = [(float(score), float(recorded)) for (score, text), (recorded, same) in pairs if text == same]
    assert len(scores) >= 0.99 * SOURCES
    ours, theirs = zip(*scores, strict=True)
    assert ours == pytest.approx(theirs, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("name", RUNS)
def test_generated(name, data, recording):
    if name.endswith("int8") and not can_quantize(torch.ones(1, 1)):
        pytest.skip("this CPU has no 8-bit kernels")
    compare(name, generated(data, name), recording)


def test_every_recording_has_a_run():
    assert {path.stem for path in FOLDER.glob("*.txt")} == {name.replace(":", "+") for name in RUNS}
