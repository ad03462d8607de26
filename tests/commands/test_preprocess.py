"""`s2sft preprocess` reports all mistakes at once, before it writes anything."""

import logging

import pytest
from fairseq.data import Dictionary

from s2sft_fairseq.commands import fairseq_command


@pytest.fixture
def preprocess(call_command):
    def run(*words, **options):
        return call_command("preprocess", *words, **options)

    return run


def test_binarizes(tiny_data, tiny_corpus):
    names = [f"{split}.src-tgt.{language}" for split in ("train", "valid", "test") for language in ("src", "tgt")]
    assert {f"{name}.{ending}" for name in names for ending in ("bin", "idx")} < {
        path.name for path in tiny_data.iterdir()
    }
    assert (tiny_data / "dict.src.txt").read_text() == (tiny_corpus / "dict.txt").read_text()


def test_all_problems_at_once_and_nothing_written(preprocess, tiny_corpus, tmp_path):
    (tmp_path / "short.src").write_text("a b\nc\n")
    (tmp_path / "short.tgt").write_text("a b\n")
    (tmp_path / "latin.src").write_bytes("é\n".encode("latin-1"))
    (tmp_path / "latin.tgt").write_text("e\n")
    files = ("--trainpref", tiny_corpus / "train", "--validpref", "short,latin", "--testpref", "nothing")
    done = preprocess("-s", "src", "-t", "tgt", *files, "--srcdict", "no.txt", "--destdir", "out", status=2)
    assert done.stderr.splitlines() == [
        "error: nothing was written:",
        "  - --srcdict no.txt: no such file",
        "  - --srcdict and --joined-dictionary are needed: the dict.txt of the pretrained encoder",
        "  - line-aligned files must have equally many lines, but short.src has 2, short.tgt has 1",
        "  - latin.src: 1 line(s) are not valid UTF-8: line 1",
        "  - nothing.src: cannot be read: No such file or directory",
        "  - nothing.tgt: cannot be read: No such file or directory",
    ]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["-s", "src"], "--source-lang and --target-lang are needed, the endings of the file names"),
        (["-s", "src", "-t", "src"], "--source-lang and --target-lang are both src"),
        (["-s", "a", "-t", "b", "--srcdict", "dict.txt", "--tgtdict", "dict.txt", "--joined-dictionary"], "not both"),
        (["-s", "a", "-t", "b", "--joined-dictionary"], "--trainpref is needed if --srcdict or --tgtdict is not given"),
        (["-s", "a", "-t", "b", "--alignfile", "no.align"], "--alignfile no.align: no such file"),
    ],
)
def test_names_the_option(preprocess, tmp_path, words, problem):
    (tmp_path / "dict.txt").write_text("a 1\n")
    assert problem in preprocess("--task", "translation", *words, status=2).stderr


def test_leaves_an_earlier_run_as_it_is(preprocess, tiny_options, tiny_corpus, tmp_path):
    out = tmp_path / "out"
    preprocess(*tiny_options.preprocess(tiny_corpus, out))
    before = {path: path.read_bytes() for path in out.iterdir()}
    done = preprocess(*tiny_options.preprocess(tiny_corpus, out), status=2)
    assert f"{out}/dict.tgt.txt exists, from an earlier run: remove it, or give another --destdir" in done.stderr
    assert {path: path.read_bytes() for path in out.iterdir()} == before


def test_source_alone_and_a_dictionary_of_its_own(preprocess, tiny_corpus, tmp_path):
    files = ("--trainpref", tiny_corpus / "train", "--validpref", f"{tiny_corpus}/valid,{tiny_corpus}/test")
    preprocess("--task", "translation", "--only-source", "-s", "src", *files, "--destdir", "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} > {"valid.src-None.src.bin", "valid1.src-None.src.bin"}
    assert set("abcdefghij") <= set(Dictionary.load(str(tmp_path / "out" / "dict.src.txt")).symbols)


@pytest.fixture
def sources(preprocess, tiny_corpus, tmp_path):
    """Binarize sources of a split to ``out``, next to what it holds; return its files."""

    def run(split, **options):
        words = ("--only-source", "--srcdict", tiny_corpus / "dict.txt", "--destdir", "out", "--workers", 1)
        preprocess(*words, "--trainpref", tiny_corpus / f"{split}.src", **options)
        return {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}

    return run


def test_an_interrupted_run_leaves_an_earlier_run_as_it_is(sources, monkeypatch):
    before = sources("train")
    run = fairseq_command.run

    def broken_off(name, arguments):
        run(name, arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(fairseq_command, "run", broken_off)
        left = sources("valid", status=130)
    assert left == before
    after = sources("valid")
    assert after.keys() == before.keys() and after["train.bin"] != before["train.bin"]
    assert after["preprocess.log"].startswith(before["preprocess.log"])
    assert len(after["preprocess.log"]) > len(before["preprocess.log"])


def test_the_log_is_closed(sources):
    """A process that binarizes twice writes each log once, and none to a removed folder."""
    logger = logging.getLogger("fairseq_cli.preprocess")
    before = logger.handlers[:]
    sources("train")
    assert logger.handlers == before
