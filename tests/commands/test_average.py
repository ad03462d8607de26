"""``s2sft average``: which checkpoints it averages, and which it refuses."""

import pytest
import torch

from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint


def write(path, value):
    torch.save({"cfg": {}, "model": {"table": torch.full((2, 2), float(value))}}, path)


def test_the_last_a_pattern_and_the_best(tmp_path, call_command):
    write(tmp_path / "checkpoint1.pt", 2)
    write(tmp_path / "checkpoint2.pt", 4)
    done = call_command("average", ".", "--last", 2, "--output", "average.pt")
    assert load_checkpoint(tmp_path / "average.pt")["model"]["table"].tolist() == [[3, 3], [3, 3]]
    assert done.stdout == "average.pt: the average of checkpoint1.pt, checkpoint2.pt\n"
    done = call_command("average", ".", "--pattern", "checkpoint?.pt", "--output", "average.pt")
    assert done.stdout == "average.pt: the average of checkpoint1.pt, checkpoint2.pt\n"
    write(tmp_path / "checkpoint.best_loss_1.0000.pt", 7)
    call_command("average", ".", "--best", 1, "--output", "average.pt")
    assert load_checkpoint(tmp_path / "average.pt")["model"]["table"].tolist() == [[7, 7], [7, 7]]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--last", 0), "--last must be at least 1, but is 0"),
        (("--pattern", "none*"), "has no file whose name matches --pattern none"),
        (("--pattern", "/*.pt"), "--pattern must be of names in the folder, but is /*.pt"),
        (("--last", 1, "--output", "nowhere/average.pt"), "--output nowhere/average.pt: its folder does not exist"),
        (("--last", 1, "--output", "checkpoint1.pt"), "--output must be another file than those that are averaged"),
    ],
)
def test_mistakes(tmp_path, call_command, words, problem):
    write(tmp_path / "checkpoint1.pt", 2)
    failed = call_command("average", ".", "--output", "average.pt", *words, status=2)
    assert problem in failed.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint1.pt"]
