"""``s2sft recipe --grid``: cells and runs, what chooses among them, and going on after a kill."""

import json
import shlex
from types import SimpleNamespace

import pytest
from called import call
from raw_corpora import RAW

from s2sft_fairseq.commands.recipe import open_recipe
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.recipes import grid
from s2sft_fairseq.recipes.grid import Cell, Request, as_table, cells_of, chosen_score, read_ranges, read_request

SMOKE = ("--raw", "raw", "--smoke", "--cpu", "--workers", 1, "--held-out", 3, "--output", "out")


def test_the_options_of_a_grid_are_taken_out():
    words = ["--raw", "r", "--grid", "lr=1,2", "--scoring", "--lowercase", "--runs", "5", "--grid", "epochs=3"]
    request, rest = read_request(words)
    assert request == Request(["lr=1,2", "epochs=3"], 5, None)
    assert rest == ["--raw", "r", "--scoring", "--lowercase"]
    assert read_request(rest) == (None, rest)
    assert read_request(["--runs", "2", "--grid-score", "F1"])[0] == Request([], 2, "F1")
    for words, problem in (
        (["--runs", "0"], "--runs must be from 1 to 1000, but is 0"),
        (["--runs", "1000000000"], "--runs must be from 1 to 1000"),
        (["--grid-score", "F1"], "needs --grid"),
    ):
        with pytest.raises(UserError, match=problem):
            read_request(words)


def test_the_ranges_of_the_papers(tmp_path):
    """UniLMv2's Table 9; s2s-ft's appendix A, with other learning rates for large encoders."""
    table_9 = {"batch": ["16", "32"], "lr": ["5e-6", "1e-5", "1.5e-5", "2e-5", "3e-5"], "warmup_share": ["0.1", "0.2"],
               "weight_decay": ["0.01", "0.1"], "epochs": ["10", "15"]}  # fmt: skip
    assert read_ranges(open_recipe("glue", []), ["paper"], []) == table_9
    assert len(cells_of(table_9)) == 80
    appendix = {"lr": ["5e-5", "7e-5", "1e-4"], "epochs": ["10", "15", "20", "30"],
                "target_mask_prob": ["0.4", "0.5", "0.6", "0.7"]}  # fmt: skip
    assert read_ranges(open_recipe("xsum", []), ["paper"], []) == appendix
    (tmp_path / "config.json").write_text('{"hidden_size": 1024}')
    large = read_ranges(open_recipe("xsum", ["--encoder", str(tmp_path)]), ["paper", "epochs=10"], [])
    assert large == {**appendix, "lr": ["1e-5", "1.5e-5", "2e-5", "3e-5"], "epochs": ["10"]}
    for words in (("xsum", ["--method", "causal"]), ("squad", [])):
        with pytest.raises(UserError, match="--grid paper: no paper gives ranges"):
            read_ranges(open_recipe(*words), ["paper"], [])


def test_cells():
    assert cells_of({"lr": ["1", "2"], "epochs": ["3", "4"]}) == [
        {"lr": lr, "epochs": epochs} for lr in "12" for epochs in "34"
    ]
    assert cells_of({}) == [{}]


def test_mistakes():
    recipe = open_recipe("e2e", ["--updates", "9"])
    with pytest.raises(UserError) as error:
        read_ranges(recipe, ["seed=1,2", "lr=x", "noise_symbol=../x", "epochs=0,2", "dropout"], ["--lr=3"])
    assert [problem.split(", but")[0] for problem in error.value.problems] == [
        f"--grid must be NAME=VALUE,VALUE with one of {', '.join(recipe.searched)}",
        "--grid lr=x: --lr must be a number of at least 0",
        "--grid noise_symbol=../x: a value must be a word or a number",
        "--grid epochs=0,2: --epochs must be a whole number of at least 1",
        "--grid dropout: a value must be a word or a number",
        "--grid has lr, and so it must not be given by --lr",
        "--grid has epochs, which have no effect with --updates",
    ]
    with pytest.raises(UserError, match="leave out --dump-config and --hyp"):
        grid.run_grid(lambda words: open_recipe("e2e", words), ["--dump-config"], Request(["lr=1"], 1, None))


def test_the_score_that_chooses():
    """Of GLUE that of UniLMv2's Table 3: MCC of CoLA, the accuracy of tasks that have F1, too."""
    assert chosen_score({"MCC": 1.0, "accuracy": 2.0}, None) == "MCC"
    assert chosen_score({"F1": 1.0, "accuracy": 2.0}, None) == "accuracy"
    assert chosen_score({"EM": 1.0, "F1": 2.0}, None) == "F1"
    assert chosen_score({"ROUGE-1": 1.0, "ROUGE-L": 2.0}, None) == "ROUGE-L"
    assert chosen_score({"ROUGE-1": 1.0, "ROUGE-L": 2.0}, "ROUGE-1") == "ROUGE-1"
    assert chosen_score({"new": 1.0}, None) == "new"
    with pytest.raises(UserError, match="--grid-score must be one of ROUGE-1, but is BLEU"):
        chosen_score({"ROUGE-1": 1.0}, "BLEU")


