"""Damaged and hostile files of every kind: a reader returns or raises `UserError`, whatever its file contains."""

import os
import time
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import patch

import pytest
from damaged_files import CHOICES, KINDS, PLACES, Damage, damaged
from file_readers import READERS, Reader
from hostile_files import forget_peak, most_memory
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from s2sft_fairseq.errors import UserError

# Of PyTorch, when a damaged pickle names a type of its older releases.
pytestmark = pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning")

SHORT, LONG = 80, int(os.environ.get("S2SFT_FUZZ_INPUTS", "100000"))
SEED = int(os.environ.get("S2SFT_FUZZ_SEED") or f"{datetime.now(UTC):%Y%m%d}")
MOST_SECONDS, MOST_MEMORY = 5, 2**30

DAMAGES = st.lists(
    st.builds(Damage, st.sampled_from(KINDS), st.integers(0, PLACES - 1), st.integers(0, CHOICES - 1)),
    min_size=1,
    max_size=3,
)


def fuzz(name: str, folder: Path, inputs: int, number: int = SEED) -> dict[str, int]:
    """Read a number of damaged folders, which depend on a seed; return how many were read and how many were refused."""
    reader = READERS[name]
    reader.write(folder)
    reader.read(folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    valid = {path: path.read_bytes() for path in files}
    outcomes = {"read": 0, "refused": 0}
    before = forget_peak()

    @seed(number)
    @settings(
        max_examples=inputs,
        database=None,
        print_blob=True,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(st.sampled_from(files), DAMAGES)
    def read(path: Path, damages: list[Damage]) -> None:
        content = valid[path]
        for damage in damages:
            content = damaged(path.name, content, damage)
        path.write_bytes(content)
        start = time.process_time()
        try:
            reader.read(folder)
            outcomes["read"] += 1
        except UserError as error:
            outcomes["refused"] += 1
            assert any(name in str(error) for name in (folder.name, *(file.name for file in files))), str(error)
        finally:
            path.write_bytes(valid[path])
        assert time.process_time() - start < MOST_SECONDS

    try:
        # Constants in imported modules, which Hypothesis tries as values, depend on the tests that ran before.
        with patch.object(providers, "_get_local_constants", Constants, create=True):
            read()
    except BaseException as error:
        error.add_note(f"S2SFT_FUZZ_SEED={number} gives these inputs again")
        raise
    assert most_memory() - before < MOST_MEMORY
    return outcomes


@pytest.mark.parametrize("name", READERS)
def test_a_few(name, tmp_path):
    """The inputs are the same within a day (UTC), or those of the number in the variable S2SFT_FUZZ_SEED."""
    outcomes = fuzz(name, tmp_path, SHORT)
    assert outcomes["refused"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_many(name, tmp_path):
    """100,000 inputs, or the number in the variable S2SFT_FUZZ_INPUTS; the seed is as above."""
    outcomes = fuzz(name, tmp_path, LONG)
    print(f"{name}, seed {SEED}: {outcomes}")
    assert outcomes["refused"] > 0


def use(monkeypatch, read):
    """Add a reader of one file."""

    def write(folder):
        (folder / "a.txt").write_text("one two three\n" * 20)

    monkeypatch.setitem(READERS, "a.txt", Reader(write, lambda folder: read((folder / "a.txt").read_bytes())))


def test_a_seed_gives_the_same_inputs_again(tmp_path, monkeypatch):
    runs = []
    use(monkeypatch, lambda content: runs[-1].append(content))
    for number in (1, 2, 1):
        runs.append([])
        fuzz("a.txt", tmp_path, SHORT, number)
    assert runs[0] == runs[2] != runs[1]
    assert len(set(runs[0])) > SHORT // 2


def test_a_failure_can_be_repeated(tmp_path, monkeypatch):
    use(monkeypatch, lambda content: [content][content.count(b"\n") < 20])
    with pytest.raises(IndexError) as failure:
        fuzz("a.txt", tmp_path, SHORT, 7)
    notes = "\n".join(failure.value.__notes__)
    assert "S2SFT_FUZZ_SEED=7" in notes
    assert "Damage(" in notes
    assert "@reproduce_failure(" in notes


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="this system cannot measure a peak anew")
def test_memory_below_an_earlier_peak_is_noticed(tmp_path, monkeypatch):
    assert len(b"a" * 2**28) == 2**28
    monkeypatch.setitem(globals(), "MOST_MEMORY", 2**26)
    use(monkeypatch, lambda content: len(b"a" * 2**27))
    with pytest.raises(AssertionError, match="most_memory"):
        fuzz("a.txt", tmp_path, 2)
