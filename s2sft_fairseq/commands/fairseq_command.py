"""fairseq's commands, with this package as the plugin (``--user-dir``)."""

import argparse
import importlib
import io
import multiprocessing
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from typing import Any

import s2sft_fairseq
from s2sft_fairseq import other_names
from s2sft_fairseq.checkpoints.safe_loading import load_options
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.hub import is_hub_name, local_path, tokenizer_path
from s2sft_fairseq.models.pretrained_checkpoint import open_pretrained

DEFAULT_TASK = "unilm_seq2seq"
ENCODER_DECODER_TASK = "deltalm_seq2seq"
_CRITERIONS = {  # the default criterion of each task of this package
    DEFAULT_TASK: "mask_attention",
    "ernie_gen_pretraining": "mask_attention",
    "unilm_pretraining": "mask_attention",
    "unilm_classification": "classification",
    "unilm_question_answering": "answer_span",
    ENCODER_DECODER_TASK: "label_smoothed_cross_entropy",
    "deltalm_pretraining": "cross_entropy",
}
_READ_A_MODEL = ("validate", "generate", "interactive")
_PATHS = {"--path": local_path, "--tokenizer-dir": tokenizer_path}

# Default options of a training: the names of each option, and the value to use if none of them is given. fairseq's own
# defaults do not fit: another criterion, a learning rate of 0.25, no end of training. Packed sequences are not the rows
# of a matrix, so a number of them that is a multiple of 8 (fairseq's default) gains nothing.
TRAIN_DEFAULTS = (
    (("--arch", "-a"), "unilm"),
    (("--optimizer",), "fused_adamw"),
    (("--lr", "--learning-rate"), "5e-5"),
    (("--clip-norm",), "1.0"),
    (("--max-tokens", "--batch-size", "--max-sentences"), "4096"),
    (("--required-batch-size-multiple",), "1"),
    (("--max-epoch", "--max-update"), "10"),
)
# The same for encoder-decoders; the learning rate is that of DeltaLM's script for IWSLT'14.
ENCODER_DECODER_TRAIN_DEFAULTS = (
    (("--arch", "-a"), "deltalm"),
    (("--optimizer",), "fused_adamw"),
    (("--lr", "--learning-rate"), "1e-4"),
    *TRAIN_DEFAULTS[3:],
)
# Large encoders need lower learning rates: s2s-ft's Appendix A has 1e-5 to 3e-5 for them, 5e-5 to 1e-4 for base ones.
LARGE_WIDTH, LARGE_LR = 1024, "2e-5"
# fairseq's default is 12000 tokens. With this one the batch size is limited by memory and machine alone.
GENERATE_DEFAULTS = ((("--max-tokens", "--batch-size", "--max-sentences"), "1000000"),)


def run(name: str, arguments: list[str]) -> None:
    """Run `fairseq-NAME` (`train`, `validate`, `generate`, ...) with `complete(arguments)`.

    Raises:
        UserError: if a required option is missing; see also `complete`.
    """
    if name == "train" and value_of(arguments, "--user-dir") is None:  # another plugin may have options of these names
        known = {"warmup_steps"} if value_of(arguments, "--lr-scheduler") == "tri_stage" else set()  # its own option
        names = {name: ours for name, ours in other_names.TRAIN.items() if name not in known}
        other_names.refuse(arguments, names)
    arguments = with_local_paths(arguments)
    set_arguments([*_defaults(name, arguments), *complete(arguments)])
    if name in _READ_A_MODEL and not {"-h", "--help"}.intersection(arguments):
        paths = value_of(arguments, "--path")
        if paths is None:
            raise UserError("--path is needed: the checkpoint file, or for an ensemble several of them between colons")
        is_whole = value_of(arguments, "--checkpoint-suffix", "--checkpoint-shard-count") is None  # else in other files
        if is_whole and (problems := list(absent_models(paths))):
            raise UserError.of(problems)
    with _forked_workers():
        importlib.import_module(f"fairseq_cli.{name}").cli_main()


