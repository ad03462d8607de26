"""The recipes from raw files to scores, with a tiny random model; what they refuse, and that they go on.

Each takes half a minute, nearly all of it for starting processes: two are run at a time, by default some of each kind.
"""

import fcntl
import json
import os
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from official_deltalm import write_official
from raw_corpora import RAW, UNDERSTANDING, line_aligned

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "scripts" / "recipes"
STAGES = ("prepare", "convert", "tokenize", "binarize", "train, 4 updates", "plot", "generate")
OPTIONS = {
    "gigaword": ("--preset", "base/gigaword-10k", "--lr", "1e-3"),
    "wmt10": ("--langs", "fr,cs"),
}
# These two have presets by themselves.
METHOD = {"gigaword": "infilling", "persona_chat": "infilling", "coqa": "infilling"}
METHOD |= {"webnlg": "deltalm", "wikilingua": "deltalm", "iwslt14": "deltalm"}
# What is run by default has their stages and options too; that their raw files are read is tested in tests/preprocess.
SLOW = {"cnn_dailymail", "xsum", "xqg", "xgiga", "wikilingua", "iwslt14", "persona_chat"}
TESTED = {"coqa": "dev", "webnlg": "dev", "wikilingua": "dev"}
SMOKE = ("--smoke", "--cpu", "--workers", 1, "--held-out", 3, "--output", "out")
# Their own metrics, which take Java and a large package, are tested with `s2sft evaluate`.
METRICS = {"squad_qg": "--metrics rouge", "xqg": "--metrics rouge sacrebleu"}
SCORES = {
    "e2e": "BLEU",
    "multi30k": "BLEU",
    "iwslt14": "BLEU",
    "persona_chat": "Distinct-1",
    "coqa": "F1",
}


