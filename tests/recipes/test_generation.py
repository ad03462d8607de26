"""The recipes of generation from raw files to scores, with a tiny random model; errors and resuming."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from called import call
from official_deltalm import write_official
from raw_corpora import RAW, line_aligned

from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.recipes.benchmarks import GENERATION
from s2sft_fairseq.recipes.benchmarks.translation import read_bleu, table_of_means

STAGES = ("prepare", "convert", "tokenize", "binarize", "train, 4 updates", "plot", "generate")
COMMANDS = ["prepare", "tokenize", "preprocess", "train", "generate", "evaluate"]
OPTIONS = {
    "gigaword": ("--preset", "base/gigaword-10k", "--lr", "1e-3"),
    "wmt10": ("--langs", "fr,cs"),
}
# Presets that a recipe uses by default.
METHOD = {"gigaword": "infilling", "persona_chat": "infilling", "coqa": "infilling"}
METHOD |= {"webnlg": "deltalm", "wikilingua": "deltalm", "iwslt14": "deltalm"}
# The recipes run by default have the same stages and options; tests/preprocess tests that their raw files are read.
SLOW = {"cnn_dailymail", "xsum", "xqg", "xgiga", "wikilingua", "iwslt14", "persona_chat"}
TESTED = {"coqa": "dev", "webnlg": "dev", "wikilingua": "dev"}
SMOKE = ("--smoke", "--cpu", "--workers", 1, "--held-out", 3, "--output", "out")
# Tests of `s2sft evaluate` cover their own metrics, which need Java and a large package.
METRICS = {"squad_qg": "--metrics rouge", "xqg": "--metrics rouge sacrebleu"}
SCORES = {
    "e2e": "BLEU",
    "multi30k": "BLEU",
    "iwslt14": "BLEU",
    "persona_chat": "Distinct-1",
    "coqa": "F1",
}


@pytest.fixture(scope="module")
def smoke(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, str]]:
    """The output folder of a recipe after ``--smoke``, and what it printed."""
    folder, done = tmp_path_factory.mktemp("recipes"), {}

    def result(task: str) -> tuple[Path, str]:
        if task not in done:
            RAW[task](folder / task / "raw")
            metrics = ("--scoring", METRICS[task]) if task in METRICS else ()
            done[task] = call(folder / task, "recipe", task, "--raw", "raw", *SMOKE, *OPTIONS.get(task, ()), *metrics)
        assert done[task].returncode == 0, done[task].stdout[-3000:] + done[task].stderr[-3000:]
        return folder / task / "out", done[task].stdout

    return result


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
    assert f", wrote out/{work.name}/best.pt" in printed
    tested = TESTED.get(task, "test")
    files = (work / f"{tested}.out", out / "corpus" / f"{tested}.src")
    generated, sources = (path.read_text().count("\n") for path in files)
    assert generated == sources > 0
    records = [json.loads(line) for line in (work / "commands.jsonl").read_text().splitlines()]
    assert [record["command"][:2] for record in records] == [["s2sft", name] for name in COMMANDS]
    assert all(record["status"] == 0 and record["seconds"] > 0 and record["peak_memory_gb"] > 0 for record in records)
    assert all((out / "tokens" / f"valid.{side}").read_text().count("\n") == 3 for side in ("src", "tgt"))
    assert (work / "training.png").read_bytes().startswith(b"\x89PNG")


def test_a_second_training_of_a_process_is_the_same(smoke):
    """Nothing left by the first training changes a bit of it."""
    out, _ = smoke("e2e")
    again = call(out.parent, "recipe", "e2e", "--raw", "raw", *SMOKE, "--run", "again")
    assert again.returncode == 0, again.stderr
    first, second = (out / name for name in ("pseudo_masked-seed1", "again"))
    models = [load_checkpoint(run / "best.pt")["model"] for run in (first, second)]
    assert models[0].keys() == models[1].keys()
    assert all(torch.equal(value, models[1][name]) for name, value in models[0].items())
    assert (first / "test.out").read_text() == (second / "test.out").read_text()
    losses = [[json.loads(line)["loss"] for line in (run / "train.log").read_text().splitlines() if '"loss"' in line]
              for run in (first, second)]  # fmt: skip
    assert losses[0] == losses[1] != []


def test_several_directions(smoke):
    """One model, the average of its last checkpoints, is used to generate and score each direction."""
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

    def run(*words: object) -> str:
        done = call(out.parent, "recipe", "wmt10", "--raw", "raw", *words)
        assert done.returncode == 2
        return done.stderr

    # A model trained for some directions is not used for others.
    errors = run(*SMOKE, "--langs", "fr,cs", "--direction", "to-english")
    assert "now --lang-pairs fr-en,cs-en --language-token '__{}__'" in errors
    assert "  epochs: before 10, now 7" in run(*SMOKE, "--langs", "fr,cs", "--epochs", 7)
    # Neither is a converted encoder without the symbols of the languages.
    (out.parent / "bare").mkdir()
    for name in ("model.pt", "config.json", "dict.txt"):
        (out.parent / "bare" / name).write_text("__en__ 1\n__de__ 1\n")
    words = (*SMOKE[1:-1], "else", "--langs", "fr", "--limit", 4, "--updates", 4)
    errors = run(*words, "--encoder", "bare")
    assert "--encoder bare is converted, but without __fr__: give the one that it was converted from, or" in errors

    assert "--direction must be one of both, to-english, from-english, but is to-france" in run(
        *SMOKE, "--direction", "to-france"
    )
    assert "--method must be deltalm, but is causal" in run(*SMOKE, "--method", "causal")


@pytest.mark.slow  # in addition to tests/end_to_end/test_deltalm.py, it only tests how the recipe calls the commands
@pytest.mark.process
def test_the_official_files_of_deltalm(tmp_path):
    """They are an ``--encoder`` like any other; the recipe adds the tokens of its languages."""
    RAW["wmt10"](tmp_path / "raw")
    write_official(tmp_path / "official")
    words = ("--raw", "raw", *SMOKE, "--encoder", "official", "--langs", "fr", "--direction", "to-english")
    done = call(tmp_path, "recipe", "wmt10", *words, "--max-source", 40, "--max-target", 40)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    out = tmp_path / "out"
    assert json.loads((out / "encoder" / "config.json").read_text())["family"] == "DeltaLM"
    symbols = [line.split(" ")[0] for line in (out / "encoder" / "dict.txt").read_text().splitlines()]
    assert symbols[-3:] == ["<extra_id_99>", "__en__", "__fr__"]
    assert (out / "deltalm-seed1" / "fr-en" / "test.out").read_text().count("\n") == 4


def test_means_of_directions(tmp_path):
    scores = {"fr-en": 30.0, "en-fr": 20.0, "cs-en": 40.0}
    for direction, value in scores.items():
        systems = {"systems": {"x": {"scores": [{"name": "BLEU", "value": value}]}}}
        (tmp_path / f"{direction}.json").write_text(json.dumps(systems))
    table = table_of_means({direction: read_bleu(tmp_path / f"{direction}.json") for direction in scores})
    rows = ("fr-en | 30.00", "en-fr | 20.00", "cs-en | 40.00", "mean to English | 35.00", "mean from English | 20.00")
    assert table.splitlines()[2:] == [f"| {row} |" for row in rows]


@pytest.mark.process
def test_zero_shot(tmp_path):
    """Pairs in English, the test set in French, and plain text of all three languages."""
    RAW["xgiga"](tmp_path / "raw")
    line_aligned("{split}.{column}.en", "x", "y", valid="dev")(tmp_path / "raw")
    line_aligned("{split}.{column}.zh", "x", "y", valid="dev")(tmp_path / "raw")
    for path in (tmp_path / "raw").glob("*.en"):
        path.write_text("".join(f"English: {line}\n" for line in path.read_text().splitlines()))
    words = ("--raw", "raw", *SMOKE, "--method", "deltalm", "--train-lang", "en")
    done = call(tmp_path, "recipe", "xgiga", *words, *OPTIONS.get("xgiga", ()))
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

    done = call(tmp_path, "recipe", "xgiga", "--raw", "raw", *SMOKE, "--train-lang", "en")
    assert "--train-lang needs --method deltalm, but --method is pseudo_masked" in done.stderr


def test_every_recipe_is_tested():
    assert set(GENERATION) == set(RAW)


def test_finished_stages_are_not_repeated(smoke):
    out, _ = smoke("e2e")

    def run(*words: object, status: int = 2):
        done = call(out.parent, "recipe", "e2e", "--raw", "raw", *SMOKE, *words)
        assert done.returncode == status, done.stderr
        return done

    before = {path: path.stat().st_mtime_ns for path in (out / "corpus").iterdir()}
    (out / "pseudo_masked-seed1" / "test.out").unlink()
    assert "--beam must be a whole number from 1 to 10000, but is 0" in run("--decoding", "--beam 0").stderr
    again = run(status=0)
    assert again.stdout.count(": done before (") == 6
    assert "e2e: generate ..." in again.stdout
    assert {path: path.stat().st_mtime_ns for path in (out / "corpus").iterdir()} == before

    errors = run("--limit", 5).stderr
    assert "error: out holds files that were made with other settings; name another folder, or remove it\n" in errors
    assert "  limit: before 200, now 5" in errors
    assert "  lr: before 1e-4, now 1" in run("--lr", "1").stderr
    assert ", now --beam 1\n" in run("--decoding", "--beam 1").stderr


def test_settings_of_a_stage_that_failed_are_forgotten(tmp_path):
    """After an encoder that could not be converted, another one can be given."""
    RAW["e2e"](tmp_path / "raw")
    for name, files in {"wrong": (), "converted": ("model.pt", "config.json", "dict.txt"), "other": ()}.items():
        (tmp_path / name).mkdir()
        for file in files:
            (tmp_path / name / file).touch()

    def run(encoder: str) -> str:
        done = call(tmp_path, "recipe", "e2e", "--raw", "raw", *SMOKE, "--encoder", encoder)
        assert done.returncode == 2, done.stdout + done.stderr
        return done.stderr

    assert "wrong must hold model.safetensors" in run("wrong")
    assert "malformed lines in dictionary out/encoder/dict.txt" in run("converted")
    assert f"  encoder: before {tmp_path}/converted, now {tmp_path}/other\n" in run("other")


def test_two_recipes_cannot_write_the_same_file(tmp_path, lock_elsewhere):
    RAW["e2e"](tmp_path / "raw")
    (tmp_path / "out").mkdir()
    lock_elsewhere(tmp_path / "out" / ".stage-corpus.lock")
    done = call(tmp_path, "recipe", "e2e", "--raw", "raw", *SMOKE)
    assert done.returncode == 2
    assert "out/corpus is being written by another process" in done.stderr
    assert not (tmp_path / "out" / "corpus").exists()


def test_fewer_sources(smoke):
    out, _ = smoke("e2e")
    done = call(out.parent, "recipe", "e2e", "--raw", "raw", *SMOKE, "--sources", 1)
    assert done.returncode == 0, done.stderr
    assert "e2e: generate ..." in done.stdout
    work = out / "pseudo_masked-seed1"
    assert (work / "test-1.out").read_text().count("\n") == 1
    assert (out / "corpus" / "test-1.src").read_text() == (out / "corpus" / "test.src").read_text().splitlines(True)[-1]
    assert "BLEU" in (work / "test-1.scores").read_text()


def test_hypotheses_of_another_system(smoke, tmp_path):
    out, _ = smoke("multi30k")
    lines = [json.loads(line)["refs"][0] for line in (out / "corpus" / "test.refs.jsonl").read_text().splitlines()]
    (tmp_path / "other.txt").write_text("".join(f"{line}\n" for line in lines))
    words = ("--raw", out.parent / "raw", "--limit", 200, "--output", out, "--hyp", tmp_path / "other.txt")
    done = call(tmp_path, "recipe", "multi30k", *words)
    assert done.returncode == 0, done.stderr
    assert "100.00" in (out / "scored-other.txt" / "test.scores").read_text()


@pytest.mark.parametrize(
    ("words", "problems"),
    [
        ((), ["--raw is needed: the folder of the raw files", "--encoder is needed: a folder with a pretrained"]),
        (("--raw", "no", "--encoder", "no/such/folder"),
         ["--raw must be a folder, but no is not one",
          "--encoder must be a folder, or a name on the Hugging Face hub, but no/such/folder is neither"]),
        (("--seed", "x", "--method", "infiling", "--max-target", 0),
         ["--seed must be a whole number of at least 0, but is x",
          "--method must be one of causal, masked, pseudo_masked, infilling, blocks, deltalm, but is infiling",
          "--max-target must be a whole number of at least 1, but is 0"]),
        (("--preset", "base/gigaword"), ["--preset must be a preset of this recipe (none), but is base/gigaword"]),
        (("--dry-run",), ["--dry-run needs --updates", "recipes-out/e2e"]),
        (("--hyp",), ["--hyp"]),
        (("--size", "10k"), ["--size"]),
        (("raw",), ["raw"]),
    ],
)  # fmt: skip
def test_mistakes(tmp_path, words, problems):
    done = call(tmp_path, "recipe", "e2e", *words)
    assert done.returncode == 2
    assert "error: " in done.stderr
    assert all(problem in done.stderr for problem in problems)
    assert list(tmp_path.iterdir()) == []


def test_help(tmp_path):
    done = call(tmp_path, "recipe", "xgiga", "--help")
    assert done.returncode == 0
    assert "XGiga (Gigaword-fr, Gigaword-zh)" in done.stdout
    for option in ("--lang {en,fr,zh}", "--raw DIR", "--smoke", "--fit-head"):
        assert option in done.stdout


def test_an_unknown_set(smoke, tmp_path):
    out, _ = smoke("coqa")
    done = call(tmp_path, "recipe", "coqa", "--raw", out.parent / "raw", "--smoke", "--output", out, "--set", "test")
    assert done.returncode == 2
    assert done.stderr == "error: --set must be one of dev, the sets that are scored, but is test\n"
