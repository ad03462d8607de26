"""``s2sft span-vocab``: find the bigrams and trigrams of tokenized text that ERNIE-GEN predicts as one span."""

import argparse
import math
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.data.text_files import check_texts
from s2sft_fairseq.errors import UserError, as_option
from s2sft_fairseq.files import disk_errors
from s2sft_fairseq.hub import tokenizer_path
from s2sft_fairseq.spans.counting import Found, Resources, find_collocations
from s2sft_fairseq.spans.ngrams import Collocations, words_of_keys
from s2sft_fairseq.spans.vocabulary import Entry, write_spans
from s2sft_fairseq.spans.words import TokenText, ids_of, word_rule
from s2sft_fairseq.tokenization.folder import open_tokenizer

_GIB = 1 << 30


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line.

    Raises:
        UserError: naming everything that is wrong with the options, or with the files.
    """
    options = _parser().parse_args(arguments)
    if problems := list(_problems(options)):
        raise UserError.of(problems)
    tokenizer = open_tokenizer(options.tokenizer_dir)
    rule = word_rule(tokenizer)
    stats = check_texts([[path] for path in options.input], allow_crlf=True)
    lines = sum(file.lines for file in stats)
    with disk_errors(options.output):
        options.output.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=options.temporary_dir, prefix="s2sft-span-vocab-") as folder,
        disk_errors(Path(folder)),
    ):
        found = find_collocations(
            options.input,
            lines,
            TokenText(tokenizer.dictionary),
            rule,
            {2: options.bigrams, 3: options.trigrams},
            options.min_count,
            Resources(options.workers, int(options.max_memory * _GIB), Path(folder)),
        )
    ngrams = [list(_entries(found, order, tokenizer.dictionary)) for order in (2, 3)]
    totals = dict(zip(("words", "bigrams", "trigrams"), found.totals.tolist(), strict=True))
    facts = {
        "corpus": {"lines": lines, **totals},
        "options": {name: getattr(options, name) for name in ("bigrams", "trigrams", "min_count")},
    }
    write_spans(options.output, tokenizer.dictionary, rule, ngrams, facts)
    print(
        f"{options.output}: {_summary('bigrams', ngrams[0], totals)}, {_summary('trigrams', ngrams[1], totals)}; "
        f"{totals['words']:,} words in {lines:,} lines"
    )


def _problems(options: argparse.Namespace) -> Iterator[str]:
    for name, least in (("bigrams", 0), ("trigrams", 0), ("min_count", 1), ("workers", 1)):
        if (value := getattr(options, name)) < least:
            yield f"{as_option(name)} must be at least {least}, but is {value}"
    if not 0 < options.max_memory < math.inf:
        yield f"--max-memory must be above 0, but is {options.max_memory}"
    if options.temporary_dir and not options.temporary_dir.is_dir():
        yield f"--temporary-dir must be a folder, but {options.temporary_dir} is not one"
    if options.output.is_dir():
        yield f"--output {options.output} must be a file, but is a folder"
    resolved = [path.resolve() for path in options.input]
    if options.output.resolve() in resolved:
        yield f"--output {options.output} is an input too; give another name"
    for path in sorted({path for path in resolved if resolved.count(path) > 1}):
        yield f"--input names {path} twice"


def _entries(found: Found, order: int, dictionary: PretrainedDictionary) -> Iterator[Entry[str]]:
    ngrams: Collocations = found.ngrams[order]
    words = words_of_keys(ngrams.keys, order).tolist()
    for numbers, count, t in zip(words, ngrams.counts.tolist(), ngrams.t.tolist(), strict=True):
        ids = [token for number in numbers for token in ids_of(found.spellings[number])]
        yield Entry([dictionary.symbols[token] for token in ids], count, t)


def _summary(name: str, entries: Sequence[Entry[str]], totals: dict[str, int]) -> str:
    t = f" (t {entries[0].t:.2f} to {entries[-1].t:.2f})" if entries else ""
    return f"{len(entries):,} {name}{t} of {totals[name]:,}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="s2sft span-vocab", description=__doc__)
    parser.add_argument(
        "--tokenizer-dir",
        type=tokenizer_path,
        required=True,
        metavar="DIR",
        help="folder with the tokenizer's files: the one that s2sft tokenize was given",
    )
    parser.add_argument(
        "--input",
        type=Path,
        nargs="+",
        required=True,
        metavar="FILE",
        help="tokenized text as s2sft tokenize writes it, one text a line; may end in .gz. N-grams do not cross lines",
    )
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="file to write")
    parser.add_argument(
        "--bigrams", type=int, default=200_000, metavar="N", help="how many at most (default: 200000, as in the paper)"
    )
    parser.add_argument(
        "--trigrams", type=int, default=50_000, metavar="N", help="how many at most (default: 50000, as in the paper)"
    )
    parser.add_argument(
        "--min-count",
        type=int,
        default=4,
        metavar="N",
        help="how often an n-gram must occur (default: 4, the least with which t can exceed 1.96, its 5 %% level)",
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=len(os.sched_getaffinity(0)),
        metavar="N",
        help="processes (default: all cores)",
    )
    parser.add_argument(
        "--max-memory",
        type=float,
        default=1.0,
        metavar="GIB",
        help="GiB of memory for text and n-grams in all processes (default: 1); the rest goes to temporary files",
    )
    parser.add_argument(
        "--temporary-dir",
        type=Path,
        metavar="DIR",
        help="folder of temporary files (default: the system's); up to 32 bytes per word, removed at the end",
    )
    return parser
