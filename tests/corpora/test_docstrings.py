"""The corpus: all pairs are filtered, no text is in two splits, and no package is imported."""

import json
import platform
import re
import sys
from pathlib import Path

import pytest

from s2sft_fairseq.corpora.docstrings import (
    SPLITS,
    CorpusSettings,
    build_corpus,
    find_packages,
    letters,
    read_docstrings,
    reason_to_drop,
    split_of,
    write_corpus,
)
from s2sft_fairseq.errors import UserError

POINTER = "no summary, or no body, but a pointer"
BODY = "This text below the summary tells in more words what number {} does to the things."


def module_text(number: int) -> str:
    """Return a module that must not be imported, with two pairs of its own."""
    word = "".join(chr(ord("a") + int(digit)) for digit in str(number))
    return (
        "raise RuntimeError('imported')\n"
        f"class Thing:\n  '''Represent thing {word}.\n\n  {BODY.format('class ' + word)}\n  '''\n"
        f"  if True:\n    def run(self):\n      '''Run thing {word}.\n\n      {BODY.format(word)}'''\n"
    )


@pytest.fixture
def package(tmp_path, monkeypatch) -> str:
    """A package of 40 modules and a test folder, importable by name."""
    name = "tiny_docstring_package"
    folder = tmp_path / "path" / name
    (folder / "sub").mkdir(parents=True)
    (folder / "tests").mkdir()
    (folder / "__init__.py").write_text("raise RuntimeError('imported')\n")
    for number in range(40):
        (folder / "sub" / f"part{number}.py").write_text(module_text(number))
    (folder / "tests" / "test_part.py").write_text(module_text(98))
    (folder / "conftest.py").write_text(module_text(99))
    monkeypatch.syspath_prepend(tmp_path / "path")
    return name


def settings(package: str, **changes) -> CorpusSettings:
    return CorpusSettings(**{"packages": (package,), "valid_share": 0.2, "test_share": 0.2, **changes})


def test_pairs_of_a_package(package):
    corpus = build_corpus(settings(package))
    pairs = [pair for split in SPLITS for pair in corpus.splits[split]]
    assert len(pairs) == 80
    assert all(corpus.splits.values())
    assert ("Run thing bd.", BODY.format("bd")) in {(pair.summary, pair.body) for pair in pairs}
    assert {pair.package for pair in pairs} == {package}
    assert "tiny_docstring_package.sub.part3" in {pair.module for pair in pairs}
    assert corpus.versions == {package: "unknown"}
    assert package not in sys.modules


def test_no_module_in_two_splits(package):
    corpus = build_corpus(settings(package))
    modules = {split: {pair.module for pair in corpus.splits[split]} for split in SPLITS}
    assert sum(map(len, modules.values())) == len(set.union(*modules.values())) == 40
    assert all(split_of(module, settings(package)) == split for split in SPLITS for module in modules[split])


def test_the_same_settings_give_the_same_corpus_and_another_seed_another(package):
    first, again = build_corpus(settings(package)), build_corpus(settings(package))
    assert first.splits == again.splits
    assert build_corpus(settings(package, seed=2)).splits != first.splits


def test_shares_of_the_splits():
    names = [f"module{number}" for number in range(10_000)]
    drawn = [split_of(name, CorpusSettings(valid_share=0.1, test_share=0.2)) for name in names]
    # within four standard deviations of a draw of 10,000
    assert drawn.count("valid") == pytest.approx(1000, abs=120)
    assert drawn.count("test") == pytest.approx(2000, abs=160)


def add_module(tmp_path: Path, package: str, name: str, *docstrings: str) -> None:
    text = "\n".join(f"def f{number}():\n    {docstring!r}" for number, docstring in enumerate(docstrings))
    (tmp_path / "path" / package / f"{name}.py").write_text(text)


def test_nearly_the_same_body_counts_once(package, tmp_path):
    body = "Words that tell a lot about it, in {} dimensions, and then about other things."
    bodies = body.format(1), body.format("(2)").upper()
    add_module(tmp_path, package, "a", *(f"Do the {len(body)}.\n\n{body}" for body in bodies))
    corpus = build_corpus(settings(package))
    assert corpus.dropped["body seen before"] == 1
    assert sum(map(len, corpus.splits.values())) == 81


def test_a_summary_is_in_one_split_only(package, tmp_path):
    for number in range(20):
        word = "x" * (number + 1)
        add_module(tmp_path, package, f"m{number}", f"Do the same thing.\n\n{BODY.format(word)}")
    corpus = build_corpus(settings(package))
    found = {split: [pair for pair in corpus.splits[split] if pair.summary == "Do the same thing."] for split in SPLITS}
    assert found["test"], "the seed gives no such module to test"
    assert not found["valid"]
    assert not found["train"]
    assert corpus.dropped["summary in another split"] == 20 - len(found["test"])


