"""Read the output of fairseq-preprocess: the language pairs of a folder, their dictionary and their texts."""

import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from fairseq.data import ConcatDataset, data_utils
from fairseq.data.indexed_dataset import IndexedCachedDataset, IndexedDataset, MMapIndexedDataset

from s2sft_fairseq.checksums import check_files
from s2sft_fairseq.data.fairseq_dictionary import FairseqDictionary
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.received import check_regular

_DAMAGED = (ValueError, OSError, AssertionError, KeyError, MemoryError, OverflowError, struct.error)
"""What fairseq raises for a damaged index."""


@dataclass(frozen=True)
class LanguagePair:
    """A translation direction in the data."""

    source: str
    """Suffix of the sources."""
    target: str
    """Suffix of the targets."""
    language: str
    """Language of the targets; by default their suffix."""

    def __str__(self) -> str:
        return f"{self.source}-{self.target}"


def parse_pairs(text: str | None, option: str = "--lang-pairs") -> list[LanguagePair]:
    """Parse language pairs such as ``en-de,de-en``; None gives an empty list.

    If the suffix of the targets is not a language, the language follows it: ``src-tgt:en``.

    Raises:
        UserError: naming every pair that is malformed or occurs twice.
    """
    pairs: list[LanguagePair] = []
    problems = []
    for word in text.split(",") if text else []:
        suffixes, _, language = word.partition(":")
        source, _, target = suffixes.partition("-")
        if not source or not target or "-" in target:
            problems.append(
                f"{option} must be pairs such as en-de or src-tgt:en, separated by commas, but has {word!r}"
            )
        elif any((pair.source, pair.target) == (source, target) for pair in pairs):
            problems.append(f"{option} has {source}-{target} twice")
        else:
            pairs.append(LanguagePair(source, target, language or target))
    if problems:
        raise UserError.of(problems)
    return pairs


def parse_languages(text: str | None, option: str = "--text-languages") -> list[str]:
    """Parse names of languages, separated by commas; None gives an empty list.

    Raises:
        UserError: if a name is empty or occurs twice.
    """
    languages = text.split(",") if text else []
    if not all(languages) or len(set(languages)) < len(languages):
        raise UserError(f"{option} must be different names, separated by commas, but is {text!r}")
    return languages


def load_common_dictionary(paths: Sequence[Path]) -> FairseqDictionary:
    """Load the dictionary of which all parts of the data have a copy.

    Raises:
        UserError: naming all copies that are missing, or that differ from the first.
    """
    problems = [f"dictionary {path} does not exist" for path in paths if not path.is_file()]
    if not problems:
        first = paths[0].read_bytes()
        problems = [f"dictionary {path} differs from {paths[0]}" for path in paths[1:] if path.read_bytes() != first]
    if problems:
        raise UserError.of(problems, "all languages must share one dictionary, the --srcdict of s2sft preprocess:")
    return FairseqDictionary.load(str(paths[0]))


def find_languages(folder: Path) -> tuple[str, str]:
    """Return the suffixes of source and target from the file names, ``<split>.<source>-<target>.<suffix>.idx``.

    Raises:
        UserError: if the folder is missing, has no such file, or has more than one pair.
    """
    if not folder.is_dir():
        raise UserError(f"data folder {folder} does not exist: it must be one that fairseq-preprocess wrote")
    pairs = language_pairs(folder)
    if len(pairs) != 1:
        found = ", ".join(sorted("-".join(pair) for pair in pairs)) or "none"
        raise UserError(f"--source-lang and --target-lang must be given: {folder} holds language pairs: {found}")
    (pair,) = pairs
    return pair


def language_pairs(folder: Path) -> set[tuple[str, str]]:
    """Return the suffixes of source and target of all pairs that a folder has files of; none of plain text."""
    names = [path.name.split(".") for path in folder.iterdir()]
    pairs = (name[1].split("-") for name in names if len(name) >= 3 and name[1].count("-") == 1)
    return {(source, target) for source, target in pairs}


def load_dictionary(folder: Path, source: str, target: str) -> FairseqDictionary:
    """Load the dictionary that source and target share.

    Raises:
        UserError: if it is missing, or if source and target have different ones.
    """
    paths = [folder / f"dict.{suffix}.txt" for suffix in dict.fromkeys((source, target))]
    present = [path for path in paths if path.is_file()]
    if not present:
        raise UserError(f"{folder} must hold {' and '.join(path.name for path in paths)}, but holds neither")
    dictionaries = [FairseqDictionary.load(str(path)) for path in present]
    if any(dictionary.symbols != dictionaries[0].symbols for dictionary in dictionaries):
        sizes = " and ".join(f"{path.name} has {len(d)}" for path, d in zip(present, dictionaries, strict=True))
        raise UserError(
            f"source and target must share one dictionary, but differ in {folder}: {sizes} symbols; "
            "give fairseq-preprocess --joined-dictionary and --srcdict"
        )
    return dictionaries[0]


