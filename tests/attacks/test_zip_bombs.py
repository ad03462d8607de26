"""Small files that unpack to more than memory: a member of a checkpoint, a line, a corpus."""

import gzip
import io
import json
import time
import zipfile
import zlib
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils
from hostile_files import forget_peak, most_memory
from raw_corpora import squad

from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.checkpoints.source_files import open_source
from s2sft_fairseq.corpora.pairs import USUAL, read_pairs
from s2sft_fairseq.corpora.reading import Malformed
from s2sft_fairseq.corpora.squad import read_squad
from s2sft_fairseq.data.bounded_files import LARGEST_FILE, LONGEST_LINE, read_json
from s2sft_fairseq.data.text_files import check_text, read_lines
from s2sft_fairseq.errors import UserError


@pytest.mark.parametrize("member", ["data.pkl", "data/0"])
def test_a_member_that_inflates(tmp_path, member):
    """PyTorch would unpack 300 MB from 300 kB."""
    whole = io.BytesIO()
    torch.save({"a": torch.zeros(4)}, whole)
    path = tmp_path / "pytorch_model.bin"
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(path, "w") as bomb:
        for entry in source.infolist():
            is_member = entry.filename.endswith(member)
            content = source.read(entry) + bytes(300_000_000) * is_member
            bomb.writestr(entry.filename, content, zipfile.ZIP_DEFLATED if is_member else zipfile.ZIP_STORED)
    assert path.stat().st_size < 10**6
    before = forget_peak()
    for load in (load_checkpoint, lambda path: checkpoint_utils.load_checkpoint_to_cpu(str(path)), open_source):
        with pytest.raises(UserError, match=rf"pytorch_model\.bin: refused, .*.*/{member}' to 300,000,\d\d\d bytes"):
            load(path)
    assert most_memory() - before < 10**8


def packed(path: Path, size: int, before: bytes = b"", unit: bytes = b"a", after: bytes = b"") -> Path:
    """Write a ``.gz`` of about this many bytes that repeat a unit."""
    pack, block = zlib.compressobj(9, wbits=31), unit * (2**20 // len(unit))
    parts = (pack.compress(part) for part in (before, *([block] * (size // 2**20)), after))
    path.write_bytes(b"".join([*parts, pack.flush()]))
    return path


def test_a_line_of_256_megabytes(tmp_path):
    path = packed(tmp_path / "a.jsonl.gz", 2**28, b'{"src": "a", "tgt": "b"}\n' * 3)
    assert path.stat().st_size < 300_000
    message = rf"a\.jsonl\.gz, line 4: must have at most {LONGEST_LINE:,} bytes, but has more"
    malformed = Malformed()
    for read in (
        lambda: list(read_pairs([path], USUAL, malformed)),
        lambda: check_text(path),
        lambda: list(read_lines(path)),
    ):
        with pytest.raises(UserError, match=message):
            read()


def test_a_long_line_that_is_not_compressed(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo\n" + b"a" * (LONGEST_LINE + 2**21) + b"\n")
    with pytest.raises(UserError, match=r"a\.txt, line 3: must have at most 67,108,864 bytes"):
        check_text(path)
    path.write_bytes(b"a" * LONGEST_LINE)
    assert check_text(path).lines == 1


def test_a_corpus_that_unpacks_to_more_than_memory(tmp_path):
    squad(tmp_path)
    (tmp_path / "dev-v1.1.json.gz").unlink()
    path = packed(tmp_path / "train-v1.1.json.gz", LARGEST_FILE + 2**21)
    (tmp_path / "train-v1.1.json").unlink()
    (tmp_path / "dev-v1.1.json").write_text("{}")
    assert path.stat().st_size < 300_000
    with pytest.raises(UserError, match=rf"train-v1\.1\.json\.gz: must have at most {LARGEST_FILE:,} bytes, unpacked"):
        read_squad(tmp_path, Malformed())


@pytest.mark.parametrize("unit", [b"[],", b'{"a":0},', b"1,", b'"ab",', b"[[],[]],"])
def test_json_of_millions_of_values(tmp_path, unit):
    """Python takes 2 GB for the lists of a file of 65 kB."""
    whole = packed(tmp_path / "a.json.gz", 2**26, b"[", unit, b"0]")
    line = packed(tmp_path / "a.jsonl.gz", 2**26 - 2**20, b'{"src": [', unit, b'0], "tgt": "b"}\n')
    assert max(whole.stat().st_size, line.stat().st_size) < 100_000
    malformed = Malformed()
    before, start = forget_peak(), time.process_time()
    with pytest.raises(
        UserError, match=r"a\.json\.gz must be JSON: its text and values may need more than 943,718,400 bytes"
    ):
        read_json(whole)
    assert list(read_pairs([line], USUAL, malformed)) == []
    assert malformed.lines() == [f"{line}:1: is not valid JSON"]
    assert most_memory() - before < 2**29
    assert time.process_time() - start < 5


# A value, and how many fit just below the limit.
LARGEST = {
    "lists": ("[" * 98 + "]" * 98, 37_000),
    "objects": ('{"a":' * 98 + "0" + "}" * 98, 17_000),
    "texts": ('"\U0001f600"', 6_800_000),
    "numbers": ("300", 8_500_000),
    "letters": ("a", 110 * 2**20),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGEST)
def test_json_that_is_just_not_too_large(tmp_path, name):
    value, count = LARGEST[name]
    path = tmp_path / "a.json"
    # An emoji makes Python use four bytes for each character; the first one is written as two halves.
    around = ('["\\ud83d\\ude00\U0001f600', '"]') if name == "letters" else ("[", "0]")
    with path.open("w", encoding="utf-8") as file:
        file.write(around[0])
        for _ in range(count // 1000):
            file.write(f"{value}{'' if name == 'letters' else ','}" * 1000)
        file.write(around[1])
    before = forget_peak()
    assert read_json(path)
    assert most_memory() - before < 2**30


@pytest.mark.slow
def test_the_largest_tokenizer(tmp_path):
    """That of XLM-V has 901,629 pieces with their scores; one line for each value is the library's own format."""
    path = tmp_path / "tokenizer.json"
    pieces = [[f"\u2581{number:06}\U0001f600", -12.345678] for number in range(901_629)]
    path.write_text(json.dumps(pieces, indent=2, ensure_ascii=False), encoding="utf-8")
    assert read_json(path) == pieces


def test_two_files_in_one_gz(tmp_path):
    """This is valid: gzip files can be concatenated."""
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"one\n") + gzip.compress(b"two\n"))
    assert check_text(tmp_path / "a.txt.gz").lines == 2
    assert list(read_lines(tmp_path / "a.txt.gz")) == ["one", "two"]