def run_recipe(task: str, folder: Path, *words: object) -> subprocess.CompletedProcess:
    """Run a recipe in a folder, with this Python."""
    command = ["bash", str(RECIPES / f"{task}.sh"), *map(str, words)]
    environment = {**os.environ, "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], tuple[Path, str]]]:
    """The output folder of each recipe after ``--smoke``, and what it printed; the usual ones are started at once."""
    folder = tmp_path_factory.mktemp("recipes")
    started: dict[str, Future[subprocess.CompletedProcess]] = {}
    chosen = [name for name in RAW if name not in SLOW]

    def start(task: str) -> subprocess.CompletedProcess:
        RAW[task](folder / task / "raw")
        metrics = ("--scoring", METRICS[task]) if task in METRICS else ()
        return run_recipe(task, folder / task, "--raw", "raw", *SMOKE, *OPTIONS.get(task, ()), *metrics)

    with ThreadPoolExecutor(2) as pool:

        def result(task: str) -> tuple[Path, str]:
            if not started:
                started.update({name: pool.submit(start, name) for name in chosen})
            if task not in started:
                started[task] = pool.submit(start, task)
            done = started[task].result()
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
            return folder / task / "out", done.stdout

        yield result


@pytest.mark.parametrize(
    "task",
    [pytest.param(task, marks=[pytest.mark.slow] if task in SLOW else []) for task in RAW if task != "wmt10"],
)
def test_smoke(smoke, task):
    out, printed = smoke(task)
    of_run = [line for line in printed.splitlines() if line.startswith(f"{task}: ")]
    done = [line.removeprefix(f"{task}: ").removesuffix(" ...") for line in of_run if line.endswith(" ...")]
    assert done == list(STAGES)
    (scores,) = out.glob("*/*.scores")
    assert SCORES.get(task, "ROUGE-L") in scores.read_text()
    assert scores.read_text() in printed
    assert json.loads(scores.with_suffix(".json").read_text())
    work = scores.parent
    assert work.name == f"{METHOD.get(task, 'pseudo_masked')}-seed1"
    tested = TESTED.get(task, "test")
    files = (work / f"{tested}.out", out / "corpus" / f"{tested}.src")
    generated, sources = (path.read_text().count("\n") for path in files)
    assert generated == sources > 0
    records = [json.loads(line) for line in (work / "commands.jsonl").read_text().splitlines()]
    names = [record["command"][3] for record in records]
    assert names == ["tokenize", "preprocess", "train", "generate", "evaluate"]
    assert all(record["status"] == 0 and record["seconds"] > 0 and record["peak_memory_gb"] > 0 for record in records)
    assert all((out / "tokens" / f"valid.{side}").read_text().count("\n") == 3 for side in ("src", "tgt"))
    assert (work / "loss.png").read_bytes().startswith(b"\x89PNG")


def test_several_directions(smoke):
    """One model, the average of its last checkpoints, which each direction is generated and scored with."""
    out, printed = smoke("wmt10")
    directions = ("fr-en", "en-fr", "cs-en", "en-cs")
    stages = [line for line in printed.splitlines() if line.startswith("wmt10: ") and line.endswith(" ...")]
    expected = [*STAGES[:-1], *(f"generate {direction}" for direction in directions)]
    assert stages == [f"wmt10: {stage} ..." for stage in expected]
    # An epoch is an update.
    assert "best.pt: the average of checkpoint1.pt, checkpoint2.pt, checkpoint3.pt, checkpoint4.pt" in printed
    work = out / "deltalm-seed1"
    for direction in directions:
        source, target = direction.split("-")
        raw = out.parent / "raw" / f"test.{'fr' if 'fr' in direction else 'cs'}-en.{source}"
        assert (out / "corpus" / direction / "test.src").read_text() == raw.read_text()
        (reference, *_) = (out / "corpus" / direction / "test.refs.jsonl").read_text().splitlines()
        assert json.loads(reference)["refs"] == raw.with_suffix(f".{target}").read_text().splitlines()[:1]
        assert (work / direction / "test.out").read_text().count("\n") == 4
    pairs = {f"{part}.{language}-en.{side}.bin" for part in ("train", "valid") for language in ("fr", "cs")
             for side in (language, "en")}  # fmt: skip
    assert {path.name for path in (out / "binarized").glob("*.bin")} == pairs
    rows = [line.split(" | ")[0] for line in (work / "test.md").read_text().splitlines()]
    names = ("direction", "---", *directions, "mean to English", "mean from English")
    assert rows == [f"| {name}" for name in names]

    # A model that was trained for some directions is not taken for others.
    words = ("--raw", "raw", *SMOKE, "--langs", "fr,cs")
    other = run_recipe("wmt10", out.parent, *words, "--direction", "to-english")
    assert other.returncode == 2
    assert " now:    --lang-pairs fr-en,cs-en --language-token __{}__" in other.stderr
    other = run_recipe("wmt10", out.parent, *words, "--epochs", 7)
    assert " before: --epochs 10\n now:    --epochs 7" in other.stderr
    # Nor is a converted encoder without the symbols of the languages.
    words = ("--raw", "raw", *SMOKE[1:-1], "else", "--langs", "fr", "--limit", 4, "--updates", 4)
    (out.parent / "bare").mkdir()
    for name in ("model.pt", "config.json", "dict.txt"):
        (out.parent / "bare" / name).write_text("__en__ 1\n__de__ 1\n")
    other = run_recipe("wmt10", out.parent, *words, "--encoder", "bare")
    assert (
        "--encoder bare is converted, but without __fr__: give the one that it was converted from, or" in other.stderr
    )

    wrong = run_recipe("wmt10", out.parent, "--raw", "raw", *SMOKE, "--direction", "to-france")
    assert "wmt10: error: --direction must be both, to-english or from-english, but is to-france" in wrong.stderr
    wrong = run_recipe("wmt10", out.parent, "--raw", "raw", *SMOKE, "--method", "causal")
    assert "wmt10: error: --method must be deltalm, but is causal" in wrong.stderr


@pytest.mark.slow  # what it adds to tests/end_to_end/test_deltalm.py is the recipe's way of calling the same commands
def test_the_official_files_of_deltalm(tmp_path):
    """They are an ``--encoder`` as any other, to which the recipe adds the tokens of its languages."""
    RAW["wmt10"](tmp_path / "raw")
    write_official(tmp_path / "official")
    words = ("--raw", "raw", *SMOKE, "--encoder", "official", "--langs", "fr", "--direction", "to-english")
    done = run_recipe("wmt10", tmp_path, *words, "--max-source", 40, "--max-target", 40)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    out = tmp_path / "out"
    assert json.loads((out / "encoder" / "config.json").read_text())["family"] == "DeltaLM"
    symbols = [line.split(" ")[0] for line in (out / "encoder" / "dict.txt").read_text().splitlines()]
    assert symbols[-3:] == ["<extra_id_99>", "__en__", "__fr__"]
    assert (out / "deltalm-seed1" / "fr-en" / "test.out").read_text().count("\n") == 4


def test_means_of_directions(tmp_path, monkeypatch):
    scores = {"fr-en": 30.0, "en-fr": 20.0, "cs-en": 40.0}
    for direction, value in scores.items():
        (tmp_path / direction).mkdir()
        systems = {"systems": {"x": {"scores": [{"name": "BLEU", "value": value}]}}}
        (tmp_path / direction / "dev.json").write_text(json.dumps(systems))
    table = runpy.run_path(str(RECIPES / "mean_of_directions.py"))
    words = ["mean_of_directions.py", str(tmp_path), "--set", "dev", "--directions", *scores]
    monkeypatch.setattr(sys, "argv", words)
    table["main"]()
    rows = ("fr-en | 30.00", "en-fr | 20.00", "cs-en | 40.00", "mean to English | 35.00", "mean from English | 20.00")
    assert (tmp_path / "dev.md").read_text().splitlines()[2:] == [f"| {row} |" for row in rows]


def test_zero_shot(tmp_path):
    """Pairs in English, the test set in French, and plain text of all three languages."""
    RAW["xgiga"](tmp_path / "raw")
    line_aligned("{split}.{column}.en", "x", "y", valid="dev")(tmp_path / "raw")
    line_aligned("{split}.{column}.zh", "x", "y", valid="dev")(tmp_path / "raw")
    for path in (tmp_path / "raw").glob("*.en"):
        path.write_text("".join(f"English: {line}\n" for line in path.read_text().splitlines()))
    words = ("--raw", "raw", *SMOKE, "--method", "deltalm", "--train-lang", "en")
    done = run_recipe("xgiga", tmp_path, *words, *OPTIONS.get("xgiga", ()))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    out = tmp_path / "out"
    assert (out / "deltalm-seed1" / "test.out").read_text().count("\n") > 0
    corpus = {path.name: path.read_text().splitlines() for path in (out / "corpus").glob("*.src")}
    assert corpus["train.src"] == (tmp_path / "raw" / "train.x.en").read_text().splitlines()
    for language in ("en", "fr", "zh"):
        assert corpus[f"text-{language}.src"] == (tmp_path / "raw" / f"train.x.{language}").read_text().splitlines()
        assert (out / "binarized" / language / "train.bin").is_file()
    assert corpus["test.src"] == (tmp_path / "raw" / "test.x.fr").read_text().splitlines()
    log = (out / "deltalm-seed1" / "commands.jsonl").read_text()
    for words in ("--lang-pairs src-tgt:en --text-languages en,fr,zh --language-token __{}__", "--target-lang fr"):
        assert json.dumps(words.split())[1:-1] in log

    done = run_recipe("xgiga", tmp_path, "--raw", "raw", *SMOKE, "--train-lang", "en")
    assert "xgiga: error: --train-lang needs --method deltalm, but --method is pseudo_masked" in done.stderr


def test_every_recipe_is_tested():
    assert {path.stem for path in RECIPES.glob("*.sh")} == {
        *RAW,
        *UNDERSTANDING,
        "recipe",
        "stages",
        "encoder_decoder",
        "understanding",
    }


def test_stages_that_are_done_are_not_done_again(smoke):
    out, _ = smoke("e2e")
    words = ("--raw", "raw", *SMOKE)
    before = {path: path.stat().st_mtime_ns for path in (out / "corpus").iterdir()}
    (out / "pseudo_masked-seed1" / "test.out").unlink()
    failed = run_recipe("e2e", out.parent, *words, "--decoding", "--beam 0")
    assert failed.returncode == 2
    assert "--beam must be at least 1, but is 0" in failed.stderr
    again = run_recipe("e2e", out.parent, *words)
    assert again.returncode == 0, again.stderr
    assert again.stdout.count(": done before (") == 6
    assert "e2e: generate ..." in again.stdout
    assert {path: path.stat().st_mtime_ns for path in (out / "corpus").iterdir()} == before

    other = run_recipe("e2e", out.parent, *words, "--limit", 5)
    assert other.returncode == 2
    assert "error: out holds files of other settings; name another folder, or remove it" in other.stderr
    assert " before: --limit 200\n now:    --limit 5" in other.stderr

    other = run_recipe("e2e", out.parent, *words, "--lr", "1")
    assert other.returncode == 2
    assert " before: --lr 1e-4\n now:    --lr 1" in other.stderr

    other = run_recipe("e2e", out.parent, *words, "--decoding", "--beam 1")
    assert other.returncode == 2
    assert "\n now:    search --beam 1\n" in other.stderr


def test_settings_of_a_stage_that_failed_are_forgotten(tmp_path):
    """The encoder that could not be converted does not stand in the way of another one."""
    RAW["e2e"](tmp_path / "raw")
    for name, files in {"wrong": (), "converted": ("model.pt", "config.json", "dict.txt"), "other": ()}.items():
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).touch()

    def run(encoder: str) -> str:
        done = run_recipe("e2e", tmp_path, "--raw", "raw", *SMOKE, "--encoder", encoder)
        assert done.returncode == 2, done.stdout + done.stderr
        return done.stderr

    assert "wrong must hold model.safetensors" in run("wrong")
    assert "malformed lines in dictionary out/encoder/dict.txt" in run("converted")
    assert f" before: --encoder {tmp_path}/converted\n now:    --encoder {tmp_path}/other\n" in run("other")


