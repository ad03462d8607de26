"""The console command `s2sft`: fairseq's command lines with this plugin imported first, and commands of its own."""

import argparse
import contextlib
import importlib
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NoReturn

from s2sft_fairseq import __version__
from s2sft_fairseq.errors import nearest_name, stated_by_fairseq, user_error_text
from s2sft_fairseq.signals import INTERRUPTED

# For each subcommand, its help, and its module in `commands` with the function, by default `main`. A module is imported
# only when its command runs, because most import PyTorch and fairseq.
COMMANDS = {
    "prepare": ("turn a benchmark's raw files into text files", "prepare"),
    "tokenize": ("split raw text into symbols of a vocabulary", "tokenize"),
    "preprocess": ("binarize tokenized source and target files", "preprocess"),
    "span-vocab": ("find the words of tokenized text that make spans", "span_vocab"),
    "convert": ("make a pretrained encoder usable", "convert"),
    "export": ("write a model as a folder that loads by itself, or in Hugging Face's format", "export"),
    "finetune": ("fine-tune an encoder on pairs of your own, in one command", "finetune"),
    "recipe": ("run a benchmark's recipe from raw files to scores", "recipe"),
    "pretrain": ("pre-train a model on plain text, with a paper's settings", "pretrain"),
    "train": ("fine-tune a model", "fairseq_command:train"),
    "average": ("average checkpoints of a training", "average"),
    "validate": ("compute the loss of a checkpoint on binarized data", "fairseq_command:validate"),
    "generate": ("generate from raw text or binarized data", "generate"),
    "rerank": ("rank recorded hypotheses again with another length penalty", "rerank"),
    "interactive": ("generate from tokenized lines as they come", "fairseq_command:interactive"),
    "serve": ("answer requests over HTTP, with a page to try a model", "serve"),
    "predict": ("write classes, numbers or answers for binarized texts", "predict"),
    "evaluate": ("score generated text as a benchmark's papers do", "evaluate"),
    "score": ("compute BLEU of one file against another", "score"),
    "plot": ("draw trainings, lengths, attention, or the packed sequence of an objective", "plot"),
    "doctor": ("look at this machine, or whether files are whole and fit each other", "doctor"),
    "hydra-train": ("fine-tune a model, configured by Hydra", "fairseq_command:hydra_train"),
}

# These have fairseq's options and import fairseq, which must be patched first.
_OPTIONS_OF_FAIRSEQ = ("preprocess", "train", "validate", "generate", "interactive", "hydra-train")
# These print their results to standard output: their log goes to standard error.
_LOG_TO_STDERR = ("generate", "interactive", "serve", "evaluate", "score", "plot", "doctor")

WAITING = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}
"""Environment variables that control how OpenMP's threads wait for each other."""
SPINS = "2000"
"""Rounds that a thread waits before it sleeps. OpenMP's default, 300,000, occupies cores that others need: see
docs/training.md."""

USER_ERROR = 2


def usage() -> str:
    """Return the help text of `s2sft` itself."""
    width = max(map(len, COMMANDS))
    commands = "\n".join(f"  {name:{width}}  {text}" for name, (text, _) in COMMANDS.items())
    return (
        f"usage: s2sft COMMAND [OPTIONS]\n\ncommands:\n{commands}\n\n"
        "s2sft COMMAND --help lists the options of a command; those of train, generate and so on are fairseq's,\n"
        "together with those of the --task, --arch and --criterion that are given beside --help.\n"
        "s2sft --version prints the version of the package.\n"
        "S2SFT_DEBUG=1 in the environment shows where an error came from."
    )


