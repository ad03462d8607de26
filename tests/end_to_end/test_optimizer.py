"""Training with `fused_adamw`: accumulated gradients, all precisions, clipping, frozen parts."""

import re

import pytest
import torch

from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint

PLAIN = ("--dropout", "0", "--attention-dropout", "0")


@pytest.fixture
def train(call_command, tiny_data, tiny_options):
    """Train with `fused_adamw` up to an update; return the saved state and the log."""

    def run(folder, until, *words, data=tiny_data, status=0):
        options = (*tiny_options.training, "--optimizer", "fused_adamw", "--clip-norm", "1.0", "--disable-validation")
        done = call_command("train", data, *options, "--save-dir", folder, "--max-update", until, *words, status=status)
        return (load_checkpoint(f"{folder}/checkpoint_last.pt"), done.stdout) if status == 0 else done.stderr

    return run


def logged(name, output):
    return [float(value) for value in re.findall(rf"train_inner \| .* {name}=([\d.]+)", output)]


@pytest.fixture
def one_batch(call_command, tiny_corpus, tiny_options, tmp_path):
    """Data of 32 pairs of 3 to 8 letters."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for path in tiny_corpus.iterdir():
        lines = path.read_text().splitlines(keepends=True)
        (corpus / path.name).write_text("".join(lines[:32] if path.stem == "train" else lines))
    call_command("preprocess", *tiny_options.preprocess(corpus, tmp_path / "data"))
    return tmp_path / "data"


@pytest.mark.parametrize("weighting", [(), ("--sentence-avg",)], ids=["by labels", "by sentences"])
def test_accumulated_gradients_are_those_of_one_batch(train, one_batch, weighting):
    """Batches of different length are weighted by their labels: four of 8 pairs give the update of one of 32 pairs."""
    words = (*PLAIN, "--lr", "0.001", "--adam-eps", "1e-4", "--clip-norm", "0.6", *weighting)
    whole, output = train("whole", 6, *words, "--batch-size", 32, data=one_batch)
    parts, other_output = train("parts", 6, *words, "--batch-size", 8, "--update-freq", 4, data=one_batch)
    assert logged("bsz", output) == logged("bsz", other_output) == [32] * 6
    for name in ("loss", "nll_loss", "gnorm", "wpb"):
        assert logged(name, other_output) == pytest.approx(logged(name, output), abs=1.1e-3), name
    assert max(logged("gnorm", output)) > 0.6  # some were clipped
    assert whole["model"].keys() == parts["model"].keys()
    for name, value in whole["model"].items():
        torch.testing.assert_close(parts["model"][name], value, atol=1e-6, rtol=0, msg=name)


@pytest.mark.parametrize(
    "precision",
    [
        (),
        ("--fp16",),
        ("--fp16", "--weight-decay", "0"),
        ("--bf16",),
        ("--memory-efficient-fp16",),
        ("--memory-efficient-bf16",),
    ],
    ids=" ".join,
)
def test_learns_and_resumes_in_every_precision(train, precision):
    whole, output = train("whole", 8, *PLAIN, *precision)
    loss = logged("loss", output)
    assert loss[-1] < loss[0] - 0.2
    assert min(logged("gnorm", output)) > 0.1 and max(logged("gnorm", output)) < 20  # without the loss scale
    train("halves", 4, *PLAIN, *precision)
    halves, _ = train("halves", 8, *PLAIN, *precision)
    moments = [state["exp_avg"] for state in whole["last_optimizer_state"]["state"].values()]
    assert {moment.dtype for moment in moments} == {torch.float32}
    if not precision or "--memory-efficient" in precision[0]:
        assert all(torch.equal(halves["model"][name], value) for name, value in whole["model"].items())
    else:
        # fairseq does not save the 32-bit weights: resumed training starts from their 16 bits.
        for name, value in whole["model"].items():
            torch.testing.assert_close(halves["model"][name], value, atol=0.01, rtol=0.01, msg=name)


def test_resumes_in_another_precision(train):
    """On GPUs bfloat16 is the default, whatever the training began with; moments always have 32 bits."""
    first, _ = train("saved", 2, *PLAIN)
    for until, precision in enumerate(("--bf16", "--memory-efficient-bf16", "--fp16", "--amp", "--float32"), 3):
        last, output = train("saved", until, *PLAIN, precision)
        assert "another precision" in output
        assert f"@ {until - 1} updates" in output
    steps, moments = zip(
        *((s["step"], s["exp_avg"]) for s in last["last_optimizer_state"]["state"].values()), strict=True
    )
    assert {int(step) for step in steps} == {until}
    assert {moment.dtype for moment in moments} == {torch.float32}
    for name, value in first["model"].items():
        torch.testing.assert_close(last["model"][name], value, atol=0.05, rtol=0.05, msg=name)


def test_clipping_to_a_norm(train):
    """Adam is invariant to the scale of gradients, except for epsilon: gradients clipped to almost 0 change nothing."""
    before, _ = train("none", 1, *PLAIN, "--lr", "1e-30")
    after, output = train("clipped", 1, *PLAIN, "--clip-norm", "1e-9", "--weight-decay", "0")
    assert logged("gnorm", output)[0] > 0.1
    for name, value in before["model"].items():
        torch.testing.assert_close(after["model"][name], value, atol=1e-5, rtol=0)


def test_frozen_embeddings(train):
    first, output = train("saved", 1, *PLAIN, "--freeze-embeddings")
    assert re.search(r"[\d,]+ of [\d,]+ parameters are trained", output)
    last, _ = train("saved", 4, *PLAIN, "--freeze-embeddings")
    unchanged = {name for name, value in first["model"].items() if torch.equal(last["model"][name], value)}
    assert unchanged == {f"embeddings.{table}.weight" for table in ("tokens", "positions", "segments")}
    assert len(last["last_optimizer_state"]["state"]) == len(first["model"]) - 3


def test_resumed_with_other_parts_frozen(train):
    train("saved", 1, *PLAIN, "--freeze-embeddings")
    error = train("saved", 2, *PLAIN, status=2)
    assert re.match(
        r"error: the checkpoint's optimizer trains \d+ \+ \d+ parameters, but this run \d+ \+ \d+ parameters: give the "
        "options that it was trained with (.*), or --reset-optimizer",
        error,
    )
    train("saved", 2, *PLAIN, "--reset-optimizer")