def training_problems(arguments: list[str]) -> list[str]:
    """Return what is wrong with the options of ``s2sft train``, as its parser finds it, without a training."""
    from fairseq import options

    words, before = [*_defaults("train", arguments), *complete(arguments)], sys.argv[1:]
    printed = io.StringIO()
    set_arguments(words)  # fairseq's parser looks for --user-dir there
    try:
        other_names.refuse(arguments, other_names.TRAIN)
        with redirect_stderr(printed), redirect_stdout(printed):
            options.parse_args_and_arch(options.get_training_parser(DEFAULT_TASK), words)
    except UserError as error:
        return error.problems
    except SystemExit:  # the parser prints its usage, and the error in the last line
        last = printed.getvalue().rstrip().rpartition("\n")[2]
        return [last.partition(": error: ")[2] or "--help must be left out"]
    finally:
        set_arguments(before)
    return []


def hydra_train(arguments: list[str]) -> None:
    """Run `fairseq-hydra-train` with the plugin as `common.user_dir`; `arguments` may set that to a second plugin."""
    overrides = dict(argument.lstrip("+").partition("=")[::2] for argument in arguments)
    set_arguments([*arguments, f"common.user_dir={user_dir(overrides.get('common.user_dir'))}"])
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")  # without it Hydra prints its own traceback and exits
    with _forked_workers(), _help_made_later():
        importlib.import_module("fairseq_cli.hydra_train").cli_main()


@contextmanager
def _forked_workers() -> Iterator[None]:
    """Within the block, worker processes are forks of this one, which has the patches, as before Python 3.14."""
    if sys.platform != "linux":
        yield
        return
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method("fork", force=True)
    try:
        yield
    finally:
        multiprocessing.set_start_method(before, force=True)


@contextmanager
def _help_made_later() -> Iterator[None]:
    """Within the block, argparse accepts a help text that is no string yet.

    hydra/_internal/utils.py gives one, which Python 3.14 refuses.
    """
    argparse.ArgumentParser._check_help = lambda *_: None  # type: ignore[attr-defined]  # hides that of the base
    try:
        yield
    finally:
        del argparse.ArgumentParser._check_help  # type: ignore[attr-defined]


train, validate, interactive = (partial(run, name) for name in ("train", "validate", "interactive"))


def complete(arguments: list[str]) -> list[str]:
    """Return `arguments` with this plugin as `--user-dir`, and with `default_task` as `--task` if none is given.

    Raises:
        UserError: if a given `--user-dir` does not exist, or is another copy of this package.
    """
    task = ["--task", default_task(arguments)] if value_of(arguments, "--task") is None else []
    plugin = user_dir(value_of(arguments, "--user-dir"))
    return [*task, *arguments, "--user-dir", plugin]  # the last --user-dir counts


def with_local_paths(arguments: Sequence[str]) -> list[str]:
    """Return `arguments` with names on the Hugging Face hub replaced by the folders of their files.

    Raises:
        UserError: one of them cannot be downloaded.
    """
    replaced: list[str] = []
    option = ""
    for word in arguments:
        name, equals, value = word.partition("=")
        if option in _PATHS:
            replaced.append(_local_paths(option, word))
        elif equals and name in _PATHS:
            replaced.append(f"{name}={_local_paths(name, value)}")
        else:
            replaced.append(word)
        option = word
    return replaced


def _local_paths(option: str, value: str) -> str:
    """Return the paths of an option, with names on the hub replaced; an ensemble has several between colons."""
    paths = value.split(os.pathsep)  # what is no name stays as it is: ./name is never one
    return os.pathsep.join(str(_PATHS[option](path)) if is_hub_name(path) else path for path in paths)