def main(arguments: list[str] | None = None) -> int:
    """Run a subcommand and return the exit status. By default `arguments` are those of the process."""
    name, *rest = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if name in ("-h", "--help", "help"):
        print(usage())
        return 0
    if name in ("-V", "--version", "version"):
        print(f"s2sft_fairseq {__version__}")
        return 0
    if name not in COMMANDS:
        nearest = nearest_name(name.lower().removeprefix("fairseq-"), [*COMMANDS, "--help", "--version"])
        hint = f" (did you mean {nearest}?)" if nearest else ""
        print(f"error: s2sft has no command {name}{hint}: {', '.join(COMMANDS)}", file=sys.stderr)
        return USER_ERROR
    if not WAITING.intersection(os.environ):  # keep the user's settings; PyTorch reads them when it is imported
        os.environ["GOMP_SPINCOUNT"] = SPINS
    return guarded(name, partial(call, name, rest))


def script(*words: str) -> None:
    """Run a subcommand with `words` before the process's own arguments, for scripts of a subcommand."""
    if status := main([*words, *sys.argv[1:]]):
        sys.exit(status)


def call(name: str, arguments: Sequence[str]) -> None:
    """Run a subcommand without handling its exceptions."""
    sys.argv = [f"s2sft {name}", *arguments]  # argparse prints this name
    logging.basicConfig(
        format="%(asctime)s | %(levelname)s | %(name)s | %(message)s",
        datefmt="%Y-%m-%d %H:%M:%S",
        level=os.environ.get("LOGLEVEL", "INFO").upper(),
        stream=sys.stderr if name in _LOG_TO_STDERR else sys.stdout,
        force=True,  # fairseq's tasks configure the log on import
    )
    if name in _OPTIONS_OF_FAIRSEQ:
        importlib.import_module("s2sft_fairseq.plugin")
    from s2sft_fairseq import progress  # imports tqdm, which the list of commands does not need

    module, _, function = COMMANDS[name][1].partition(":")
    with progress.of_command(), _nearest_options(arguments):
        getattr(importlib.import_module(f"s2sft_fairseq.commands.{module}"), function or "main")(list(arguments))


_CHOICE = re.compile(r"invalid choice: '(.*?)' \(choose from (.*)\)")


@contextlib.contextmanager
def _nearest_options(words: Sequence[str]) -> Iterator[None]:
    """Context manager in which errors of argparse also name the options that are nearest to misspelled ones."""
    usual = argparse.ArgumentParser.error

    def error(self: argparse.ArgumentParser, message: str) -> NoReturn:
        if message.startswith("argument "):  # a wrong value, which fairseq's parser meets before it knows all options
            choice = _CHOICE.search(message)
            meant = nearest_name(choice[1], re.findall(r"[\w-]+", choice[2])) if choice else None
            usual(self, f"{message}; did you mean {meant}?" if meant else message)
        known = [option for action in self._actions for option in action.option_strings]
        given = [word.partition("=")[0] for word in words if word.startswith("--") and word != "--"]
        unknown = [word for word in given if not any(option.startswith(word) for option in known)]
        nearest = [f"{word}: did you mean {name}?" for word in unknown if (name := nearest_name(word, known))]
        usual(self, "; ".join([message, *nearest]))

    argparse.ArgumentParser.error = error  # type: ignore[method-assign]
    try:
        yield
    finally:
        argparse.ArgumentParser.error = usual  # type: ignore[method-assign]


def guarded(name: str, work: Callable[[], object]) -> int:
    """Do the work of a command and return its exit status. Print user errors without a traceback."""
    # Flush each line, so that another program can read the answers of `interactive` through a pipe.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # it is a TextIOWrapper
    try:
        work()
        sys.stdout.flush()
    except KeyboardInterrupt:
        print(f"s2sft {name}: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:  # the reader of a pipe, such as head, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        text = user_error_text(error) or stated_by_fairseq(error)
        if text is None or os.environ.get("S2SFT_DEBUG", "0") != "0":
            traceback.print_exc()
        print(f"error: {text or repr(error)}", file=sys.stderr)
        return 1 if text is None else USER_ERROR
    return 0


if __name__ == "__main__":
    sys.exit(main())
