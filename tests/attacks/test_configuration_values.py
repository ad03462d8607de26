"""Values of a configuration are values: none is split into other options, read as an option, or run as code."""

import contextlib
import json
import shlex
import time
import tomllib
from pathlib import Path

import pytest
from called import call
from exported import write_model_folder

from s2sft_fairseq import Seq2Seq, cli, finetune
from s2sft_fairseq.commands.doctor import main as doctor
from s2sft_fairseq.commands.fairseq_command import value_of
from s2sft_fairseq.commands.recipe import open_recipe
from s2sft_fairseq.data import bounded_files
from s2sft_fairseq.data.bounded_files import parse_toml
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.recipes.engine import options
from s2sft_fairseq.recipes.finetune import Finetuning
from s2sft_fairseq.recipes.settings import Settings, read_toml


@pytest.fixture
def evil(tmp_path, monkeypatch, request):
    """A plugin that writes a file when it is imported; `ran` says whether it was."""
    folder = tmp_path / f"evil_{abs(hash(request.node.name))}"
    folder.mkdir()
    (folder / "__init__.py").write_text(f"open({str(tmp_path / 'attacked')!r}, 'w').close()\n")
    monkeypatch.chdir(tmp_path)
    return folder.name


def ran(folder: Path) -> bool:
    return (folder / "attacked").exists()


CODE = [
    'layout = "--user-dir {evil}"',
    'layout = "--user-dir={evil}"',
    'layout = "--user-di {evil}"',
    'layout = "--source-truncation left --user-dir {evil}"',
    'layout = ["--user-dir", "{evil}"]',
    'decoding = "--beam 5 --user-dir {evil}"',
    'evaluation = "--task rouge --json {evil}"',
    'evaluation = "--task rouge --src-x {evil}"',
    'lr = "--user-dir={evil}"',
    'dropout = "--user-dir={evil}"',
    'weight_decay = "--user-dir={evil}"',
    'label_smoothing = "--user-dir={evil}"',
    'method = "masked"\ntarget_mask_prob = "--user-dir={evil}"',
    'method = "infilling"\nnoise_prob = "--user-dir={evil}"',
    'method = "infilling"\nnoise_symbol = "--user-dir={evil}"',
    'separator = "--user-dir={evil}"',
    'added_token = "--user-dir={evil}"',
    "lr = \"__import__('pathlib').Path('attacked').touch() or 1\"",
]


@pytest.mark.parametrize("text", CODE)
def test_a_recipe_runs_no_code(tmp_path, evil, text):
    """Neither while the file is read, nor when the commands run that it leads to."""
    (tmp_path / "mine.toml").write_text(text.format(evil=evil))
    done = call(tmp_path, "recipe", "e2e", "--config", "mine.toml", "--updates", 9, "--dry-run")
    for line in done.stdout.splitlines():
        _, command, *words = shlex.split(line)
        assert value_of(words, "--user-dir") is None
        call(tmp_path, command, *words)
    assert not ran(tmp_path)
    if text.split(" ")[0] in ("layout", "decoding", "evaluation"):
        assert done.returncode == 2 and f"mine.toml: --{text.split(' ')[0]} must" in done.stderr


