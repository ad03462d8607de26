"""Averages of checkpoints, computed by hand, and the choice of checkpoints."""

import pytest
import torch

from s2sft_fairseq.checkpoints.averaging import (
    average_checkpoints,
    best_checkpoints,
    check_replaceable,
    last_checkpoints,
)
from s2sft_fairseq.errors import UserError


def write(path, value, *, maximize=False, **others):
    table = torch.full((2, 2), float(value))
    model = {
        "table": table,
        "output": table,
        "half": torch.tensor([value]).half(),
        "version": torch.tensor([3]),
        **others,
    }
    options = {"checkpoint": {"maximize_best_checkpoint_metric": maximize}}
    state = {"cfg": options, "model": model, "last_optimizer_state": {"step": value}, "task_state": {"n": value}}
    torch.save({**state, "extra_state": {"val_loss": value, "previous_training_time": 5}}, path)
    return path


def test_an_average_by_hand(tmp_path):
    paths = [write(tmp_path / f"{value}.pt", value) for value in (1, 2, 6)]
    state = average_checkpoints(paths)
    model = state["model"]
    assert model["table"].tolist() == [[3, 3], [3, 3]] and model["output"] is model["table"]
    assert model["half"].dtype == torch.float16 and model["half"].tolist() == [3]
    assert model["version"].tolist() == [3]
    assert state["last_optimizer_state"] is None and state["task_state"] == {"n": 1}
    names = ["1.pt", "2.pt", "6.pt"]
    # The held-out loss was that of the first alone.
    assert state["extra_state"] == {"previous_training_time": 5, "averaged_from": names}


def test_an_average_replaces_only_an_average(tmp_path):
    check_replaceable(tmp_path / "new.pt")
    other = write(tmp_path / "checkpoint_best.pt", 1)
    with pytest.raises(UserError, match=r"--output .*checkpoint_best\.pt"):
        check_replaceable(other)
    torch.save(average_checkpoints([other]), tmp_path / "average.pt")
    check_replaceable(tmp_path / "average.pt")


def test_checkpoints_that_do_not_belong_together(tmp_path):
    paths = [write(tmp_path / "a.pt", 1), write(tmp_path / "b.pt", 2, more=torch.ones(1))]
    torch.save({"model": {"table": torch.ones(3), "version": torch.tensor([2])}}, tmp_path / "c.pt")
    with pytest.raises(UserError) as error:
        average_checkpoints([*paths, tmp_path / "c.pt"])
    text = str(error.value)
    assert f"{paths[1]}: more is there, unlike in {paths[0]}" in text
    assert "c.pt: output is missing" in text and "c.pt: table has the shape (3,)" in text
    assert "c.pt: version is another number" in text
    torch.save({"weights": {}}, tmp_path / "d.pt")
    with pytest.raises(UserError, match=r"d\.pt must hold 'model', but holds weights"):
        average_checkpoints([tmp_path / "d.pt"])


def test_the_last_ones(tmp_path):
    for name in ("checkpoint1", "checkpoint2", "checkpoint10", "checkpoint_last", "checkpoint_best"):
        write(tmp_path / f"{name}.pt", 1)
    assert [path.name for path in last_checkpoints(tmp_path, 2)] == ["checkpoint2.pt", "checkpoint10.pt"]
    # Checkpoints within epochs, whose other checkpoints were saved at the end.
    for name in ("checkpoint_2_900", "checkpoint_2_1000", "checkpoint_11_9000"):
        write(tmp_path / f"{name}.pt", 1)
    names = ["checkpoint_2_1000.pt", "checkpoint2.pt", "checkpoint10.pt", "checkpoint_11_9000.pt"]
    assert [path.name for path in last_checkpoints(tmp_path, 4)] == names
    with pytest.raises(UserError, match=r"must hold at least 7 checkpoints such as .*, but holds 6"):
        last_checkpoints(tmp_path, 7)
    with pytest.raises(UserError, match="nowhere: no such folder"):
        last_checkpoints(tmp_path / "nowhere", 1)


@pytest.mark.parametrize(("maximize", "best"), [(False, ["9.4001", "10.2503"]), (True, ["31.0002", "10.2503"])])
def test_the_best_ones(tmp_path, maximize, best):
    for value in ("10.2503", "9.4001", "31.0002"):
        write(tmp_path / f"checkpoint.best_bleu_{value}.pt", 1, maximize=maximize)
    names = [f"checkpoint.best_bleu_{value}.pt" for value in best]
    assert [path.name for path in best_checkpoints(tmp_path, 2)] == names
