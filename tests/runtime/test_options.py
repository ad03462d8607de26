"""The command line is understood, or its mistakes are named."""

import re
from types import SimpleNamespace

import pytest
from fairseq import options
from fairseq_cli import train

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.runtime import options as runtime_options

# --help shows the options of the given task, model and criterion.


def help_text(capsys, *words):
    parser = options.get_training_parser(default_task="unilm_seq2seq")
    with pytest.raises(SystemExit) as exit_:
        options.parse_args_and_arch(parser, list(words))
    assert exit_.value.code == 0
    return capsys.readouterr().out


def test_with_architecture_and_criterion(capsys):
    text = help_text(capsys, "--help", "--arch", "unilm_tiny", "--criterion", "mask_attention")
    assert "blocks, causal, infilling, masked, pseudo_masked, or one" in " ".join(text.split())
    assert "--encoder-embed-dim ENCODER_EMBED_DIM" in text
    assert "--label-smoothing" in text


def test_without_them(capsys):
    text = help_text(capsys, "-h")
    assert "blocks, causal, infilling, masked, pseudo_masked, or one" in " ".join(text.split())
    assert "--encoder-embed-dim" not in text
    assert "--label-smoothing" not in text


def test_without_help_the_options_are_parsed(capsys):
    parser = options.get_training_parser(default_task="unilm_seq2seq")
    parsed = options.parse_args_and_arch(parser, ["data", "--arch", "unilm_tiny", "--batch-size", "3"])
    assert (parsed.data, parsed.batch_size, parsed.arch) == ("data", 3, "unilm_tiny")
    assert capsys.readouterr().out == ""


def test_a_missing_arch_is_named_with_our_architectures():
    parser = options.get_training_parser(default_task="unilm_seq2seq")
    with pytest.raises(UserError, match=r"--arch is needed: .*minilm_l6_h384.*unilm_tiny, or one of fairseq"):
        options.parse_args_and_arch(parser, ["data"])


# --bf16 does not request a TPU.


OPTIONS = ["data", "--arch", "unilm_tiny"]


def parse(*words):
    return options.parse_args_and_arch(options.get_training_parser(default_task="unilm_seq2seq"), [*OPTIONS, *words])


@pytest.mark.parametrize("option", ["--bf16", "--memory-efficient-bf16"])
def test_bf16_alone(option):
    parsed = parse(option)
    assert parsed.bf16
    assert not parsed.tpu


@pytest.mark.parametrize("words", [["--tpu"], ["--tpu", "--bf16"]])
def test_a_requested_tpu(words):
    assert parse(*words).tpu


def test_fp16_as_well():
    with pytest.raises(UserError, match="--fp16 and --bf16 exclude each other: give one of them"):
        parse("--fp16", "--bf16")
    with pytest.raises(ValueError, match="--fp16 and --tpu"):
        parse("--fp16", "--tpu")


def test_neither_precision():
    parsed = parse()
    assert not parsed.bf16
    assert not parsed.tpu


@pytest.mark.parametrize(
    ("words", "stated"),
    [
        (("--lr", "nan"), "argument --lr: invalid <lambda> value: 'nan'"),  # fairseq's own
        (("--weight-decay", "inf"), "--weight-decay must be a number from 0 on, but is inf"),
        (
            ("--lr-scheduler", "inverse_sqrt", "--warmup-updates", "0"),
            "--warmup-updates must be at least 1 with --lr-scheduler inverse_sqrt, but is 0",
        ),
        (("--lr", "-1"), "--lr must be a number from 0 on, but is -1"),
        (("--lr", "0.1,-2"), "--lr must be a number from 0 on, but is -2"),
        (("--clip-norm", "-0.5"), "--clip-norm must be a number from 0 on, but is -0.5"),
        (("--dropout", "1.5"), "--dropout must be between 0 and 1, but is 1.5"),
        (("--warmup-updates", "-3", "--weight-decay", "nan"), "2 problems"),
        (("--lr", "1e40"), "--lr must be between 0 and 1e+38, but is 1e+40"),
        (("--stop-min-lr", "0.5"), "--stop-min-lr (0.5) must be below --lr (0.01)"),
        (("--adam-betas", "fast"), "--adam-betas must be two numbers, such as '(0.9, 0.999)', but is 'fast'"),
        (("--adam-betas", "(0.9,)"), "--adam-betas must be two numbers"),
        (("--adam-betas", "print(3)"), "--adam-betas must be two numbers"),
        (("--optimizer-overrides", "lr=1"), "--optimizer-overrides must be a dict of Python"),
        (("--lr-scheduler", "manual", "--update2lr", "fast"), "--update2lr must be a dict of Python"),
        (
            ("--lr-scheduler", "triangular", "--max-lr", "0.1", "--lr-period-updates", "0"),
            "--lr-period-updates must be above 0 with --lr-scheduler triangular, but is 0",
        ),
    ],
)
def test_numbers_that_are_out_of_range(call_command, tiny_data, tiny_options, words, stated):
    words = (*tiny_options.training, "--max-update", 1, "--save-dir", "run", *words)
    assert stated in call_command("train", tiny_data, *words, status=2).stderr


