"""The losses of a training in TensorBoard's files, read with TensorBoard's own reader."""

import pytest

from s2sft_fairseq.plots.training import parse

accumulators = pytest.importorskip(
    "tensorboard.backend.event_processing.event_accumulator", reason="the extra logging is not installed"
)


def test_two_trainings_in_a_process(call_command, tiny_data, tiny_options, tmp_path):
    """Each logs to its own folder, and all is on the disk when it ends."""
    for name in ("one", "two"):
        call_command(
            *("train", tiny_data, *tiny_options.training, "--max-update", 2, "--no-save", "--tensorboard-logdir", name)
        )
    for name in ("one", "two"):
        reader = accumulators.EventAccumulator(str(tmp_path / name / "train_inner"))
        reader.Reload()
        assert [event.step for event in reader.Scalars("loss")] == [1, 2]


def test_losses_of_a_training(call_command, tiny_data, tiny_options, tmp_path):
    call_command(
        *(
            "train",
            tiny_data,
            *tiny_options.training,
            "--max-update",
            3,
            "--save-dir",
            "saved",
            "--no-epoch-checkpoints",
        ),
        *("--log-interval", 1, "--log-format", "json", "--log-file", tmp_path / "train.log"),
        *("--tensorboard-logdir", "board", "--validate-interval-updates", 3),
    )
    logged = {"training": {}, "held out": {}}
    for line in (tmp_path / "train.log").read_text().splitlines():
        if parsed := parse(line):
            kind, record = parsed
            update = record.get("num_updates", record.get("valid_num_updates"))
            logged[kind][int(update)] = float(record["loss"])
    assert set(logged["training"]) == {1, 2, 3} and set(logged["held out"]) == {3}
    for kind, folder in (("training", "train_inner"), ("held out", "valid")):
        reader = accumulators.EventAccumulator(str(tmp_path / "board" / folder))
        reader.Reload()
        assert {event.step: event.value for event in reader.Scalars("loss")} == pytest.approx(logged[kind], abs=1e-3)
