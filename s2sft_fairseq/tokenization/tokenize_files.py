"""Tokenize files of raw text to files of symbols, on all cores, for ``s2sft tokenize``."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from itertools import count, islice
from pathlib import Path

from s2sft_fairseq.data.bounded_files import (
    READING_ERRORS,
    has_half_pair,
    open_bytes,
    parse_json,
    reading_problem,
)
from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.data.parquet import open_parquet
from s2sft_fairseq.data.text_files import check_texts, is_parquet, line_problems, split_fields
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.files import whole_file
from s2sft_fairseq.progress import bar
from s2sft_fairseq.tokenization.folder import Tokenizer
from s2sft_fairseq.tokenization.statistics import PieceStats
from s2sft_fairseq.tokenization.symbols import write_symbol
from s2sft_fairseq.tokenization.workers import Workers

CHUNK_LINES = 1000
_SHOWN_MISTAKES = 10
_LINE_END = re.compile(r"\r\n|[\r\n]")
_SPACE = re.compile(r"\s")

Field = str | list[str]
"""Raw text, or the list of its tokens."""


@dataclass(frozen=True)
class Job:
    """Input files that are read together, and the outputs to write from them."""

    inputs: tuple[Path, ...]  # line-aligned text files with one field each, or one file of JSON lines or Parquet
    keys: tuple[str, ...]  # the fields of JSON lines, the columns of Parquet; () for text
    outputs: dict[Path, tuple[int, ...]]  # the numbers of the fields that each output joins
    # The numbers of the fields in whose text a separator begins another field; None: the only field, if there is one.
    divided: tuple[int, ...] | None = None

    def is_divided(self, number: int) -> bool:
        """Return whether a separator in the text of a field begins another field."""
        if self.divided is None:
            return max(len(self.inputs), len(self.keys)) == 1
        return number in self.divided


@dataclass(frozen=True)
class TextTokenizer:
    """The data that all workers share: a tokenizer, and the separator of `split_fields`."""

    tokenizer: Tokenizer
    separator: str | None = None

    def encode(self, fields: Sequence[Field], *, divided: bool = False) -> list[str]:
        """Return the symbols of each field, separated by spaces.

        Args:
            fields: the fields.
            divided: whether a separator in the text of a field begins another field; otherwise it is text.
        """
        texts = [field for field in fields if isinstance(field, str)]
        encoded = iter(self._encode_sources(texts) if divided else self.tokenizer.encode_batch(texts))
        return [next(encoded) if isinstance(field, str) else " ".join(map(write_symbol, field)) for field in fields]

    def _encode_sources(self, texts: list[str]) -> list[str]:
        split = [split_fields(text, self.separator) for text in texts]
        encoded = iter(self.tokenizer.encode_batch([part for parts in split for part in parts]))
        return [self.join(list(islice(encoded, len(parts)))) for parts in split]

    def join(self, fields: Sequence[str]) -> str:
        """Join the symbols of fields with the symbol that separates fields, including empty fields."""
        line = f" {self.tokenizer.dictionary.eos_word} ".join(fields)
        return line if all(fields) else " ".join(line.split())


def tokenize_files(
    text_tokenizer: TextTokenizer, jobs: Sequence[Job], workers: int, aligned: Sequence[Sequence[Path]] = ()
) -> Iterator[tuple[Path, PieceStats]]:
    """Check all inputs, then write the outputs of each job. A file appears only when it is complete.

    Args:
        text_tokenizer: the tokenizer.
        jobs: the jobs.
        workers: number of processes, which does not change the result.
        aligned: groups of text files that must have the same number of lines, if each file is a job of its own.

    Yields:
        Each output with its statistics, when it is complete.

    Raises:
        UserError: lists all mistakes of all inputs; no output is written then.
    """
    with Workers(workers, text_tokenizer) as pool:
        lines = check_inputs(pool, jobs, aligned)
        for job in jobs:
            yield from _run(pool, job, lines[job.inputs[0]]).items()


def _run(pool: Workers, job: Job, lines: int) -> dict[Path, PieceStats]:
    stats = {path: PieceStats() for path in job.outputs}
    name = ", ".join(path.name for path in job.outputs)
    with ExitStack() as outputs:
        temporary = {path: outputs.enter_context(whole_file(path)) for path in job.outputs}
        with ExitStack() as stack:
            files = {path: stack.enter_context(temporary[path].open("wb")) for path in job.outputs}
            shown = stack.enter_context(bar(what=name, unit=" lines", total=lines))
            for parts in pool.map(_tokenize, ((job, chunk) for chunk in _chunks(job))):
                for path, (text, counted) in zip(job.outputs, parts, strict=True):
                    files[path].write(text)
                    stats[path].add(counted)
                shown.update(parts[0][1].lengths.total())
    return stats


def _chunks(job: Job) -> Iterator[list[bytes]]:
    """Yield the next lines of each input."""
    with ExitStack() as stack:
        files = [stack.enter_context(open_input(job, path)) for path in job.inputs]
        while chunk := [part for file in files if (part := b"".join(islice(file, CHUNK_LINES)))]:
            yield chunk


def open_input(job: Job, path: Path) -> AbstractContextManager[Iterator[bytes]]:
    """Open an input of a job for reading line by line; rows of Parquet are read as JSON lines.

    Raises:
        UserError: a Parquet file cannot be read, or lacks a column.
    """
    return open_parquet(path, job.keys) if is_parquet(path) else open_bytes(path)


def tokenize_chunk(text_tokenizer: TextTokenizer, job: Job, chunk: Sequence[bytes]) -> Iterator[list[str]]:
    """Yield the lines of symbols of each output, given the next lines of each input, which were checked."""
    encoded = [
        text_tokenizer.encode(column, divided=job.is_divided(number))
        for number, column in enumerate(columns_of(job, chunk))
    ]
    for numbers in job.outputs.values():
        if len(numbers) == 1:
            yield encoded[numbers[0]]
        else:
            yield list(map(text_tokenizer.join, zip(*(encoded[number] for number in numbers), strict=True)))


def columns_of(job: Job, chunk: Sequence[bytes]) -> list[list[Field]]:
    """Return the fields of the next lines of each input, a list for each number of a field."""
    return json_columns(chunk[0], job.keys) if job.keys else list(map(text_column, chunk))


def _tokenize(text_tokenizer: TextTokenizer, work: tuple[Job, list[bytes]]) -> list[tuple[bytes, PieceStats]]:
    """Return the next lines of each output, and their statistics."""
    job, chunk = work
    parts = []
    for numbers, lines in zip(job.outputs.values(), tokenize_chunk(text_tokenizer, job, chunk), strict=True):
        stats = piece_stats(text_tokenizer, job, chunk, numbers, lines)
        parts.append(("\n".join([*lines, ""]).encode(), stats))
    return parts


def piece_stats(
    text_tokenizer: TextTokenizer, job: Job, chunk: Sequence[bytes], numbers: Sequence[int], lines: Sequence[str]
) -> PieceStats:
    """Return the statistics of a chunk of an output.

    Args:
        text_tokenizer: the tokenizer.
        job: the job of the output.
        chunk: the raw lines of each input.
        numbers: the numbers of the fields that the output joins.
        lines: the lines of symbols.
    """
    dictionary = text_tokenizer.tokenizer.dictionary
    unknown, separator = dictionary.unk_word, dictionary.eos_word
    stats = PieceStats(Counter(line.count(" ") + 1 if line else 0 for line in lines))
    if any(map(job.is_divided, numbers)):  # text never becomes the separator otherwise
        stats.divided = sum(line.split(" ").count(separator) >= len(numbers) for line in lines if separator in line)
    with_unknown = [number for number, line in enumerate(lines) if unknown in line]
    stats.unknown = sum(lines[number].split(" ").count(unknown) for number in with_unknown)
    if stats.unknown:
        first = with_unknown[0]
        columns = columns_of(job, chunk)
        raw = " ".join(str(columns[number][first]) for number in numbers)
        stats.example = f"{raw!r:.80}, which becomes {lines[first]:.80}"
    return stats


def check_inputs(
    pool: Workers, jobs: Sequence[Job], aligned: Sequence[Sequence[Path]] = (), *, allow_empty: bool = False
) -> dict[Path, int]:
    """Check all inputs, and return the number of lines of each.

    Args:
        pool: the processes.
        jobs: the jobs.
        aligned: as for `tokenize_files`.
        allow_empty: accept files without lines.

    Raises:
        UserError: lists all mistakes of all inputs.
    """
    problems: list[str] = []
    lines = {}
    groups = aligned or [job.inputs for job in jobs if not job.keys]
    try:
        lines = {file.path: file.lines for file in check_texts(groups, allow_crlf=True, allow_empty=allow_empty)}
    except UserError as error:
        problems += error.problems
    for job in jobs:
        if job.keys:
            lines[job.inputs[0]] = _check_json(pool, job, allow_empty, problems)
    if problems:
        raise UserError.of(problems, heading="nothing was written:")
    return lines


def _check_json(pool: Workers, job: Job, allow_empty: bool, problems: list[str]) -> int:
    """Return the number of lines of a file of JSON lines, and append its mistakes to `problems`."""
    path, lines = job.inputs[0], 0
    wrong: dict[str, list[int]] = {}
    try:
        with bar(what=f"check {path.name}", unit=" lines") as shown:
            for chunk, mistakes in pool.map(_find_mistakes, ((job, chunk) for chunk in _chunks(job))):
                for what, numbers in mistakes.items():
                    wrong.setdefault(what, []).extend(lines + number for number in numbers)
                lines += chunk
                shown.update(chunk)
    except READING_ERRORS as error:
        problems.append(reading_problem(path, error))
        return lines
    except UserError as error:
        problems += error.problems
        return lines
    if not (lines or allow_empty):
        problems.append(f"{path}: is empty, at least one line is needed")
    problems += islice(line_problems(path, wrong), _SHOWN_MISTAKES)
    if len(wrong) > _SHOWN_MISTAKES:
        problems.append(f"{path}: {len(wrong) - _SHOWN_MISTAKES} further kinds of mistakes")
    return lines


def _find_mistakes(text_tokenizer: TextTokenizer, work: tuple[Job, list[bytes]]) -> tuple[int, dict[str, list[int]]]:
    """Return the number of lines, and for each mistake the numbers of the lines that have it, from 1."""
    job, chunk = work
    wrong: dict[str, list[int]] = {}
    lines = chunk[0].removesuffix(b"\n").split(b"\n")
    for number, line in zip(count(1), lines):
        for what in json_mistakes(line, job.keys, text_tokenizer.tokenizer.dictionary):
            wrong.setdefault(what, []).append(number)
    return len(lines), wrong


def text_column(lines: bytes) -> list[Field]:
    """Return the lines of a checked text."""
    text = lines.decode("utf-8").removesuffix("\n")
    return [line.removesuffix("\r") for line in text.split("\n")]


def json_columns(lines: bytes, keys: Sequence[str]) -> list[list[Field]]:
    """Return the fields of checked JSON lines, a list for each key; line ends within text become spaces."""
    columns: list[list[Field]] = [[] for _ in keys]
    for line in lines.removesuffix(b"\n").split(b"\n"):
        example = parse_json(line, half_pairs=True)
        for key, column in zip(keys, columns, strict=True):
            value = example[key]
            column.append(_LINE_END.sub(" ", value) if isinstance(value, str) else value)
    return columns


def json_mistakes(line: bytes, keys: Sequence[str], dictionary: PretrainedDictionary) -> Iterator[str]:
    """Yield the mistakes of a line of JSON, as the rest of a sentence that begins with "12 line(s)"."""
    try:
        example = parse_json(line, half_pairs=True)
    except UnicodeDecodeError:
        yield "are not valid UTF-8"
        return
    except ValueError:
        yield "are not valid JSON"
        return
    if not isinstance(example, dict):
        yield "are not a JSON object"
        return
    for key in keys:
        value = example.get(key)
        if key not in example:
            yield f'lack "{key}"'
        elif has_half_pair(value):
            yield f'have half of a surrogate pair in "{key}"'
        elif isinstance(value, str):
            continue
        elif not isinstance(value, list) or not all(isinstance(token, str) for token in value):
            yield f'have a "{key}" that is neither text nor a list of tokens'
        else:
            unknown = [token for token in dict.fromkeys(value) if write_symbol(token) not in dictionary]
            if any(_SPACE.search(token.strip()) for token in unknown):
                yield f'have a "{key}" that is a list of texts, not one text or the list of its tokens'
                continue
            for token in unknown:
                yield f'have in "{key}" the token {token!r}, which is not in the vocabulary'