def test_options_that_are_returned_separately():
    parser = options.get_training_parser(default_task="unilm_seq2seq")
    parsed, unknown = options.parse_args_and_arch(parser, [*OPTIONS, "--bf16", "--foo"], parse_known=True)
    assert unknown == ["--foo"]
    assert not parsed.tpu


# The linear schedule ends with training, if its length is known.


WARMUP = ("--lr-scheduler", "polynomial_decay", "--warmup-updates", "2")


@pytest.fixture
def rates(call_command, tiny_data, tiny_options):
    """Train, and return the learning rate of each update, or, with another status, the message about the options."""

    def run(*words, status=0):
        training = (*tiny_options.training, "--save-dir", "saved", "--disable-validation", "--no-save")
        done = call_command("train", tiny_data, *training, *WARMUP, "--lr", "0.008", *words, status=status)
        if status:
            assert "Traceback" not in done.stderr
            return done.stderr
        return [float(rate) for rate in re.findall(r"train_inner \| .* lr=([\de.-]+)", done.stdout)]

    return run


def test_rises_and_falls_until_the_last_update(rates):
    # The log of an update has the learning rate of the next one.
    assert rates("--max-update", 6) == pytest.approx([0.004, 0.008, 0.006, 0.004, 0.002, 0])


def test_ends_elsewhere(rates):
    assert rates("--max-update", 4, "--total-num-update", 10) == pytest.approx([0.004, 0.008, 0.007, 0.006])


def test_an_end_that_is_not_known(rates):
    assert "error: --lr-scheduler polynomial_decay needs --max-update, or --total-num-update" in rates(
        "--max-epoch", 1, status=2
    )


def test_a_warm_up_that_is_longer(rates):
    words = ("--max-update", 4, "--total-num-update", 1)
    assert "error: --warmup-updates (2) must be at most --total-num-update (1)" in rates(*words, status=2)
    assert "error: --warmup-updates (2) must be at most --total-num-update (1)" in rates("--max-update", 1, status=2)


# A schedule fits the training: its rate is reached, and is not 0 before the end.


@pytest.mark.parametrize(
    ("words", "stated"),
    [
        (("polynomial_decay", "--total-num-update", 3), "--total-num-update (3) must be at least --max-update (4)"),
        (("polynomial_decay", "--end-learning-rate", 1), "--end-learning-rate (1) must be at most --lr (0.01)"),
        (
            ("polynomial_decay", "--end-learning-rate", "nan"),
            "--end-learning-rate must be a number from 0 on, but is n",
        ),
        (
            ("polynomial_decay", "--total-num-update", "inf"),
            "--total-num-update must be a number from 0 on, but is inf",
        ),
        (("polynomial_decay", "--power", "-1"), "--power must be a number from 0 on, but is -1.0"),
        (
            ("inverse_sqrt", "--warmup-updates", 2, "--warmup-init-lr", "nan"),
            "--warmup-init-lr must be a finite number",
        ),
        (("cosine", "--warmup-updates", 4), "--lr-scheduler cosine needs --max-update above --warmup-updates (4)"),
        (("cosine", "--min-lr", 1), "--min-lr (1) must be at most --lr (0.01)"),
        (("tri_stage",), "--decay-steps must be at least 1"),
        (("tri_stage", "--phase-ratio", "(0.5, 0.5, 0)", "--max-update", 0, "--max-epoch", 1), "--phase-ratio needs"),
    ],
)
def test_schedules_that_do_not_fit(call_command, tiny_data, tiny_options, words, stated):
    scheduler, *others = words
    words = (*tiny_options.training, "--max-update", 4, "--save-dir", "run", "--lr-scheduler", scheduler, *others)
    error = call_command("train", tiny_data, *words, status=2).stderr
    assert stated in error and "Traceback" not in error


@pytest.mark.parametrize(
    ("words", "stated"),
    [
        (("inverse_sqrt",), "--warmup-updates (4000) is above --max-update (1): the training ends in the warm-up"),
        (("fixed", "--warmup-updates", 5), "--warmup-updates (5) is above --max-update (1)"),
        (
            ("polynomial_decay", "--warmup-updates", 5, "--total-num-update", 9),
            "--warmup-updates (5) is above --max-up",
        ),
        (("tri_stage", "--warmup-steps", 2, "--decay-steps", 2), "--warmup-steps (2) is above --max-update (1)"),
        (("tri_stage", "--warmup-steps", 1, "--decay-steps", 2), "tri_stage have 3 updates, but --max-update is 1"),
    ],
)
def test_the_end_within_a_schedule(call_command, tiny_data, tiny_options, words, stated):
    """A training of a few updates is a usual trial."""
    scheduler, *others = words
    words = (*tiny_options.training, "--max-update", 1, "--save-dir", "run", "--lr-scheduler", scheduler, *others)
    assert stated in call_command("train", tiny_data, *words).stdout