def absent_models(paths: str) -> Iterator[str]:
    """Yield an error for each path of ``--path`` that does not exist."""
    for path in paths.split(os.pathsep):
        if not os.path.exists(path):
            yield f"Model file not found: {path} (--path); a checkpoint, a model folder or a name on the hub is needed"


def default_task(arguments: list[str]) -> str:
    """Return the default task, which follows from ``--arch`` or from the model in the first file of ``--path``."""
    model = value_of(arguments, "--arch", "-a") or ""
    path = (value_of(arguments, "--path") or "").split(os.pathsep)[0]
    if os.path.exists(path):
        try:
            options = load_options(path).get("cfg") or {}
        except UserError:
            options = {}  # errors in the file are reported when it is used
        model = str(_value(options.get("model"), "_name") or _value(options.get("model"), "arch") or "")
        if model.startswith("deltalm") and _value(options.get("task"), "_name") == "translation":
            return "translation"  # fairseq's task, which has its own dictionaries
    return ENCODER_DECODER_TASK if model.startswith("deltalm") else DEFAULT_TASK


def begins_with_large(pretrained: str | None) -> bool:
    """Return whether ``--pretrained`` names a large encoder; errors in it are reported when it is used."""
    try:
        return pretrained is not None and open_pretrained(pretrained).sizes["encoder_embed_dim"] >= LARGE_WIDTH
    except (UserError, KeyError, TypeError):
        return False


def _value(options: Any, name: str) -> Any:
    return options.get(name) if isinstance(options, dict) else getattr(options, name, None)


def _defaults(name: str, arguments: list[str]) -> list[str]:
    """Return the default options of a command that are not given; none for tasks of fairseq."""
    task = value_of(arguments, "--task") or default_task(arguments)
    if task not in _CRITERIONS:
        return []
    is_encoder_decoder = task.startswith("deltalm")
    defaults: Sequence[tuple[tuple[str, ...], str]] = ()
    if name == "train":
        further = ENCODER_DECODER_TRAIN_DEFAULTS if is_encoder_decoder else TRAIN_DEFAULTS
        defaults = ((("--criterion",), _CRITERIONS[task]), *further)
    # References are scored in one pass over all positions, which needs batches as small as those of training.
    elif name == "generate" and not is_encoder_decoder and "--score-reference" not in arguments:
        defaults = GENERATE_DEFAULTS
    is_fine_tuning = name == "train" and not is_encoder_decoder and not task.endswith("_pretraining")
    if is_fine_tuning and begins_with_large(value_of(arguments, "--pretrained")):
        defaults = [(names, LARGE_LR if "--lr" in names else value) for names, value in defaults]
    missing = [(names[0], value) for names, value in defaults if value_of(arguments, *names) is None]
    if ("--criterion", "label_smoothed_cross_entropy") in missing and value_of(arguments, "--label-smoothing") is None:
        missing.append(("--label-smoothing", "0.1"))
    return [word for pair in missing for word in pair]


def value_of(arguments: list[str], *names: str) -> str | None:
    """Return the value of an option, parsed as fairseq does; None if it is not given under any of its names."""
    parser = argparse.ArgumentParser(prog=os.path.basename(sys.argv[0]), add_help=False, allow_abbrev=False)
    parser.add_argument(*names, dest="value")
    return parser.parse_known_args(arguments)[0].value


def set_arguments(arguments: list[str]) -> None:
    """Set the arguments of this process: fairseq reads `sys.argv` in several places."""
    sys.argv[1:] = arguments


def import_plugin(folder: str) -> None:
    """Import a second plugin, for commands that are not fairseq's.

    Raises:
        UserError: the folder does not exist, or is another copy of this package.
    """
    importlib.import_module("s2sft_fairseq.plugin")  # fairseq must be patched first
    options = argparse.Namespace(user_dir=user_dir(folder))
    importlib.import_module("fairseq.utils").import_user_module(options)


def user_dir(given: str | None) -> str:
    """Return the folder to pass as `--user-dir`: this package, or a second plugin of the user, imported beside it."""
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
