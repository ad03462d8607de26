"""``s2sft tokenize``: split raw text into symbols of a pretrained vocabulary, for ``s2sft preprocess``."""

import argparse
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from s2sft_fairseq.checksums import CHECKSUMS, read_checksums, write_checksums
from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.data.text_files import is_json_lines, plain_name
from s2sft_fairseq.errors import UserError, printable, shown
from s2sft_fairseq.files import is_reserved, locked, remove_temporary, whole_file, write_whole
from s2sft_fairseq.hub import tokenizer_path
from s2sft_fairseq.tokenization.folder import open_tokenizer
from s2sft_fairseq.tokenization.tokenize_files import Job, TextTokenizer, tokenize_files
from s2sft_fairseq.tokenization.vocabulary import read_vocabulary

logger = logging.getLogger(__name__)

_NAMELESS = (Path("/dev/fd"), Path("/proc/self/fd"))  # the folders of the pipes that shells make for <(...)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line.

    Raises:
        UserError: naming everything that is wrong with the options, or with the files.
    """
    options = _parser().parse_args(arguments)
    texts = [path for path in options.input if not is_json_lines(path)]
    problems = []
    if options.workers < 1:
        problems.append(f"--workers must be at least 1, but is {options.workers}")
    problems += [
        f"--input {path}: an unnamed pipe gives no name for the output; use a named pipe (mkfifo) or a file"
        for path in options.input
        if path.parent in _NAMELESS
    ]
    if options.separator == "":
        problems.append("--separator must be a text, but is empty")
    if texts and options.target and not options.source:
        problems.append(f"--target {options.target} needs --source, the fields of the line-aligned files")
    fields = [*(options.source or []), *([options.target] if options.target else [])]
    problems += [
        f"--source and --target name {name} twice" for name in sorted({f for f in fields if fields.count(f) > 1})
    ]
    jobs = list(_json_jobs(options))
    if options.source:
        jobs += _field_jobs(options, texts, problems)
    else:
        jobs += [_text_job(options, path) for path in texts]
    problems += check_outputs(jobs)
    if options.dict:
        problems += _dict_problems(options.dict, [path for job in jobs for path in job.outputs])
    if problems:
        raise UserError.of(problems)
    groups = [] if options.source else [group for _, group in _by_stem(texts)]
    with locked(options.output_dir):
        names = {path.name for job in jobs for path in job.outputs}
        remove_temporary(options.output_dir, {*names, CHECKSUMS}.__contains__)
        _run(options, jobs, groups)
        if options.dict and options.dict.parent == options.output_dir:
            names.add(options.dict.name)
        _add_checksums(options.output_dir, names)


def _add_checksums(folder: Path, names: Iterable[str]) -> None:
    """Write the checksums of files of a folder; those of other runs keep theirs."""
    files = [name for name in names if (folder / name).is_file()]  # not pipes
    with whole_file(folder / CHECKSUMS) as temporary:
        write_checksums(folder, read_checksums(folder), names=files, file=temporary)


def _run(options: argparse.Namespace, jobs: Sequence[Job], groups: Sequence[Sequence[Path]]) -> None:
    if options.dict:
        vocabulary = read_vocabulary(options.tokenizer_dir)
        dictionary = PretrainedDictionary.of(vocabulary.symbols, vocabulary.special)
        write_whole(options.dict, lambda path: dictionary.save(str(path)))
        print(f"{printable(options.dict)}: {len(dictionary)} symbols")
    text_tokenizer = TextTokenizer(open_tokenizer(options.tokenizer_dir), options.separator)
    for path, stats in tokenize_files(text_tokenizer, jobs, options.workers, groups):
        print(f"{printable(path)}: {stats}")
        if warning := stats.warning(path):
            logger.warning(warning)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="s2sft tokenize", description=__doc__)
    parser.add_argument(
        "--tokenizer-dir",
        type=tokenizer_path,
        required=True,
        metavar="DIR",
        help="folder with the tokenizer's files: that of the converted encoder",
    )
    parser.add_argument(
        "--input",
        type=Path,
        nargs="+",
        required=True,
        metavar="FILE",
        help="raw text, one example a line, or .jsonl or .json, one JSON object a line; each may end in .gz. Text "
        "files that differ in their last suffix only (train.src, train.tgt) are line-aligned: they must have equally "
        "many lines",
    )
    parser.add_argument(
        "--output-dir", type=Path, required=True, metavar="DIR", help="folder to write to, under the same names"
    )
    parser.add_argument(
        "--source",
        nargs="+",
        metavar="FIELD",
        help="fields that make up the source, joined by the separator symbol ([SEP], </s>): keys of JSON objects, or "
        "suffixes of line-aligned files; written to STEM.src (default for .jsonl: src)",
    )
    parser.add_argument(
        "--target",
        metavar="FIELD",
        help="the field that is the target, written to STEM.tgt (default for .jsonl without --source: tgt)",
    )
    parser.add_argument(
        "--separator",
        metavar="TEXT",
        help="split the raw text of sources at this text into fields, which are joined by the separator symbol; "
        "targets (.tgt, --target) are not split (default: [SEP], in sources of one field: .src or one key)",
    )
    parser.add_argument(
        "--dict",
        type=Path,
        metavar="FILE",
        help="write the vocabulary there too, as the dict.txt that s2sft preprocess --srcdict takes: for a model that "
        "is trained from random weights; a converted encoder has it already",
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=len(os.sched_getaffinity(0)),
        metavar="N",
        help="processes (default: all cores)",
    )
    return parser


def _by_stem(paths: Iterable[Path]) -> Iterator[tuple[Path, list[Path]]]:
    """Yield the groups of files that differ in their last suffix only, each with its shared stem."""

    def stem(path: Path) -> Path:
        return path.with_name(plain_name(path)).with_suffix("")

    for shared, group in groupby(sorted(paths, key=lambda path: (stem(path), path)), key=stem):
        yield shared, list(group)


def _outputs(folder: Path, stem: str, sources: int, has_target: bool) -> dict[Path, tuple[int, ...]]:
    """Return the outputs, each with the indices of its fields: first those of the source, then maybe the target."""
    outputs = {folder / f"{stem}.src": tuple(range(sources))}
    if has_target:
        outputs[folder / f"{stem}.tgt"] = (sources,)
    return outputs


def _json_jobs(options: argparse.Namespace) -> Iterator[Job]:
    sources = options.source or ["src"]
    target = options.target or (None if options.source else "tgt")
    keys = (*sources, *([target] if target else []))
    for path in filter(is_json_lines, options.input):
        stem = Path(plain_name(path)).stem
        outputs = _outputs(options.output_dir, stem, len(sources), target is not None)
        yield Job((path,), keys, outputs, _divided(options, len(sources)))


def _text_job(options: argparse.Namespace, path: Path) -> Job:
    name = plain_name(path)
    kind = Path(name).suffix
    is_source = kind == ".src" or (options.separator is not None and kind != ".tgt")
    return Job((path,), (), {options.output_dir / name: (0,)}, (0,) if is_source else ())


def _divided(options: argparse.Namespace, sources: int) -> tuple[int, ...]:
    """Return the numbers of the fields that separators divide further; those of several fields only if it is given."""
    return tuple(range(sources)) if sources == 1 or options.separator is not None else ()


def _field_jobs(options: argparse.Namespace, texts: Iterable[Path], problems: list[str]) -> Iterator[Job]:
    """Yield a job for each group of line-aligned files, of which each holds one field."""
    fields = [*options.source, *([options.target] if options.target else [])]
    for stem, group in _by_stem(texts):
        files = {Path(plain_name(path)).suffix.removeprefix("."): path for path in group}
        for name, path in files.items():
            if name not in fields:
                problems.append(f"--input {path}: none of the fields {', '.join(fields)}")
        if missing := [f"{stem}.{name}" for name in fields if name not in files]:
            problems.append(f"--input needs a file for each field of {stem}, but lacks {', '.join(missing)}")
        else:
            inputs = tuple(files[name] for name in fields)
            outputs = _outputs(options.output_dir, stem.name, len(options.source), bool(options.target))
            yield Job(inputs, (), outputs, _divided(options, len(options.source)))


def _dict_problems(dictionary: Path, outputs: Sequence[Path]) -> Iterator[str]:
    if is_reserved(dictionary.name):
        yield f"--dict must not be called {shown(dictionary.name)}: that name is used for other files"
    if dictionary.resolve() in {path.resolve() for path in outputs}:
        yield f"--dict {dictionary} would be replaced by the output of this name: give it another name"


def check_outputs(jobs: Sequence[Job]) -> Iterator[str]:
    """Yield an error for each output that would overwrite an input or another output, or has a name of other files."""
    inputs = {path.resolve(): path for job in jobs for path in job.inputs}
    writers: dict[Path, list[str]] = {}
    for job in jobs:
        for path in job.outputs:
            writers.setdefault(path, []).append(str(job.inputs[0]))
    for path, names in writers.items():
        if is_reserved(path.name):
            yield f"--input {names[0]} must have another name: {shown(path.name)} in --output-dir is another file"
        if path.resolve() in inputs:
            yield f"--output-dir {path.parent} holds the input {inputs[path.resolve()]} itself; give another folder"
        if len(names) > 1:
            yield f"--input needs files of different names, but {path} would be written of {' and '.join(names)}"
