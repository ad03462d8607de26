"""A summarization corpus from the docstrings of installed packages: text below the first sentence -> first sentence.

The source files are parsed, never imported. Each module goes to train, valid or test as a whole. No summary and no
body, compared by letters only, occurs in two of them.
"""

import ast
import hashlib
import importlib.metadata
import importlib.util
import json
import platform
import random
import re
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from s2sft_fairseq.corpora.docstring_text import split_docstring
from s2sft_fairseq.data.text_files import write_lines
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.progress import bar

STANDARD_LIBRARY = "stdlib"
DEFAULT_PACKAGES = ("torch", "scipy", "sklearn", "sympy", "networkx", "numpy", STANDARD_LIBRARY)
# A text that would be in two splits goes to the first in this order.
SPLITS = ("test", "valid", "train")

_SKIPPED_FOLDERS = {"test", "tests", "site-packages", "dist-packages", "idlelib", "lib2to3", "ensurepip", "__pycache__"}
_POINTER = re.compile(
    r"(see|refer to|please (see|refer)|same as|alias (of|for)|todo|deprecated|this file is in the process of)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class CorpusSettings:
    """The settings that, with the versions of the packages, determine the corpus.

    `valid_share` and `test_share` are shares of the modules; lengths are numbers of words separated by white space.
    """

    packages: tuple[str, ...] = DEFAULT_PACKAGES
    min_body_words: int = 10
    min_summary_words: int = 3
    max_summary_words: int = 40
    valid_share: float = 0.05
    test_share: float = 0.05
    seed: int = 1

    def __post_init__(self) -> None:
        problems = []
        if not self.packages:
            problems.append("--packages needs at least one name, found none")
        if len(set(self.packages)) < len(self.packages):
            problems.append(f"--packages needs each name once, found {' '.join(self.packages)}")
        shares = (self.valid_share, self.test_share)
        if not (all(share >= 0 for share in shares) and sum(shares) < 1):  # also for NaN
            problems.append(
                "--valid-share and --test-share need to be at least 0 and together below 1, "
                f"found {self.valid_share} and {self.test_share}"
            )
        if not 1 <= self.min_summary_words <= self.max_summary_words:
            problems.append(
                "--min-summary-words needs to be between 1 and --max-summary-words "
                f"({self.max_summary_words}), found {self.min_summary_words}"
            )
        if self.min_body_words < 1:
            problems.append(f"--min-body-words needs to be at least 1, found {self.min_body_words}")
        if problems:
            raise UserError.of(problems)


@dataclass(frozen=True)
class Package:
    """An installed package with its version and its source files."""

    name: str
    version: str
    files: tuple[tuple[str, Path], ...]  # (dotted module name, file), ordered by path


@dataclass(frozen=True)
class Pair:
    """An example: `body` is the text to summarize, `summary` its reference."""

    package: str
    module: str
    summary: str
    body: str


@dataclass
class Corpus:
    """The pairs of each split, and counts of what was left out."""

    splits: dict[str, list[Pair]]
    versions: dict[str, str]
    dropped: Counter[str] = field(default_factory=Counter)
    unparsable: list[str] = field(default_factory=list)


def build_corpus(settings: CorpusSettings) -> Corpus:
    """Collect, filter and split the pairs; the same settings and package versions give the same corpus.

    Raises:
        UserError: if a package is not installed.
    """
    packages = find_packages(settings.packages)
    corpus = Corpus({split: [] for split in SPLITS}, {package.name: package.version for package in packages})
    bodies: set[str] = set()
    files = [(package.name, module, path) for package in packages for module, path in package.files]
    for name, module, path in bar(files, "docstrings", " files"):
        try:
            docstrings = list(read_docstrings(path))
        except (SyntaxError, ValueError, RecursionError) as error:
            corpus.unparsable.append(f"{module}: {error}")
            continue
        for docstring in docstrings:
            summary, body = split_docstring(docstring)
            reason = reason_to_drop(summary, body, settings)
            if not reason and letters(body) in bodies:
                reason = "body seen before"
            if reason:
                corpus.dropped[reason] += 1
                continue
            bodies.add(letters(body))
            corpus.splits[split_of(module, settings)].append(Pair(name, module, summary, body))
    _keep_summaries_apart(corpus)
    for pairs in corpus.splits.values():  # so that the beginning of a split has examples of all packages
        random.Random(settings.seed).shuffle(pairs)
    return corpus


def find_packages(names: Iterable[str]) -> list[Package]:
    """Find the source files of installed packages without importing them; test folders are left out.

    Args:
        names: names as imported (``sklearn``), or ``stdlib``.

    Raises:
        UserError: naming all packages that are not installed.
    """
    packages, problems = [], []
    distributions = importlib.metadata.packages_distributions()
    for name in bar(names, "find sources", " packages"):
        if name == STANDARD_LIBRARY:
            root = Path(sysconfig.get_path("stdlib"))
            packages.append(Package(name, platform.python_version(), tuple(_modules(root, ""))))
            continue
        spec = importlib.util.find_spec(name) if name.isidentifier() else None
        if spec is None or not (spec.submodule_search_locations or spec.has_location):
            problems.append(f"--packages needs names of installed packages as they are imported, found {name!r}")
            continue
        version = importlib.metadata.version(distributions[name][0]) if name in distributions else "unknown"
        if spec.submodule_search_locations:
            files = [item for root in spec.submodule_search_locations for item in _modules(Path(root), f"{name}.")]
        else:
            files = [(name, Path(str(spec.origin)))]
        packages.append(Package(name, version, tuple(files)))
    if problems:
        raise UserError.of(problems)
    return packages


def _modules(root: Path, prefix: str) -> Iterator[tuple[str, Path]]:
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if _SKIPPED_FOLDERS.isdisjoint(parts) and not parts[-1].startswith("test_") and parts[-1] != "conftest":
            yield (prefix + ".".join(parts)).removesuffix(".__init__"), path


def read_docstrings(path: Path) -> Iterator[str]:
    """Yield the docstrings of a source file's module, classes and functions, in their order.

    Raises:
        SyntaxError, ValueError, RecursionError: if this version of Python cannot parse the file.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # invalid escapes in other people's strings
        waiting: list[ast.AST] = [ast.parse(path.read_bytes(), filename=path.name)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            docstring = ast.get_docstring(node)
            if docstring:
                yield docstring
        # Only statements contain definitions; walking the expressions as well would take most of the time.
        for block in ("finalbody", "orelse", "handlers", "body"):
            statements = getattr(node, block, None)
            if isinstance(statements, list):
                waiting += reversed(statements)


def letters(text: str) -> str:
    """Return the words in lower case without digits and punctuation, to compare texts that are nearly the same."""
    return " ".join(re.sub(r"[\W\d_]+", " ", text.lower()).split())


def reason_to_drop(summary: str, body: str, settings: CorpusSettings) -> str:
    """Return the reason why a pair is not a good example of summarization; "" if it is one."""
    if len(summary.split()) < settings.min_summary_words:
        return "summary too short"
    if len(body.split()) < settings.min_body_words:
        return "body too short"
    if len(summary.split()) > settings.max_summary_words:
        return "summary too long"
    if summary.endswith(":") or _POINTER.match(summary) or (_POINTER.match(body) and len(body.split()) < 20):
        return "no summary, or no body, but a pointer"
    if _share_of_letters(summary) < 0.7 or _share_of_letters(body) < 0.6:
        return "formula or code"
    if letters(body).startswith(letters(summary)):
        return "body begins with the summary"
    return ""


def _share_of_letters(text: str) -> float:
    return sum(char.isalpha() or char.isspace() for char in text) / len(text)


def split_of(module: str, settings: CorpusSettings) -> str:
    """Return the split of a module, drawn by a hash of the seed and its name."""
    digest = hashlib.sha256(f"{settings.seed}:{module}".encode()).digest()
    draw = int.from_bytes(digest[:8], "big") / 2**64
    if draw < settings.test_share:
        return "test"
    return "valid" if draw < settings.test_share + settings.valid_share else "train"


def _keep_summaries_apart(corpus: Corpus) -> None:
    seen: set[str] = set()
    for split in SPLITS:
        kept = [pair for pair in corpus.splits[split] if letters(pair.summary) not in seen]
        corpus.dropped["summary in another split"] += len(corpus.splits[split]) - len(kept)
        seen.update(letters(pair.summary) for pair in kept)
        corpus.splits[split] = kept


def write_corpus(corpus: Corpus, settings: CorpusSettings, output: Path) -> dict[str, Any]:
    """Write ``{train,valid,test}.{src,tgt}``, then ``stats.json`` and ``README.md``; return the statistics."""
    for split, pairs in corpus.splits.items():
        write_lines(output / f"{split}.src", (pair.body for pair in pairs))
        write_lines(output / f"{split}.tgt", (pair.summary for pair in pairs))
    counts = {split: Counter(pair.package for pair in pairs) for split, pairs in corpus.splits.items()}
    stats = {
        "pairs": {split: len(corpus.splits[split]) for split in reversed(SPLITS)},
        "pairs_per_package": {name: {s: counts[s][name] for s in reversed(SPLITS)} for name in corpus.versions},
        "versions": corpus.versions,
        "settings": asdict(settings),
        "dropped": dict(sorted(corpus.dropped.items())),
        "unparsable_files": corpus.unparsable,
    }
    write_lines(output / "README.md", _readme(stats).splitlines())
    write_lines(output / "stats.json", json.dumps(stats, indent=2).splitlines())
    return stats


def _readme(stats: dict[str, Any]) -> str:
    rows = [(name, stats["versions"][name], counts) for name, counts in stats["pairs_per_package"].items()]
    table = [f"| {n} | {v} | {c['train']:,} | {c['valid']:,} | {c['test']:,} |" for n, v, c in rows]
    total = stats["pairs"]
    dropped = [f"* {reason}: {count:,}" for reason, count in stats["dropped"].items()]
    unparsable = [f"* {line}" for line in stats["unparsable_files"]] or ["* none"]
    settings = [f"* {name}: {value}" for name, value in stats["settings"].items() if name != "packages"]
    return "\n".join(
        [
            "# Docstring summarisation",
            "",
            "Made by `preprocess/docstrings.py`: each line of a `.src` is the text of a docstring below its first",
            "sentence, the same line of the `.tgt` is that sentence. The text is raw and cased. It belongs to the",
            "packages named here and is under their licences.",
            "",
            "| package | version | train | valid | test |",
            "|---|---|---|---|---|",
            *table,
            f"| all | | {total['train']:,} | {total['valid']:,} | {total['test']:,} |",
            "",
            "Settings:",
            "",
            *settings,
            "",
            "Docstrings left out:",
            "",
            *dropped,
            "",
            "Files that could not be parsed:",
            "",
            *unparsable,
        ]
    )
