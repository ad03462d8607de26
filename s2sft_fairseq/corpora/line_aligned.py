"""Corpora that are published as line-aligned text files, one text per line.

A layout names the files of each split: first those of the fields of the source, last that of the target. Gigaword
headlines (Rush et al., 2015) have a full training set, and one of 10,000 pairs.
"""

import random
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from s2sft_fairseq.corpora.reading import Example, Malformed, aligned_lines, find
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.progress import bar


@dataclass(frozen=True)
class Layout:
    """The names of the files of each split; `further` sets are read if their files exist."""

    splits: Mapping[str, Sequence[str]]
    further: Mapping[str, Sequence[str]] = field(default_factory=dict)


def layout(
    pattern: str,
    *columns: str,
    train: str = "train",
    valid: str = "valid",
    test: str = "test",
    further: Sequence[str] = (),
) -> Layout:
    """Return the layout whose file names follow one pattern.

    Args:
        pattern: a name with ``{split}`` and ``{column}``.
        columns: the columns of the fields of the source, then of the target.
        train: name of the training set in file names.
        valid: name of the validation set in file names.
        test: name of the test set in file names.
        further: names of further test sets.
    """

    def names(split: str) -> list[str]:
        return [pattern.format(split=split, column=column) for column in columns]

    splits = {"train": names(train), "valid": names(valid), "test": names(test)}
    return Layout(splits, {name: names(name) for name in further})


PLAIN = layout("{split}.{column}", "src", "tgt")

# Rush et al. (2015): https://github.com/harvardnlp/sent-summary (sumdata), and UniLM's version of it (org_data).
GIGAWORD_UNILM = layout("{split}.{column}.txt", "src", "tgt", valid="dev")
GIGAWORD = (
    Layout(
        {
            "train": ["train/train.article.txt", "train/train.title.txt"],
            "valid": ["train/valid.article.filter.txt", "train/valid.title.filter.txt"],
            "test": ["Giga/input.txt", "Giga/task1_ref0.txt"],
        }
    ),
    GIGAWORD_UNILM,
    PLAIN,
)
# UniLM's selection of 10,000 of the 3.8 million pairs.
GIGAWORD_10K = (Layout({**GIGAWORD_UNILM.splits, "train": ["train.src.10k", "train.tgt.10k"]}), *GIGAWORD)


def multi30k(source: str, target: str) -> Sequence[Layout]:
    """Return layouts of Multi30k, task 1.

    Elliott et al., 2016; https://github.com/multi30k/dataset, ``data/task1/raw``.
    """
    further = ("test_2017_flickr", "test_2017_mscoco", "test_2018_flickr")
    return (
        layout("{split}.{column}", source, target, valid="val", test="test_2016_flickr", further=further),
        layout("{split}.{column}", "src", "tgt", further=further),
    )


XGIGA_LANGUAGES = ("en", "fr", "zh")


def xgiga(language: str) -> Sequence[Layout]:
    """Return layouts of headline generation in English, French or Chinese.

    Chi et al., 2020; XNLG's ``xgiga.tar.gz``.
    """
    return (layout("{split}.{column}." + language, "x", "y", valid="dev"),)


def xgiga_zero_shot(language: str, trained: str) -> Sequence[Layout]:
    """Return the layout of XGiga with the training pairs of one language and the test set of another.

    Args:
        language: the language of the test set.
        trained: the language of the training pairs.

    Returns:
        The layout. Its further sets ``text-LANG`` are the training sets of the available languages, whose sources serve
        as plain text.
    """
    (own,), (other,) = xgiga(language), xgiga(trained)
    texts = {f"text-{name}": xgiga(name)[0].splits["train"] for name in XGIGA_LANGUAGES}
    return (Layout({**other.splits, "test": own.splits["test"]}, texts),)