def test_the_table():
    cells = [
        Cell(
            {"lr": "1"}, [{"BLEU": 1.0, "ROUGE-L": 9.0}, {"BLEU": 2.0, "ROUGE-L": 8.0}, {"BLEU": 6.0, "ROUGE-L": 7.0}]
        ),
        Cell({"lr": "2"}, [{"BLEU": 4.0, "ROUGE-L": 1.0}] * 3),
    ]
    assert as_table(cells, "BLEU").splitlines()[2:] == [
        "| 2 | 3 | 4.00 | 4.00 | 4.00 | 4.00 | 1.00 |",
        "| 1 | 3 | 3.00 | 2.00 | 1.00 | 6.00 | 8.00 |",
    ]


@pytest.fixture
def trained(tmp_path, monkeypatch):
    """A function that opens recipes whose runs only write a score, by learning rate and seed; the runs in order."""
    runs, scores = [], {("1", 1): 10.0, ("1", 2): 20.0, ("2", 1): 16.0, ("2", 2): 15.0, ("3", 1): 1.0, ("3", 2): 2.0}

    def opened(words):
        recipe = open_recipe("e2e", [*words, "--output", str(tmp_path / "out")])

        def run():
            s = recipe.settings
            runs.append((s.lr, s.seed, s.set))
            if s.lr == "3" and opened.is_killed:
                raise UserError("no space is left")
            path = recipe.score_files()[0]
            path.parent.mkdir(parents=True, exist_ok=True)
            systems = {"a": {"scores": [{"name": "BLEU", "value": scores[s.lr, s.seed]}]}}
            path.write_text(json.dumps({"systems": systems}))

        monkeypatch.setattr(recipe, "run", run)
        return recipe

    opened.runs, opened.is_killed, opened.folder = runs, False, tmp_path / "out" / "grid"
    return opened


def test_the_best_mean_is_scored_on_the_test_set(trained, capsys):
    grid.run_grid(trained, ["--epochs", "7"], Request(["lr=1,2,3"], 2, None))
    on_dev = [(lr, seed, "dev") for lr in "123" for seed in (1, 2)]
    assert trained.runs == [*on_dev, ("2", 1, "test"), ("2", 2, "test")]
    found = json.loads((trained.folder / "dev.json").read_text())
    assert [cell["values"] for cell in found["cells"]] == [{"lr": lr} for lr in "123"]
    assert found["cells"][0]["runs"] == [{"BLEU": 10.0}, {"BLEU": 20.0}] and found["score"] == "BLEU"
    assert (trained.folder / "test.md").read_text().splitlines()[2] == "| 2 | 2 | 15.50 | 15.50 | 15.00 | 16.00 |"
    assert "chosen by BLEU: lr 2, of 3 cells" in capsys.readouterr().out
    # The settings of the chosen cell are a file for --config.
    again = open_recipe("e2e", ["--config", str(trained.folder / "best.toml")])
    assert (again.settings.lr, again.settings.epochs, again.settings.seed) == ("2", 7, 1)


def test_a_cell_that_fails_is_named_and_finished_cells_stay(trained):
    trained.is_killed = True
    with pytest.raises(UserError, match=r"the cell lr=3,seed=1: no space is left"):
        grid.run_grid(trained, [], Request(["lr=1,2,3"], 1, None))
    assert len(json.loads((trained.folder / "dev.json").read_text())["cells"]) == 2
    assert not (trained.folder / "best.toml").exists()


@pytest.mark.process
def test_a_grid_goes_on_where_it_was(tmp_path):
    """Trainings and texts of finished cells are not made again, and the data is made once."""
    RAW["e2e"](tmp_path / "raw")

    def run(*words):
        done = call(tmp_path, "recipe", "e2e", *SMOKE, *words)
        assert done.returncode == 0, done.stderr[-3000:]
        lines = [line.removeprefix("e2e: ").removesuffix(" ...") for line in done.stdout.splitlines()]
        return [line for line in lines if line in ("binarize", "train, 4 updates", "generate") or "cell lr" in line]

    first = run("--grid", "lr=1e-3", "--set", "dev")
    assert first == ["cell lr=1e-3,seed=1", "binarize", "train, 4 updates", "generate"]
    again = run("--grid", "lr=1e-3,1e-2")
    chosen = json.loads((tmp_path / "out" / "grid" / "test.json").read_text())["cells"][0]["values"]["lr"]
    assert again[:4] == ["cell lr=1e-3,seed=1", "cell lr=1e-2,seed=1", "train, 4 updates", "generate"]
    assert again[4:] == [f"cell lr={chosen},seed=1", "generate"]


def test_dry_run_shows_the_commands_of_each_cell(tmp_path):
    words = ("--dry-run", "--updates", 9, "--grid", "lr=1e-3,1e-2", "--runs", 2)
    done = call(tmp_path, "recipe", "e2e", *words)
    assert done.returncode == 0, done.stderr
    trainings = [shlex.split(line) for line in done.stdout.splitlines() if line.startswith("s2sft train")]
    options = [(words[words.index("--lr") + 1], words[words.index("--seed") + 1]) for words in trainings]
    assert options == [("1e-3", "1"), ("1e-3", "2"), ("1e-2", "1"), ("1e-2", "2")]


def test_scores_of_several_directions(tmp_path):
    for name, value in (("a", 10.0), ("b", 30.0)):
        systems = {"x": {"scores": [{"name": "BLEU", "value": value}]}, "lead": {"scores": []}}
        (tmp_path / f"{name}.json").write_text(json.dumps({"systems": systems}))
    recipe = SimpleNamespace(score_files=lambda: [tmp_path / "a.json", tmp_path / "b.json"])
    assert grid.scores_of(recipe) == {"BLEU": 20.0}