@pytest.mark.parametrize(
    ("summary", "body", "reason"),
    [
        ("Do the thing.", BODY, ""),
        ("Do it.", BODY, "summary too short"),
        ("Do the thing.", "Only nine words stand here, which is no text.", "body too short"),
        ("Do " + "it " * 40, BODY, "summary too long"),
        ("Do the following things:", BODY, POINTER),
        ("See the other function.", BODY, POINTER),
        ("Do the thing.", "See the other function for all that is to be known of it.", POINTER),
        ("x = y + (z * 2) - {3}", BODY, "formula or code"),
        ("Do the thing.", "1 2 3 4 5 6 7 8 9 10 11 12 13 14", "formula or code"),
        ("Do the thing.", "do THE thing with care, slowly, and never after that.", "body begins with the summary"),
    ],
)
def test_pairs_that_are_dropped(summary, body, reason):
    assert reason_to_drop(summary, body, CorpusSettings()) == reason


def test_letters():
    assert letters("The 2-D `Fourier` transform_of  X1!") == "the d fourier transform of x"


def test_docstrings_in_their_order(tmp_path):
    path = tmp_path / "x.py"
    path.write_text(
        "'''module'''\ntry:\n    class A:\n        '''A'''\n        async def b(self):\n            '''b'''\n"
        "except ImportError:\n    def c():\n        '''c'''\nelse:\n    def d():\n        f'''no docstring'''\n"
        "def e():\n    '''\\d'''\n"
    )
    assert list(read_docstrings(path)) == ["module", "A", "b", "c", "\\d"]


def test_files_that_cannot_be_parsed_are_listed(package, tmp_path):
    folder = tmp_path / "path" / package
    (folder / "broken.py").write_text("def f(:\n")
    (folder / "binary.py").write_bytes(b"x = '\0'")
    corpus = build_corpus(settings(package))
    assert [line.partition(":")[0] for line in corpus.unparsable] == [f"{package}.binary", f"{package}.broken"]
    assert sum(map(len, corpus.splits.values())) == 80


def test_standard_library_and_single_modules(tmp_path, monkeypatch):
    (tmp_path / "tiny_single_module.py").write_text("'''Text.'''")
    monkeypatch.syspath_prepend(tmp_path)
    standard, single, numpy = find_packages(["stdlib", "tiny_single_module", "numpy"])
    names = [name for name, _ in standard.files]
    assert {"json", "json.decoder", "os"} <= set(names)
    assert not [name for name in names if re.search(r"(^|\.)(tests?|site-packages)\.", name)]
    assert standard.version == platform.python_version()
    assert single.files == (("tiny_single_module", tmp_path / "tiny_single_module.py"),)
    assert re.match(r"\d+\.\d+", numpy.version)


def test_packages_that_are_not_installed():
    with pytest.raises(UserError) as caught:
        find_packages(["numpy", "no_such_package_1", "scikit-learn", "os.path", "sys"])
    assert len(caught.value.problems) == 4
    for name in ("no_such_package_1", "scikit-learn", "os.path", "sys"):
        assert f"--packages needs names of installed packages as they are imported, found {name!r}" in str(caught.value)


def test_settings_that_cannot_be():
    with pytest.raises(UserError) as caught:
        CorpusSettings(packages=("a", "a"), valid_share=0.5, test_share=0.5, min_summary_words=50, min_body_words=0)
    text = str(caught.value)
    assert "--packages needs each name once, found a a" in text
    assert "--valid-share and --test-share need to be at least 0 and together below 1, found 0.5 and 0.5" in text
    assert "--min-summary-words needs to be between 1 and --max-summary-words (40), found 50" in text
    assert "--min-body-words needs to be at least 1, found 0" in text
    with pytest.raises(UserError, match="--packages needs at least one name"):
        CorpusSettings(packages=())
    with pytest.raises(UserError, match=r"found 0\.1 and nan"):
        CorpusSettings(packages=("a",), valid_share=0.1, test_share=float("nan"))


def test_files_that_are_written(package, tmp_path):
    (tmp_path / "path" / package / "broken.py").write_text("def f(:\n")
    chosen = settings(package)
    corpus = build_corpus(chosen)
    output = tmp_path / "corpus"
    stats = write_corpus(corpus, chosen, output)
    for split in SPLITS:
        bodies, summaries = ((output / f"{split}.{side}").read_text().splitlines() for side in ("src", "tgt"))
        assert list(zip(bodies, summaries, strict=True)) == [(p.body, p.summary) for p in corpus.splits[split]]
        assert stats["pairs"][split] == stats["pairs_per_package"][package][split] == len(bodies)
    saved = json.loads((output / "stats.json").read_text())
    assert saved["settings"]["seed"] == 1
    assert saved["versions"] == {package: "unknown"}
    assert saved["unparsable_files"] == corpus.unparsable
    readme = (output / "README.md").read_text()
    pairs = saved["pairs"]
    assert f"| {package} | unknown | {pairs['train']} | {pairs['valid']} | {pairs['test']} |" in readme
    assert f"* {package}.broken: " in readme