@pytest.mark.skipif(shutil.which("flock") is None, reason="recipes lock their stages where there is flock")
def test_two_recipes_do_not_make_the_same_file(tmp_path):
    RAW["e2e"](tmp_path / "raw")
    (tmp_path / "out").mkdir()
    with (tmp_path / "out" / ".stage-corpus.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = run_recipe("e2e", tmp_path, "--raw", "raw", *SMOKE)
    assert done.returncode == 2
    assert "out/corpus is being made by another recipe" in done.stderr
    assert not (tmp_path / "out" / "corpus").exists()


def test_fewer_sources(smoke):
    out, _ = smoke("e2e")
    done = run_recipe("e2e", out.parent, "--raw", "raw", *SMOKE, "--sources", 1)
    assert done.returncode == 0, done.stderr
    assert "e2e: generate ..." in done.stdout
    work = out / "pseudo_masked-seed1"
    assert (work / "test-1.out").read_text().count("\n") == 1
    assert (out / "corpus" / "test-1.src").read_text() == (out / "corpus" / "test.src").read_text().splitlines(True)[-1]
    assert "BLEU" in (work / "test-1.scores").read_text()


def test_methods_compared(smoke, monkeypatch, capsys):
    out, _ = smoke("e2e")
    compare = runpy.run_path(str(ROOT / "scripts" / "compare_methods.py"))
    words = ["e2e", "--output", out, "--seeds", 1, "--methods", "infilling", "pseudo_masked", "--"]
    options = ["--raw", out.parent / "raw", *SMOKE[:-2]]
    monkeypatch.setattr(sys, "argv", ["compare_methods.py", *map(str, [*words, *options])])
    monkeypatch.setenv("PYTHON", sys.executable)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    compare["main"]()
    table = (out / "comparison.md").read_text()
    assert table in capsys.readouterr().out
    head, rule, *rows = table.splitlines()
    assert head.startswith("| method | seeds | BLEU | ROUGE-1 |")
    assert rule.count("---") == head.count("|") - 1
    assert {row.split(" | ")[0] for row in rows} == {"| infilling", "| pseudo_masked"}
    assert "infilling-seed1" in {path.name for path in out.iterdir()}


def test_table_of_methods():
    compare = runpy.run_path(str(ROOT / "scripts" / "compare_methods.py"))
    runs = {"causal": [{"BLEU": 1.0, "F1": 5.0}, {"BLEU": 2.0, "F1": 4.0}], "masked": [{"BLEU": 3.0, "F1": 1.0}]}
    assert compare["as_table"](runs).splitlines() == [
        "| method | seeds | BLEU | F1 |",
        "| --- | --- | --- | --- |",
        "| masked | 1 | 3.00 (3.00 to 3.00) | 1.00 (1.00 to 1.00) |",
        "| causal | 2 | 1.50 (1.00 to 2.00) | 4.50 (4.00 to 5.00) |",
    ]


def test_no_such_recipe_to_compare():
    command = [sys.executable, str(ROOT / "scripts" / "compare_methods.py"), "recipe2", "--output", "out"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "there is no recipe recipe2: known are cnn_dailymail, coqa, e2e," in done.stderr


def test_hypotheses_of_another_system(smoke, tmp_path):
    out, _ = smoke("multi30k")
    lines = [json.loads(line)["refs"][0] for line in (out / "corpus" / "test.refs.jsonl").read_text().splitlines()]
    (tmp_path / "other.txt").write_text("".join(f"{line}\n" for line in lines))
    words = ("--raw", out.parent / "raw", "--limit", 200, "--output", out, "--hyp", tmp_path / "other.txt")
    done = run_recipe("multi30k", tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert "100.00" in (out / "scored-other.txt" / "test.scores").read_text()


@pytest.mark.parametrize(
    ("words", "problems"),
    [
        ((), ["--raw is needed: the folder of the raw files", "--encoder is needed: a folder with a pretrained"]),
        (("--raw", "no", "--encoder", "no", "--seed", "x"),
         ["--raw must be a folder, but no is none", "--encoder must be a folder, but no is none",
          "--seed must be a whole number, but is x"]),
        (("--method", "infiling", "--max-target", 0),
         ["--method must be causal, masked, pseudo_masked, infilling or deltalm, but is infiling",
          "--max-target must be a whole number of at least 1, but is 0"]),
        (("--preset", "base/gigaword"), ["--preset must be one of this recipe's, but is base/gigaword: none"]),
        (("--dry-run",), ["--dry-run needs --updates, for no corpus is prepared in recipes-out/e2e"]),
        (("--hyp",), ["--hyp needs a value"]),
        (("--size", "10k"), ["unknown option --size; --help tells the options"]),
        (("raw",), ["unknown word raw; --help tells the options"]),
    ],
)  # fmt: skip
def test_mistakes(tmp_path, words, problems):
    done = run_recipe("e2e", tmp_path, *words)
    assert done.returncode == 2
    assert done.stderr.startswith("e2e: error: ")
    assert all(problem in done.stderr for problem in problems)
    assert list(tmp_path.iterdir()) == []


def test_help(tmp_path):
    done = run_recipe("xgiga", tmp_path, "--help")
    assert done.returncode == 0
    assert done.stdout.startswith("XGiga (Gigaword-fr, Gigaword-zh)")
    for option in ("--lang L", "--raw DIR", "--smoke", "--fit-head"):
        assert option in done.stdout


def test_an_unknown_set(smoke, tmp_path):
    out, _ = smoke("coqa")
    words = ("--raw", out.parent / "raw", "--smoke", "--output", out, "--set", "test")
    done = run_recipe("coqa", tmp_path, *words)
    assert done.returncode == 2
    assert done.stderr == "coqa: error: --set must be one of the sets that are scored, but test is none: dev\n"