def test_hydra_too(call_command, tiny_data, tmp_path):
    words = ("task=unilm_seq2seq", f"task.data={tiny_data}", "model=unilm", "criterion=mask_attention")
    rates = ("optimizer=adam", "lr_scheduler=polynomial_decay", "lr_scheduler.total_num_update=2")
    others = ("optimization.max_update=4", "dataset.batch_size=8", "common.cpu=true", f"hydra.run.dir={tmp_path}/run")
    error = call_command("hydra-train", *words, *rates, *others, status=2).stderr
    assert "--total-num-update (2) must be at least --max-update (4)" in error
    error = call_command("hydra-train", *words, *rates, *others, "ema.ema_decay=nan", status=2).stderr
    assert "--ema-decay must be between 0 and 1, but is nan" in error


def test_a_schedule_with_an_end_above_0(rates):
    words = ("--max-update", 4, "--total-num-update", 3, "--end-learning-rate", 0.001)
    assert rates(*words) == pytest.approx([0.004, 0.008, 0.001, 0.001])


def test_updates_that_change_nothing(call_command, tiny_data, tiny_options):
    """The end of the training is a number of epochs, so that its updates are not known before."""
    words = (*tiny_options.training, "--max-epoch", 1, "--lr-scheduler", "polynomial_decay", "--save-dir", "run")
    log = call_command("train", tiny_data, *words, "--total-num-update", 3).stdout
    assert log.count("the learning rate is 0 after 3 updates, and further ones change nothing") == 1
    log = call_command("train", tiny_data, *words[:-1], "whole", "--total-num-update", 7).stdout
    assert "the learning rate is 0" not in log


@pytest.mark.parametrize(
    "words",
    [
        ("--adam-eps", "nan"),
        ("--adam-betas", "(0.9, 1e999)"),
        ("--target-mask-prob", "nan"),
        ("--source-mask-prob", "inf"),
        ("--random-prob", "nan"),
        ("--label-smoothing", "nan"),
        ("--attention-dropout", "nan"),
        ("--activation-dropout", "inf"),
        ("--lora-alpha", "inf"),
        ("--initial-std", "nan"),
        ("--layer-norm-eps", "nan"),
        ("--word-flow-weight", "nan"),
        ("--stop-min-lr", "nan"),
        ("--stop-time-hours", "inf"),
        ("--clip-norm", "nan"),
        ("--update-freq", "0"),
        ("--batch-size", "-1"),
        ("--max-tokens", "0"),
        ("--log-interval", "0"),
        ("--save-interval", "0"),
        ("--num-workers", "-1"),
        ("--max-positions", "1000000000"),
    ],
)
def test_no_number_is_taken_that_is_none(call_command, tiny_data, tiny_options, words):
    words = (*tiny_options.training, "--max-update", 1, "--save-dir", "run", *words)
    error = call_command("train", tiny_data, *words, status=2).stderr
    assert f"{words[-2]} must be " in error and "Traceback" not in error


def test_a_batch_without_a_size():
    """The command itself has a default; fairseq-train and hydra-train have none."""
    cfg = SimpleNamespace(dataset=SimpleNamespace(max_tokens=None, batch_size=None), optimizer="adam")
    with pytest.raises(UserError, match="--max-tokens or --batch-size is needed"):
        runtime_options._run(None, cfg, train.main)


# The end of an epoch, and of a training within one.


def test_the_best_metric_must_be_measured():
    cfg = SimpleNamespace(
        checkpoint=SimpleNamespace(best_checkpoint_metric="pearson", maximize_best_checkpoint_metric=True)
    )
    trainer = SimpleNamespace(get_num_updates=lambda: 7)
    with pytest.raises(UserError, match="--best-checkpoint-metric must be one of accuracy, loss, but is pearson"):
        train.get_valid_stats(cfg, trainer, {"loss": 1.0, "accuracy": 2.0}, False)
    assert train.get_valid_stats(cfg, trainer, {"pearson": 1.0}, False) == {"pearson": 1.0, "num_updates": 7}


def test_the_last_update_is_the_last(call_command, tiny_data, tiny_options, tmp_path):
    words = (tiny_data, *tiny_options.training, "--save-dir", "saved", "--max-update")
    call_command("train", *words, 2)
    last = tmp_path / "saved" / "checkpoint_last.pt"
    before = last.read_bytes()
    for updates in (2, 1):
        log = call_command("train", *words, updates).stdout
        assert f"nothing is left to train: 2 updates are done, and --max-update is {updates}" in log
        assert "num_updates=3" not in log and last.read_bytes() == before
    assert "num_updates=3" in call_command("train", *words, 3).stdout
