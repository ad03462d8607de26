"""Damaged and hostile files of every kind: a reader returns or raises `UserError`, whatever its file contains."""

import os
import resource
import time
from pathlib import Path

import pytest
from damaged_files import CHOICES, KINDS, PLACES, Damage, damaged
from file_readers import READERS
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from s2sft_fairseq.errors import UserError

SHORT, LONG = 80, int(os.environ.get("S2SFT_FUZZ_INPUTS", "100000"))
MOST_SECONDS, MOST_MEMORY = 5, 2**30

DAMAGES = st.lists(
    st.builds(Damage, st.sampled_from(KINDS), st.integers(0, PLACES - 1), st.integers(0, CHOICES - 1)),
    min_size=1,
    max_size=3,
)


def memory() -> int:
    """Return the peak memory of this process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def fuzz(name: str, folder: Path, inputs: int) -> dict[str, int]:
    """Read a number of damaged folders; return how many were read and how many were refused."""
    reader = READERS[name]
    reader.write(folder)
    reader.read(folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    valid = {path: path.read_bytes() for path in files}
    outcomes = {"read": 0, "refused": 0}
    before = memory()

    @settings(
        max_examples=inputs,
        derandomize=True,
        database=None,
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

    read()
    assert memory() - before < MOST_MEMORY
    return outcomes


@pytest.mark.parametrize("name", READERS)
def test_a_few(name, tmp_path):
    outcomes = fuzz(name, tmp_path, SHORT)
    assert outcomes["refused"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_many(name, tmp_path):
    """100,000 inputs, or the number in the variable S2SFT_FUZZ_INPUTS; the same ones in each run."""
    outcomes = fuzz(name, tmp_path, LONG)
    print(f"{name}: {outcomes}")
    assert outcomes["refused"] > 0
