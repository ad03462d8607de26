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


def test_the_options_of_the_script_of_fairseq(tmp_path, call_command):
    for epoch, value in ((1, 2), (2, 4), (3, 9)):
        write(tmp_path / f"checkpoint{epoch}.pt", value)
        write(tmp_path / f"checkpoint_{epoch}_{epoch}00.pt", 10 * value)

    def averaged(*words):
        call_command("average", "--output", "average.pt", *words)
        return load_checkpoint(tmp_path / "average.pt")["model"]["table"][0, 0].item()

    assert averaged("--inputs", ".", "--num-epoch-checkpoints", 2) == 6.5
    assert averaged("--inputs", ".", "--num-epoch-checkpoints", 2, "--checkpoint-upper-bound", 2) == 3
    assert averaged("--inputs", ".", "--num-update-checkpoints", 1) == 90
    write(tmp_path / "checkpoint.best_loss_1.0000.pt", 7)
    assert averaged("--inputs", ".", "--num-best-checkpoints", 1) == 7
    assert averaged("--inputs", ".", "--num-update-checkpoints", 2, "--checkpoint-upper-bound", 250) == 30
    assert averaged("--inputs", "checkpoint1.pt", "checkpoint3.pt") == 5.5
    assert averaged(".", "--num-epoch-checkpoints", 1) == 9


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("--inputs", "."), "the checkpoints must be chosen by --last, --best, --pattern, --num-epoch-checkpoints"),
        ((".",), "the checkpoints must be chosen by --last, --best, --pattern, --num-epoch-checkpoints"),
        (("--last", 1), "one folder must be given, the --save-dir of the training, but is none"),
        (("a", "--inputs", "b", "--last", 1), "one folder must be given, the --save-dir of the training, but is a, b"),
        ((".", "--last", 1, "--checkpoint-upper-bound", 3), "--checkpoint-upper-bound needs --num-epoch-checkpoints"),
        ((".", "--num-epoch-checkpoints", 0), "--num-epoch-checkpoints must be at least 1, but is 0"),
        ((".", "--num-update-checkpoints", 1), "at least 1 checkpoints such as checkpoint_3_4000.pt, but holds 0"),
        ((".", "--num-epoch-checkpoints", 1, "--checkpoint-upper-bound", 0), "such as checkpoint3.pt, but holds 0"),
    ],
)
def test_mistakes_with_these_options(tmp_path, call_command, words, problem):
    write(tmp_path / "checkpoint1.pt", 2)
    failed = call_command("average", "--output", "average.pt", *words, status=2)
    assert problem in failed.stderr