def load_split(
    folder: Path,
    split: str,
    source: str,
    target: str,
    dictionary: FairseqDictionary,
    impl: str | None,
    combine: bool,
) -> tuple[Any, Any | None]:
    """Load the sources of a split, and its targets if it has any.

    Args:
        folder: the output folder of fairseq-preprocess.
        split: name of the split, such as ``train``.
        source: suffix of the sources.
        target: suffix of the targets.
        dictionary: the dictionary, for raw text.
        impl: implementation of the data set (``--dataset-impl``); None: inferred from the files.
        combine: whether ``train1``, ``train2`` and so on belong to ``train``.

    Raises:
        UserError: if files are missing, truncated or of different lengths.
    """
    parts: list[tuple[Any, Any | None]] = []
    while (part := _load_part(folder, f"{split}{len(parts) or ''}", source, target, dictionary, impl)) is not None:
        parts.append(part)
        if not combine:
            break
    if not parts:
        splits = sorted({path.name.split(".")[0] for path in folder.glob("*.idx")})
        raise UserError(
            f"no data for the split {split!r} ({source}-{target}) in {folder}; it has: {', '.join(splits) or 'none'}"
        )
    if len(parts) == 1:
        return parts[0]
    sources, targets = zip(*parts, strict=True)
    with_targets = [dataset for dataset in targets if dataset is not None]
    if with_targets and len(with_targets) < len(parts):
        raise UserError(
            f"of the {len(parts)} parts of the split {split!r} in {folder} "
            f"only {len(with_targets)} have targets ({target})"
        )
    return ConcatDataset(sources), ConcatDataset(with_targets) if with_targets else None


def load_texts(folder: Path, split: str, dictionary: FairseqDictionary, impl: str | None) -> Any:
    """Load a split of plain text, ``<split>.idx`` and ``.bin``.

    Raises:
        UserError: if files are missing or truncated.
    """
    lines = _load(str(folder / split), dictionary, impl)
    if lines is None:
        splits = sorted(path.stem for path in folder.glob("*.idx"))
        raise UserError(
            f"no data for the split {split!r} in {folder}; it has: {', '.join(splits) or 'none'} "
            "(s2sft preprocess --only-source writes it)"
        )
    return lines


def load_text_dictionary(folder: Path) -> FairseqDictionary:
    """Load the dictionary of plain text, ``dict.txt``.

    Raises:
        UserError: if the folder or the dictionary is missing.
    """
    path = folder / "dict.txt"
    if not path.is_file():
        raise UserError(f"{folder} must be a folder that s2sft preprocess --only-source wrote, but lacks dict.txt")
    return FairseqDictionary.load(str(path))


def _load_part(
    folder: Path, split: str, source: str, target: str, dictionary: FairseqDictionary, impl: str | None
) -> tuple[Any, Any | None] | None:
    for pair in (f"{source}-{target}", f"{target}-{source}", f"{source}-None"):
        prefix = str(folder / f"{split}.{pair}.")
        sources = _load(prefix + source, dictionary, impl)
        if sources is not None:
            break
    else:
        return None
    targets = _load(prefix + target, dictionary, impl)
    if targets is not None and len(sources) != len(targets):
        raise UserError(
            f"{prefix}{source} has {len(sources)} examples, but {prefix}{target} has {len(targets)}: "
            "line n of the target must belong to line n of the source"
        )
    return sources, targets


def _load(prefix: str, dictionary: FairseqDictionary, impl: str | None) -> Any | None:
    check_regular(path for end in (".idx", ".bin") if os.path.lexists(path := Path(prefix + end)))
    check_files(*(Path(prefix + end) for end in (".idx", ".bin")))
    try:
        dataset = data_utils.load_indexed_dataset(prefix, dictionary, impl)
    except _DAMAGED as error:
        raise UserError(f"{prefix}.idx or .bin is empty or damaged; run fairseq-preprocess again ({error})") from None
    halves = [prefix + end for end in (".idx", ".bin")]
    present = [path for path in halves if os.path.exists(path)]
    if dataset is None and len(present) == 1:
        (lost,) = set(halves) - set(present)
        raise UserError(f"{lost} is missing beside {present[0]}; run fairseq-preprocess again")
    # fairseq would notice a truncated file only when it reads its end, in the middle of an epoch, or not at all.
    if (needed := _bytes_needed(dataset)) and (found := os.path.getsize(prefix + ".bin")) < needed:
        raise UserError(f"{prefix}.bin is truncated: needs {needed} bytes, has {found}; run fairseq-preprocess again")
    if not _is_in_order(dataset):
        raise UserError(
            f"{prefix}.idx is damaged: its places are not those of its lengths; run fairseq-preprocess again"
        )
    if isinstance(dataset, IndexedCachedDataset):
        dataset.prefetch(range(len(dataset)))  # this data set can return only prefetched examples
    return dataset


def _bytes_needed(dataset: Any) -> int:
    """Return the number of bytes that the ``.bin`` file of a data set must have; 0 if there is no such file."""
    if isinstance(dataset, IndexedDataset):
        return int(dataset.data_offsets[-1]) * dataset.element_size
    if isinstance(dataset, MMapIndexedDataset) and len(dataset):
        index = dataset._index
        return int(index._pointers[-1]) + int(index._sizes[-1]) * index.dtype().itemsize
    return 0


def _is_in_order(dataset: Any) -> bool:
    """Return whether each example of an index begins where the one before it ends, as fairseq writes them.

    fairseq itself would fail when it reads a place outside the file, in the middle of an epoch, or read other examples.
    """
    if not isinstance(dataset, MMapIndexedDataset):
        return True
    index = dataset._index
    sizes = index._sizes.astype(np.int64)
    starts = np.cumsum(sizes) - sizes
    return bool((sizes >= 0).all() and (index._pointers == starts * index.dtype().itemsize).all())