def test_what_a_recipe_may_set(tmp_path):
    """The options of the lists, with their values, in any form."""
    texts = {
        "layout": "--num-roles=3 --source-truncation 'right,left'",
        "decoding": "--beam 3 --lenpen -0.5 --no-repeat-ngram-ignore '. | ,' --keep-unfinished",
        "evaluation": "--task rouge --metrics rouge sacrebleu --no-stem --lead 3-sentences",
    }
    (tmp_path / "mine.toml").write_text("".join(f'{name} = "{text}"\n' for name, text in texts.items()))
    settings = open_recipe("e2e", ["--config", str(tmp_path / "mine.toml")]).settings
    assert {name: getattr(settings, name) for name in texts} == texts
    dumped = call(tmp_path, "recipe", "e2e", "--config", "mine.toml", "--dump-config").stdout
    assert tomllib.loads(dumped).items() >= texts.items()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("layout = '--source-truncation left out'", "--layout must be options and their values, but 'out' belongs to"),
        ("layout = 'left'", "--layout must be options and their values, but 'left' belongs to no option"),
        ("layout = '--source-truncation=left out'", "'out' belongs to no option"),
        ("layout = '\"'", "--layout must be options as on a command line, but is '\"' (No closing quotation)"),
        ("decoding = '--beam 5 --sampling-topk 3 --results-path x'", "--decoding must not have --results-path"),
        ("decoding = '--bea 5'", "--decoding must not have --bea: a file may have --beam,"),
        ("decoding = '-b 5'", "--decoding must not have -b"),
        ("decoding = '--max_len_b 5'", "--decoding must not have --max_len_b"),
        ("layout = {user_dir = 'x'}", "--layout must be a text, but is {'user_dir': 'x'}"),
        ("updates = [9]", "--updates must be a whole number, but is [9]"),
        ("lr = true", "--lr must be a text, but is True"),
        ("lr = nan", "--lr must be a number of at least 0, but is nan"),
        ("lr = 'fast'", "--lr must be a number of at least 0, but is fast"),
        ("dropout = 2", "--dropout must be a number from 0 to 1, but is 2"),
        ("updates = 1979-05-27", "--updates must be a whole number, but is "),
        ("max_source = 1000000000", "--max-source must be a whole number from 1 to 131072, but is 1000000000"),
        ("max_target = 131073", "--max-target must be a whole number from 1 to 131072, but is 131073"),
        ("seed = 4294967296", "--seed must be a whole number from 0 to 4294967295, but is 4294967296"),
        ("layout = '--num-turns 1000000000'", "--layout must have numbers of at most 1,000,000, but has 1000000000"),
        ("layout = '--num-turns=9999999999999999999'", "--layout must have numbers of at most 1,000,000, but has 9999"),
        ("layout = '--num-turns 1_000_000_000'", "numbers of at most 1,000,000, but has 1_000_000_000"),
        ("layout = '--num-turns=+1000000000'", "numbers of at most 1,000,000, but has +1000000000"),
        ("layout = '--num-turns \" 1000000000\"'", "numbers of at most 1,000,000, but has  1000000000"),
        ("layout = '--num-turns ٩٩٩٩٩٩٩٩'", "numbers of at most 1,000,000, but has ٩٩٩٩٩٩٩٩"),
        ("layout = '--initial-std nan'", "numbers of at most 1,000,000, but has nan"),
        ("decoding = '--lenpen -inf'", "numbers of at most 1,000,000, but has -inf"),
        ("user_dir = 'x'", "there is no setting user_dir"),
        ("further = '--user-dir x'", "there is no setting further"),
        ("train = '--user-dir x'", "there is no setting train"),
    ],
)
def test_what_a_recipe_may_not_set(tmp_path, text, problem):
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(UserError) as error:
        open_recipe("e2e", ["--config", str(tmp_path / "mine.toml")])
    assert problem in str(error.value) and "mine.toml: " in str(error.value)


