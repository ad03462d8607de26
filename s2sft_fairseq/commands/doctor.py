"""``s2sft doctor``: look whether files are what they were when they were written.

s2sft doctor runs/e2e/model data-bin
s2sft doctor --accept runs/e2e/model      # after a change of your own, such as of its config.json
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from s2sft_fairseq.checksums import CHECKSUMS, check_folder, write_checksums
from s2sft_fairseq.errors import UserError


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line.

    Raises:
        UserError: naming every file that is damaged or missing, or every folder without checksums.
    """
    parser = argparse.ArgumentParser(
        prog="s2sft doctor", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "folder",
        type=Path,
        nargs="+",
        help="of a model, an encoder, checkpoints or data, or one that holds several of them",
    )
    parser.add_argument(
        "--accept", action="store_true", help="take the files as they are: write the checksums of each folder anew"
    )
    options = parser.parse_args(arguments)
    if problems := [f"{folder} must be a folder" for folder in options.folder if not folder.is_dir()]:
        raise UserError.of(problems)
    for folder in options.folder:
        found = list((_accept if options.accept else check_folder)(folder))
        what = "the checksums are those of the files now" if options.accept else "all files are as they were written"
        print(f"{folder}: {f'{len(found)} problems' if found else what}")
        problems += found
    if problems:
        raise UserError.of(problems)


def _accept(folder: Path) -> list[str]:
    if not (folder / CHECKSUMS).is_file():
        return [f"{folder} must hold {CHECKSUMS}, which s2sft writes, but does not"]
    write_checksums(folder)
    return []
