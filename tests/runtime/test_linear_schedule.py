"""The linear schedule ends with training, as far as its length is known."""

import re

import pytest

WARMUP = ("--lr-scheduler", "polynomial_decay", "--warmup-updates", "2")


@pytest.fixture
def rates(call_command, tiny_data, tiny_options):
    """Train, and return the learning rate of each update, or with another status what is said of the options."""

    def run(*words, status=0):
        training = (*tiny_options.training, "--save-dir", "saved", "--disable-validation", "--no-save")
        done = call_command("train", tiny_data, *training, *WARMUP, "--lr", "0.008", *words, status=status)
        if status:
            assert "Traceback" not in done.stderr
            return done.stderr
        return [float(rate) for rate in re.findall(r"train_inner \| .* lr=([\de.-]+)", done.stdout)]

    return run


def test_rises_and_falls_until_the_last_update(rates):
    # Of an update is logged the rate of the next one.
    assert rates("--max-update", 6) == pytest.approx([0.004, 0.008, 0.006, 0.004, 0.002, 0])


def test_ends_elsewhere(rates):
    assert rates("--max-update", 4, "--total-num-update", 10) == pytest.approx([0.004, 0.008, 0.007, 0.006])


def test_an_end_that_is_not_known(rates):
    assert "error: --lr-scheduler polynomial_decay needs --max-update, or --total-num-update" in rates(
        "--max-epoch", 1, status=2
    )


def test_a_warm_up_that_is_longer(rates):
    assert "error: --warmup-updates (2) must be at most --total-num-update (1)" in rates("--max-update", 1, status=2)
