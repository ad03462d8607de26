"""Small files that unpack to more than memory: a member of a checkpoint, a line, a corpus."""

import gzip
import io
import zipfile
import zlib
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils
from hostile_files import most_memory
from raw_corpora import squad

from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.checkpoints.source_files import open_source
from s2sft_fairseq.corpora.pairs import USUAL, read_pairs
from s2sft_fairseq.corpora.reading import Malformed
from s2sft_fairseq.corpora.squad import read_squad
from s2sft_fairseq.data.bounded_files import LARGEST_FILE, LONGEST_LINE
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
    before = most_memory()
    for load in (load_checkpoint, lambda path: checkpoint_utils.load_checkpoint_to_cpu(str(path)), open_source):
        with pytest.raises(UserError, match=rf"pytorch_model\.bin: refused, .*.*/{member}' to 300,000,\d\d\d bytes"):
            load(path)
    assert most_memory() - before < 10**8


def letters(path: Path, count: int, before: bytes = b"") -> Path:
    """Write a ``.gz`` of this many letters without a line end."""
    pack = zlib.compressobj(9, wbits=31)
    parts = [pack.compress(before), *(pack.compress(b"a" * 2**20) for _ in range(count // 2**20)), pack.flush()]
    path.write_bytes(b"".join(parts))
    return path


def test_a_line_of_256_megabytes(tmp_path):
    path = letters(tmp_path / "a.jsonl.gz", 2**28, b'{"src": "a", "tgt": "b"}\n' * 3)
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
    path = letters(tmp_path / "train-v1.1.json.gz", LARGEST_FILE + 2**21)
    (tmp_path / "train-v1.1.json").unlink()
    (tmp_path / "dev-v1.1.json").write_text("{}")
    assert path.stat().st_size < 300_000
    with pytest.raises(UserError, match=rf"train-v1\.1\.json\.gz: must have at most {LARGEST_FILE:,} bytes, unpacked"):
        read_squad(tmp_path, Malformed())


def test_two_files_in_one_gz(tmp_path):
    """This is valid: gzip files can be concatenated."""
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"one\n") + gzip.compress(b"two\n"))
    assert check_text(tmp_path / "a.txt.gz").lines == 2
    assert list(read_lines(tmp_path / "a.txt.gz")) == ["one", "two"]
