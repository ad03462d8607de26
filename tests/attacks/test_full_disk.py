"""A disk that is full while a training saves: no complete file from before is lost.

Needs root, to mount a small file system. `pytest -m "" -s tests/attacks/test_full_disk.py` prints what remained.
"""

import json
import subprocess
import time
from pathlib import Path

import pytest
import torch
from processes import S2SFT, environment

EVERY = 20  # updates from one save to the next


@pytest.fixture
def disk(tmp_path):
    """A disk of 2 MB; a checkpoint of the tiny model takes 60 kB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("a file system can be mounted by root alone")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill(disk: Path) -> None:
    with (disk / "filler").open("wb", buffering=0) as file:
        for size in (1 << 16, 1):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError:
                continue


def train_on_a_full_disk(disk: Path, words: tuple, seconds: float) -> tuple[int, str]:
    """Train; the disk is full from the first save until `seconds` after the second one began.

    Returns:
        The exit status, and all output.
    """
    lines, was_filled = [], False
    command = [*S2SFT, "train", *map(str, words), "--save-dir", str(disk / "checkpoints")]
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        for line in process.stdout:
            lines.append(line)
            if "| Saved checkpoint" in line and not was_filled:
                fill(disk)
                was_filled = True
            elif "| Saving checkpoint to" in line and (disk / "filler").exists():
                time.sleep(seconds)
                (disk / "filler").unlink()
        return process.wait(), "".join(lines)


def updates_of(path: Path) -> int | None:
    """Return the update at which a checkpoint was saved; None if it cannot be read."""
    try:
        return torch.load(path, weights_only=True)["optimizer_history"][-1]["num_updates"]
    except Exception:  # a damaged file can raise any exception
        return None


@pytest.mark.parametrize(
    "seconds", [1, pytest.param(4, marks=pytest.mark.slow), pytest.param(20, marks=pytest.mark.slow)]
)
@pytest.mark.process
def test_training(disk, tiny_data, tiny_options, seconds):
    saves = ("--save-interval", 1000, "--save-interval-updates", EVERY, "--keep-interval-updates", 1)
    words = (tiny_data, *tiny_options.training, *saves, "--max-update", 2 * EVERY)
    status, output = train_on_a_full_disk(disk, words, seconds)
    left = {path.name: updates_of(path) for path in sorted((disk / "checkpoints").glob("*.pt"))}
    others = {path.name for path in (disk / "checkpoints").iterdir()} - left.keys()
    print(f"\nfull for {seconds} s: exit status {status}; {left}\n{output[-300:] if status else ''}")
    assert None not in left.values() and others <= {"status.json"}
    if seconds < 5:
        assert (status, left["checkpoint_last.pt"]) == (0, 2 * EVERY)
        assert left[f"checkpoint_1_{EVERY}.pt" if 2 * EVERY not in left.values() else "checkpoint_best.pt"]
        assert json.loads((disk / "checkpoints" / "status.json").read_text())["state"] == "done"
    else:
        assert status not in (0, None)
        assert left["checkpoint_last.pt"] == EVERY
        message = output[output.rindex("error: ") :]
        assert str(disk / "checkpoints") in message and "needs" in message and "free" in message
