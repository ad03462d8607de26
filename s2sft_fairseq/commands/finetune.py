"""``s2sft finetune``: fine-tune an encoder on pairs to a model that generates, in one command."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from s2sft_fairseq import other_names
from s2sft_fairseq.cli import call
from s2sft_fairseq.corpora.pairs import USUAL, Fields
from s2sft_fairseq.errors import as_option
from s2sft_fairseq.recipes.finetune import Finetuning, read_given
from s2sft_fairseq.recipes.finetune_settings import LANGUAGE_MODEL

_FORMATS = (
    "a .jsonl file (objects with src and tgt), a .tsv or .csv file of two columns, or two line-aligned files; with .gz"
)


def main(arguments: Sequence[str]) -> None:
    """Run the command line.

    Raises:
        UserError: naming everything that is wrong with the options or the pairs; or raised by a stage.
    """
    words = list(arguments) or ["--help"]
    end = words.index("--") if "--" in words else len(words)
    other_names.refuse(words[:end], other_names.FINETUNE)
    texts = vars(_parser().parse_args(_joined(words[:end])))
    files = {name: texts.pop(name, []) for name in ("train", "valid", "test")}
    fields = Fields.of(texts.pop("source", USUAL.source), texts.pop("target", USUAL.target))
    Finetuning(files, fields, read_given(texts), words[end + 1 :], call).run()


def _joined(words: Sequence[str]) -> list[str]:
    """Return the arguments with the value of ``--layout``, which may look like an option, joined to it by ``=``."""
    joined: list[str] = []
    for word in words:
        if joined and joined[-1] == "--layout":
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _of_language_models() -> str:
    """Return the defaults for a language model."""
    values = [f"{as_option(name)} {value}" for named in LANGUAGE_MODEL.values() for name, value in named.items()]
    return ", ".join(values)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="s2sft finetune",
        usage="s2sft finetune --encoder DIR --train FILE ... --output DIR [OPTIONS] [-- OPTIONS OF s2sft train]",
        description=f"{__doc__}\n\nA language model as --encoder has defaults of its own: {_of_language_models()}.\n"
        "Stages that are done are not done again: started again, the same command continues "
        "where it was.\nWhat is chosen without being given is shown, and written to OUTPUT/finetune.json. The model is "
        "OUTPUT/model.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    pairs = parser.add_argument_group("pairs")
    for name, what in (
        ("train", f"the training set: {_FORMATS}"),
        ("valid", "the validation set (default: a fiftieth of --train, at least 50 and at most 1,000 pairs)"),
        ("test", "the test set; without it the model is scored on the validation set"),
    ):
        pairs.add_argument(f"--{name}", type=Path, nargs="+", metavar="FILE", help=what)
    pairs.add_argument(
        "--source", nargs="+", metavar="FIELD", help="keys of .jsonl, or columns, that make up a source (src)"
    )
    pairs.add_argument(
        "--target",
        metavar="FIELD",
        help="key or column of the target (tgt); in .jsonl it may have a list of references",
    )
    for title, declared in (("files", Finetuning.run_options), ("settings", Finetuning.declared)):
        group = parser.add_argument_group(title)
        for key, setting in declared.items():
            setting.add_to(group, key)  # type: ignore[arg-type]  # a group has the method of a parser
    return parser
