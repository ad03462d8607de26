"""``s2sft doctor``: look at this machine, or whether files are whole and fit each other.

s2sft doctor                                  # versions, GPU, CPU, memory, optional packages
s2sft doctor runs/e2e/encoder data-bin        # checksums; dictionary, sizes, tokenizer, options
s2sft doctor --accept runs/e2e/model          # after a change of your own, such as of its config.json

The exit status is 0 where there are no problems; a missing optional package is a note, not a problem.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from s2sft_fairseq.checksums import CHECKSUMS, check_checkpoint, check_folder, write_checksums
from s2sft_fairseq.diagnosis.report import Report
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.files import locked, whole_file


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line.

    Raises:
        UserError: naming every problem with its remedy.
    """
    parser = argparse.ArgumentParser(
        prog="s2sft doctor", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "paths",
        type=Path,
        nargs="*",
        metavar="PATH",
        help="a model folder, an encoder, binarized data, checkpoints, or a folder that holds several of them; without "
        "any, the machine is looked at",
    )
    parser.add_argument(
        "--accept", action="store_true", help="take the files as they are: write the checksums of each folder anew"
    )
    parser.add_argument("--json", action="store_true", help="print the findings as JSON")
    options = parser.parse_args(arguments)
    problems = [f"{path} must exist, but does not" for path in options.paths if not path.exists()]
    if options.accept:
        problems += [f"--accept is for folders, but {path} is a file" for path in options.paths if path.is_file()]
        problems += [] if options.paths else ["--accept needs at least one PATH"]
    if problems:
        raise UserError.of(problems)
    report = Report()
    if options.accept:
        _accept(options.paths, report)
    elif options.paths:
        _look_at_files(options.paths, report)
    else:
        _look_at_machine(report)
    print(report.json() if options.json else report.text())
    if report.problems:
        raise UserError.of(report.problems)


def _accept(folders: Sequence[Path], report: Report) -> None:
    for folder in folders:
        if (folder / CHECKSUMS).is_file():
            with locked(folder), whole_file(folder / CHECKSUMS) as temporary:
                write_checksums(folder, file=temporary)
            report.facts.setdefault("checksums", {})[str(folder)] = "those of the files now"
        else:
            report.problems.append(f"{folder} must hold {CHECKSUMS}, which s2sft writes, but does not")


def _look_at_files(paths: Sequence[Path], report: Report) -> None:
    from s2sft_fairseq.diagnosis.fit import check_parts  # which import PyTorch
    from s2sft_fairseq.diagnosis.parts import find_parts

    parts, checked = [], report.facts.setdefault("checksums", {})
    for path in paths:
        before = len(report.problems)
        with report.collected():
            if path.is_dir():
                report.problems += check_folder(path)
            else:
                check_checkpoint(path)
        fine = "all files are as they were written"
        if path.is_dir() and not any(file for name in (CHECKSUMS, "*.pt") for file in path.rglob(name)):
            fine = f"not compared: no {CHECKSUMS}"
        found = len(report.problems) - before
        checked[str(path)] = f"{found} problems" if found else fine
        parts += find_parts(path, report)
    report.facts["parts"] = {str(part.path): part.facts() for part in parts}
    check_parts(parts, report)


def _look_at_machine(report: Report) -> None:
    from s2sft_fairseq.diagnosis.machine import FAIRSEQ, examine_software

    examine_software(report)
    try:
        from s2sft_fairseq.diagnosis.hardware import examine_hardware
    except Exception as error:  # whatever a broken installation raises
        report.problems.append(
            f"PyTorch and fairseq must load, but raise {type(error).__name__} ({error}): pip install --force-reinstall "
            f"--no-deps torch fairseq-fixed=={FAIRSEQ}"
        )
        return
    examine_hardware(report)
