"""fairseq's command lines, with this package as their plugin."""

import argparse
import importlib
import os
import sys

import s2sft_fairseq
from s2sft_fairseq.errors import UserError

DEFAULT_TASK = "unilm_seq2seq"
_OWN_TASKS = (
    DEFAULT_TASK,
    "ernie_gen_pretraining",
    "unilm_pretraining",
    "unilm_classification",
    "unilm_question_answering",
)
_CRITERIONS = {  # of the tasks that have another than mask_attention
    "unilm_classification": "classification",
    "unilm_question_answering": "answer_span",
}
_READ_A_MODEL = ("validate", "generate", "interactive")

# What training needs beyond data and encoder: the names of each option, and its value where none of them is given.
# fairseq's own defaults cannot train here: a criterion of its own, a learning rate of 0.25, no end. And examples are no
# rows of a matrix here, of which there had better be a multiple of 8.
TRAIN_DEFAULTS = (
    (("--arch", "-a"), "unilm"),
    (("--optimizer",), "fused_adamw"),
    (("--lr", "--learning-rate"), "5e-5"),
    (("--clip-norm",), "1.0"),
    (("--max-tokens", "--batch-size", "--max-sentences"), "4096"),
    (("--required-batch-size-multiple",), "1"),
    (("--max-epoch", "--max-update"), "10"),
)
# fairseq would take 12000 tokens; what memory and machine allow is worked out where nothing less is asked for.
GENERATE_DEFAULTS = ((("--max-tokens", "--batch-size", "--max-sentences"), "1000000"),)


def run(name: str, arguments: list[str]) -> None:
    """Run `fairseq-NAME` (`train`, `validate`, `generate`, ...) with `complete(arguments)`.

    Raises:
        UserError: an option without which the command cannot run is missing, or see `complete`.
    """
    set_arguments([*_defaults(name, arguments), *complete(arguments)])
    if name in _READ_A_MODEL and not {"-h", "--help"}.intersection(arguments) and value_of(arguments, "--path") is None:
        raise UserError("--path is needed: the checkpoint file, or for an ensemble several of them between colons")
    importlib.import_module(f"fairseq_cli.{name}").cli_main()


def run_hydra_train(arguments: list[str]) -> None:
    """Run `fairseq-hydra-train` with the plugin as `common.user_dir`, which `arguments` may name too."""
    overrides = dict(argument.lstrip("+").partition("=")[::2] for argument in arguments)
    set_arguments([*arguments, f"common.user_dir={_user_dir(overrides.get('common.user_dir'))}"])
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # without it Hydra prints its own traceback and exits
    importlib.import_module("fairseq_cli.hydra_train").cli_main()


def complete(arguments: list[str]) -> list[str]:
    """`arguments` with `--user-dir` set to this package and, where none is given, `--task unilm_seq2seq`.

    Raises:
        UserError: a `--user-dir` that does not exist, or is another copy of this package.
    """
    task = ["--task", DEFAULT_TASK] if value_of(arguments, "--task") is None else []
    user_dir = _user_dir(value_of(arguments, "--user-dir"))
    return [*task, *arguments, "--user-dir", user_dir]  # of several --user-dir the last one counts


def _defaults(name: str, arguments: list[str]) -> list[str]:
    """The default options of a command that are not given, for the tasks that they are made for."""
    # References are scored in one pass over all positions: that takes the small batches of training.
    task = value_of(arguments, "--task")
    if task not in (None, *_OWN_TASKS) or "--score-reference" in arguments:
        return []
    criterion = (("--criterion",), _CRITERIONS.get(task, "mask_attention"))
    defaults = {"train": (criterion, *TRAIN_DEFAULTS), "generate": GENERATE_DEFAULTS}.get(name, ())
    missing = [(names[0], value) for names, value in defaults if value_of(arguments, *names) is None]
    return [word for pair in missing for word in pair]


def value_of(arguments: list[str], *names: str) -> str | None:
    """The value of an option, read as fairseq reads it; None where it is not given under any of its names."""
    parser = argparse.ArgumentParser(prog=os.path.basename(sys.argv[0]), add_help=False, allow_abbrev=False)
    parser.add_argument(*names, dest="value")
    return parser.parse_known_args(arguments)[0].value


def set_arguments(arguments: list[str]) -> None:
    """Make `arguments` those of this process: fairseq reads `sys.argv` in several places."""
    sys.argv[1:] = arguments


def _user_dir(given: str | None) -> str:
    """The folder to pass as `--user-dir`: this package, or a second plugin of the user's, imported beside it."""
    own = s2sft_fairseq.__path__[0]
    if given is None:
        return own
    if not os.path.isdir(given):
        raise UserError(f"--user-dir {given}: no such folder (from {os.getcwd()})")
    if os.path.samefile(given, own):
        return own
    if os.path.basename(os.path.abspath(given)) == os.path.basename(own):
        raise UserError(
            f"--user-dir {given} is another copy of the package that runs, {own}: leave the option out, "
            f"or run that copy's own command (python -m s2sft_fairseq in {os.path.dirname(os.path.abspath(given))})"
        )
    return given