@pytest.mark.parametrize("path", [".", "/", "absent"])
def test_what_is_no_configuration_file(tmp_path, monkeypatch, path):
    """A folder was ignored without a word."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=rf"--config {path} must be a TOML file of settings"):
        open_recipe("e2e", ["--config", path])


@pytest.mark.parametrize(("recipe", "text"), [("wmt10", "langs = '../../x'"), ("xgiga", "text_langs = 'en,--x'")])
def test_languages_are_no_paths(tmp_path, recipe, text):
    (tmp_path / "mine.toml").write_text(text)
    with pytest.raises(UserError, match=r"langs must be one of .*fr.*, but is "):
        open_recipe(recipe, ["--config", str(tmp_path / "mine.toml"), "--method", "deltalm"])


def test_the_set_is_no_path(tmp_path):
    """It names a file of the corpus, not one beside it."""
    for name in ("corpus/test", "outside"):
        for kind in ("src", "refs.jsonl"):
            (tmp_path / f"{name}.{kind}").parent.mkdir(exist_ok=True)
            (tmp_path / f"{name}.{kind}").write_text("a\n")
    recipe = open_recipe("e2e", ["--output", str(tmp_path)])
    recipe.choose_set()
    recipe.settings.set = "../outside"
    with pytest.raises(UserError, match=r"--set must be one of test, .* but is \.\./outside"):
        recipe.choose_set()


def test_words_of_a_command():
    """A value that looks like an option is joined to its name, and a path is none."""
    assert options(lr="--user-dir=x", beam=-1) == ["--lr=--user-dir=x", "--beam=-1"]
    assert options(input=[Path("-x"), "y"]) == ["--input", "./-x", "y"]


def test_the_fine_tuning_of_a_program(tmp_path, evil):
    """Settings that a program passes on; options of the training that it trusts are in `further`."""
    for named in ({"max_source": 10**9}, {"candidates": 10**9}, {"lora_rank": 10**9}, {"workers": 10**9}):
        with pytest.raises(UserError, match=r"must be a whole number from \d to \d+, but is 1000000000"):
            finetune("none", [("a", "b")], output=tmp_path / "out", **named)
    for named in ({"layout": f"--user-dir {evil}"}, {"lr": f"--user-dir={evil}"}, {"user_dir": evil}, {"cpu": "no"}):
        with pytest.raises(
            UserError, match=r"--layout must not have --user-dir|--lr must|no setting user_dir|--cpu must"
        ):
            finetune("none", [("a", "b")], output=tmp_path / "out", **named)
    with pytest.raises(UserError, match="--layout must not have --user-dir"):
        cli.call("finetune", ["--encoder", "none", "--layout", f"--user-dir {evil}"])
    assert not ran(tmp_path) and not (tmp_path / "out").exists()


def test_the_language_of_a_model_folder(tmp_path, evil):
    """The languages in a folder's config.json became the value of an option."""
    write_model_folder(tmp_path / "model", layout={"languages": [f"--user-dir={evil}"]})
    with contextlib.suppress(UserError):
        Seq2Seq.from_pretrained(tmp_path / "model", device="cpu")
    doctor([str(tmp_path / "model")])
    assert not ran(tmp_path)


def test_the_name_of_a_model_folder(tmp_path, evil):
    name = f"--user-dir={evil}"
    write_model_folder(tmp_path / name)
    model = Seq2Seq.from_pretrained(name, device="cpu")
    assert isinstance(model.generate("w5 w6", max_len=3), str)
    assert not ran(tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        ".".join("a" * 30_000) + " = 1",
        f"a = {'[' * 30_000}",
        f"[{'.'.join('a' * 30_000)}]",
        "a = {" + ".".join("b" * 300) + "=1}",
    ],
    ids=["key", "lists", "table", "inline"],
)
def test_a_key_of_many_parts(tmp_path, text):
    (tmp_path / "mine.toml").write_text(text)
    start = time.process_time()
    with pytest.raises(UserError, match=r"TOML file of settings, but is nested deeply: line 1 has more than 100 dots"):
        read_toml(tmp_path / "mine.toml")
    assert time.process_time() - start < 1


def test_a_long_file(tmp_path, monkeypatch):
    (tmp_path / "mine.toml").write_text("# a comment\n" * 6_000)
    with pytest.raises(UserError, match=r"must be a TOML file of settings, but has more than 65,536 characters"):
        read_toml(tmp_path / "mine.toml")
    monkeypatch.setattr(bounded_files, "_DEEPEST_KEY", 10**6)
    with pytest.raises(ValueError, match="is nested deeply"):
        parse_toml(f"a = {'[' * 30_000}")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"settings": {"a": {"layout": "--user-dir evil"}}}, "plan.json: --layout must not have --user-dir"),
        (
            {"settings": {"a": {"lr": "--user-dir=evil"}}},
            "plan.json: --lr must be a number of at least 0, but is --user",
        ),
        ({"evaluation": ["--task", "rouge", "--json", "evil"]}, "plan.json: evaluation must not have --json"),
    ],
)
def test_the_plan_of_an_output_folder(tmp_path, changes, problem):
    """An output folder of ``s2sft finetune`` may come from another machine."""
    stages = Finetuning.__new__(Finetuning)
    stages.output, stages.settings = tmp_path, Settings(Finetuning.declared)
    plan = {"settings": {}, "evaluation": [], "least": 1, "cut": {}, "device": "on a CPU"}
    (tmp_path / "plan.json").write_text(json.dumps({**plan, **changes}))
    with pytest.raises(UserError) as error:
        stages.take_plan()
    assert problem in str(error.value)