def xqg(language: str) -> Sequence[Layout]:
    """Return layouts of question generation in English or Chinese (Chi et al., 2020; XNLG's ``xqg.tar.gz``, of WebQA).

    ``e`` is the passage (evidence), ``a`` the answer, ``q`` the question.
    """
    return (
        layout("{split}.{column}." + language + ".lc", "e", "a", "q", valid="dev"),
        layout("{split}.{column}." + language, "e", "a", "q", valid="dev"),
    )


def wikilingua(language: str) -> Sequence[Layout]:
    """Return layouts of WikiLingua to English (Ladhak et al., 2020), split as in GEM v1 (``GEM_data_crosslingual``)."""
    return [layout(f"{folder}{{split}}.{{column}}", "src", "tgt", valid="val") for folder in (f"{language}_en/", "")]


def wmt10(source: str, target: str) -> Sequence[Layout]:
    """Return layouts of a language pair of WMT-10, by fairseq's file names with either language first.

    The corpus is not published as a whole.
    """
    pairs = (f"{source}-{target}", f"{target}-{source}")
    return [layout("{split}." + pair + ".{column}", source, target) for pair in pairs]


def read_line_aligned(folder: Path, layouts: Sequence[Layout], malformed: Malformed) -> dict[str, Iterator[Example]]:
    """Return the splits of the first layout whose files are all in the folder, and its further sets that exist.

    Raises:
        UserError: naming the files that each layout lacks; while reading, if the files of a split have different
            numbers of lines.
    """
    lacks = []
    for candidate in layouts:
        names = [name for files in candidate.splits.values() for name in files]
        if missing := [name for name in names if find(folder, name) is None]:
            lacks.append(f"one layout needs {', '.join(names)}, but the folder lacks {', '.join(missing)}")
            continue
        further = {name: files for name, files in candidate.further.items() if all(find(folder, f) for f in files)}
        return {split: _read(folder, files, malformed) for split, files in {**candidate.splits, **further}.items()}
    raise UserError.of(lacks, f"--raw {folder} holds the files of no known layout (plain or .gz):")


def _read(folder: Path, names: Sequence[str], malformed: Malformed) -> Iterator[Example]:
    paths = [path for path in (find(folder, name) for name in names) if path is not None]
    for number, texts in aligned_lines(paths, malformed):
        yield Example(paths[0], number, tuple(texts[:-1]), (texts[-1],), tuple(paths))


def sample(examples: Iterable[Example], number: int, seed: int) -> Iterator[Example]:
    """Draw examples with equal probability and keep their order (reservoir sampling; Vitter, 1985).

    If there are at most `number`, all are kept.
    """
    draw = random.Random(seed)
    kept: list[tuple[int, Example]] = []
    for index, example in enumerate(examples):
        if index < number:
            kept.append((index, example))
        elif (place := draw.randrange(index + 1)) < number:
            kept[place] = (index, example)
    for _, example in sorted(kept, key=lambda pair: pair[0]):
        yield example


SMALL = 10_000


def read_gigaword(folder: Path, size: str, seed: int, malformed: Malformed) -> dict[str, Iterator[Example]]:
    """Return all splits; for the size ``10k`` the training set has `SMALL` pairs: UniLM's if present, else a sample."""
    if size == "full":
        return read_line_aligned(folder, GIGAWORD, malformed)
    splits = read_line_aligned(folder, GIGAWORD_10K, malformed)
    return {**splits, "train": draw_small(splits["train"], malformed, seed)}


def draw_small(examples: Iterable[Example], malformed: Malformed, seed: int) -> Iterator[Example]:
    """Yield `SMALL` well-formed examples; if there are fewer, all of them, with a message."""
    drawn = list(sample(_well_formed(bar(examples, "draw", " pairs"), malformed), SMALL, seed))
    if len(drawn) < SMALL:
        print(f"--size 10k takes all {len(drawn):,} training pairs, for there are not {SMALL:,}", file=sys.stderr)
    yield from drawn


def _well_formed(examples: Iterable[Example], malformed: Malformed) -> Iterator[Example]:
    for example in examples:
        with malformed.record(example.path, example.where):
            example.source_line(), example.reference_lines()
            yield example
