"""`s2sft preprocess`: `fairseq-preprocess` that reports all errors in options and text files before it writes anything.

The output files are moved to their folder when all of them are complete.
"""

import argparse
import contextlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

from fairseq import options
from fairseq.tasks import get_task

from s2sft_fairseq.commands import fairseq_command
from s2sft_fairseq.data.text_files import check_texts
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.files import added_files

_LOG = "preprocess.log"


def main(arguments: list[str]) -> None:
    """Check what `fairseq-preprocess` would read and write, then run it.

    Raises:
        UserError: naming everything that is wrong with the options and the files.
    """
    fairseq_command.set_arguments(fairseq_command.complete(arguments))
    args = options.get_preprocessing_parser().parse_args()
    if problems := find_problems(args):
        raise UserError.of(problems, heading="nothing was written:")
    destination = Path(args.destdir)
    with added_files(destination) as made:
        with _log_closed_at_the_end():
            fairseq_command.run("preprocess", [*arguments, "--destdir", str(made)])  # the last one counts
        log, earlier = made / _LOG, destination / _LOG
        if earlier.exists():
            log.write_bytes(earlier.read_bytes() + log.read_bytes())
    print(f"{destination}: all files are there")


@contextlib.contextmanager
def _log_closed_at_the_end() -> Iterator[None]:
    """Close the log file that fairseq opens: it is moved afterwards, and the process may binarize again."""
    logger, shown = logging.getLogger("fairseq_cli.preprocess"), logging.raiseExceptions
    before = logger.handlers[:]
    logging.raiseExceptions = False  # report a full disk once, not for each line of the log
    try:
        yield
    finally:
        logging.raiseExceptions = shown
        for handler in [handler for handler in logger.handlers if handler not in before]:
            logger.removeHandler(handler)
            handler.close()


def find_problems(args: argparse.Namespace) -> list[str]:
    """Return all errors in the options of `fairseq-preprocess` and in the files that they name."""
    problems = [*_languages(args), *_dictionaries(args)]
    try:
        check_texts(text_files(args))
    except UserError as error:
        problems += error.problems
    return problems


def text_files(args: argparse.Namespace) -> Iterator[Sequence[Path]]:
    """Yield the source file of each prefix, with the target file if there is one."""
    languages = [args.source_lang] if args.only_source else [args.source_lang, args.target_lang]
    # fairseq takes one training prefix, but several, separated by commas, for validation and test.
    prefixes = [args.trainpref] if args.trainpref else []
    prefixes += [prefix for option in (args.validpref, args.testpref) if option for prefix in option.split(",")]
    for prefix in prefixes:
        yield [Path(f"{prefix}.{language}" if language else prefix) for language in languages]


def _languages(args: argparse.Namespace) -> Iterator[str]:
    if args.only_source:
        return
    if not (args.source_lang and args.target_lang):
        yield (
            "--source-lang and --target-lang are needed, the endings of the file names (train.SRC, train.TGT); "
            "or --only-source"
        )
    elif args.source_lang == args.target_lang:
        yield f"--source-lang and --target-lang are both {args.source_lang}: source and target need a file each"


def _dictionaries(args: argparse.Namespace) -> Iterator[str]:
    for option in ("srcdict", "tgtdict", "alignfile"):
        path = getattr(args, option)
        if path and not Path(path).is_file():
            yield f"--{option} {path}: no such file"
    if args.joined_dictionary and args.srcdict and args.tgtdict:
        yield "--joined-dictionary takes one dictionary for both sides: give --srcdict or --tgtdict, not both"
    sides = [(args.srcdict, args.source_lang)] + ([] if args.only_source else [(args.tgtdict, args.target_lang)])
    for given, language in sides:
        written = Path(args.destdir, f"dict.{language}.txt" if language else "dict.txt")
        if not given and written.exists():
            yield f"{written} exists, from an earlier run: remove it, or give another --destdir"
    given = [dictionary for dictionary, _ in sides if dictionary]
    if len(given) < (1 if args.joined_dictionary else len(sides)):
        yield from _making_a_dictionary(args)


def _making_a_dictionary(args: argparse.Namespace) -> Iterator[str]:
    if not args.trainpref:
        yield "--trainpref is needed if --srcdict or --tgtdict is not given, to make a dictionary from its text"
    try:
        get_task(args.task).build_dictionary([])  # from no text: raises if this task does not make dictionaries
    except UserError as error:
        yield from error.problems
