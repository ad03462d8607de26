"""``s2sft finetune`` with a tiny encoder: its stages, interruptions, and the choice of a checkpoint."""

import contextlib
import json
import random
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from called import call
from fairseq.trainer import Trainer
from faults import fail_at, signalled
from hugging_face import VOCAB_SIZE, initial_model, save
from safetensors.torch import load_file

import s2sft_fairseq
from s2sft_fairseq import cli
from s2sft_fairseq.corpora.pairs import USUAL
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models import model_folder
from s2sft_fairseq.recipes import engine, finetune_trials
from s2sft_fairseq.recipes.finetune import Finetuning, finetune
from s2sft_fairseq.recipes.settings import read_values

SHORT = {"updates": 6, "candidates": 2, "batch": 8, "lr": "1e-3", "cpu": True, "workers": 1}
STAGES = ["read the pairs", "convert the encoder", "tokenize", "compute the head", "choose the settings", "binarize",
          "train to update 3 of 6", "generate with update-3", "train to update 6 of 6", "generate with update-6",
          "average the last 2", "generate with average"]  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """Do not free memory after each command."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_free_memory", lambda: None)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny encoder without a head, and 60 pairs of words and the same words reversed."""
    folder = tmp_path_factory.mktemp("finetune")
    save("bert-no-head", initial_model("bert-no-head"), folder / "encoder")
    draw = random.Random(0)
    sources = [[f"w{draw.randrange(5, VOCAB_SIZE)}" for _ in range(draw.randint(2, 6))] for _ in range(60)]
    (folder / "pairs.tsv").write_text("".join(f"{' '.join(words)}\t{' '.join(words[::-1])}\n" for words in sources))
    return folder


def weights(model: Path) -> dict[str, torch.Tensor]:
    return load_file(model / "model.safetensors")


def started(folder: Path, output: Path, run=cli.call, **settings: object) -> Finetuning:
    given = {"encoder": folder / "encoder", "output": output, **SHORT, **settings}
    values = read_values({**Finetuning.run_options, **Finetuning.declared}, given)
    return Finetuning({"train": [folder / "pairs.tsv"]}, USUAL, values, ["--log-interval", "1"], run)


def command(output: str) -> tuple[object, ...]:
    """Return the words of the command that `started` stands for."""
    options = [word for name, value in SHORT.items() for word in (f"--{name}", *([value] if value is not True else []))]
    words = ("finetune", "--encoder", "encoder", "--train", "pairs.tsv", "--output", output, *options)
    return (*words, "--", "--log-interval", 1)


@pytest.fixture(scope="module")
def whole(folder: Path) -> tuple[Path, str]:
    """The output of an uninterrupted command line, and what it printed."""
    done = call(folder, *command("whole"))
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return folder / "whole", done.stdout


def test_stages(whole):
    output, printed = whole
    begun = [
        line.removeprefix("finetune: ").removesuffix(" ...") for line in printed.splitlines() if line.endswith(" ...")
    ]
    assert begun[: len(STAGES)] == STAGES
    assert [stage.startswith("generate with ") for stage in begun[len(STAGES) : -2]] == [True] * 5
    assert begun[-2:] == ["generate what is scored", "export"]
    record = json.loads((output / "finetune.json").read_text())
    assert list(record["seconds"]) == begun
    assert record["data"]["lines"] == {"train": 48, "valid": 12, "dev": 12}
    assert record["settings"]["updates"] == {"value": 6, "why": "given"}
    assert record["settings"]["max_source"]["value"] == 8 and record["settings"]["max_target"]["value"] == 7
    assert record["settings"]["label_smoothing"] == {"value": "0.1", "why": "default"}
    assert record["cut"] == {"source": 0.0, "target": 0.0}
    assert set(record["candidates"]) == {"update-3", "update-6", "average"}
    assert record["chosen"] == max(record["candidates"], key=lambda name: record["candidates"][name]["ROUGE-L"])
    assert record["searches"][0] == {"beam": 1, "rouge-l": record["candidates"][record["chosen"]]["ROUGE-L"]}
    assert record["searches"][1].items() >= {"beam": 5, "lenpen": 1.0}.items()
    assert record["search"].items() <= max(record["searches"], key=lambda search: search["rouge-l"]).items()
    assert {score["name"] for score in record["scores"]} >= {"ROUGE-L", "BLEU"}
    assert all("rouge-score" in score["signature"] for score in record["scores"] if score["name"] == "ROUGE-L")
    assert set(record["examples"][0]) == {"source", "reference", "generated"}
    assert (output / "scored.txt").read_text().count("\n") == 12
    assert (output / "scored.scores").read_text() in printed
    assert not (output / "candidates").exists() and not (output / "checkpoints").exists()


def test_finished_stages_are_not_repeated(folder, whole, capsys):
    """Nothing is called; other settings, options and pairs are refused."""
    output, _ = whole

    def refuse(name, words):
        raise AssertionError(name)

    before = (output / "finetune.json").read_text()
    started(folder, output, refuse).run()
    assert "the model is" in capsys.readouterr().out
    assert json.loads((output / "finetune.json").read_text()) == json.loads(before)
    with pytest.raises(UserError, match=r"other settings.*\n  metric: before rouge-l, now bleu\n"
                                        r"  lr: before 1e-3, now 2e-3$"):  # fmt: skip
        started(folder, output, lr="2e-3", metric="bleu").run()
    other = started(folder, output)
    (folder / "other.tsv").write_text("a\tb\n")
    other.files["valid"] = [folder / "other.tsv"]
    with pytest.raises(UserError, match=r"\n  valid: before , now .*other.tsv \([0-9a-f]{12}\)$"):
        other.run()


def test_a_run_that_is_interrupted_many_times(folder, whole, monkeypatch):
    """After each command, before its result has its name, and within an update: the model is the same."""
    output, done = folder / "stopped", set()
    monkeypatch.setattr(finetune_trials, "SAVED_AFTER", 1)
    step, steps = Trainer.train_step, []

    def train_step(self, *args, **options):
        steps.append(1)
        if len(steps) == 5:
            raise KeyboardInterrupt
        return step(self, *args, **options)

    def stopped(name, words):
        cli.call(name, words)
        command = (name, *(word for word in words if not word.endswith(".partial")))
        if name != "evaluate" and command not in done:
            done.add(command)
            raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, "train_step", train_step)
    tries = 0
    while not (output / "model").exists():
        tries += 1
        with contextlib.suppress(KeyboardInterrupt):
            started(folder, output, stopped).run()
    assert tries == len(done) + 2 and len(steps) == 7
    assert (output / "scored.txt").read_text() == (whole[0] / "scored.txt").read_text()
    one, other = (weights(each / "model") for each in (whole[0], output))
    assert one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())
    found, expected = (json.loads((each / "finetune.json").read_text()) for each in (output, whole[0]))
    assert list(found["seconds"]) == list(expected["seconds"])
    assert all(found[name] == expected[name] for name in ("settings", "candidates", "chosen", "search", "examples"))


def test_a_run_that_is_asked_to_end(folder, whole):
    """It ends after the update, with the status that schedulers queue again; the same command makes the same model."""
    with fail_at(0, 5, "after update", signalled(signal.SIGTERM)) as had:
        ended = call(folder, *command("ended"))
    assert ended.returncode == 75
    assert (
        f"the training is saved at update 5 of 6, in {folder}/ended; the same command, or call, goes on" in ended.stdout
    )
    resumed = call(folder, *command("ended"))
    assert (had, resumed.returncode) == ([5], 0)
    assert "update 6/6" in resumed.stdout and "update 5/6" not in resumed.stdout
    one, other = (weights(output / "model") for output in (whole[0], folder / "ended"))
    assert all(torch.equal(value, other[name]) for name, value in one.items())


LOSSES = {3: 1.5, 6: 1.25}


@pytest.fixture
def chosen(folder, tmp_path, monkeypatch):
    """Return the recorded choice for texts with these scores, given by name; nothing is trained or generated."""

    def choose(scores, **settings):
        monkeypatch.setattr(finetune_trials, "held_out_losses", lambda log: LOSSES)
        monkeypatch.setattr(Finetuning, "stage", lambda self, made, what, work: None)
        monkeypatch.setattr(Finetuning, "scores", lambda self, made, name: {"BLEU": scores[made.stem]})
        monkeypatch.setattr(Finetuning, "examples", lambda self, made, name: [])
        (tmp_path / "corpus").mkdir()
        (tmp_path / "corpus" / "stats.json").write_text('{"lines": {"train": 48, "valid": 12}}')
        (tmp_path / "plan.json").write_text('{"device": "on a CPU"}')
        (tmp_path / "scored.json").write_text('{"systems": {"x": {"scores": []}}}')
        (tmp_path / "finetune.settings").touch()
        stages = started(folder, tmp_path, **settings)
        stages.least = 3
        stages.train_and_choose()
        return stages

    return choose


@pytest.mark.parametrize("best", ["update-3", "update-6", "average"])
@pytest.mark.parametrize(
    ("further", "search"),
    [
        ([("no_repeat_ngram_size3", 30.5), ("min_len3", 30.5)], {}),
        ([("no_repeat_ngram_size3", 32), ("no_repeat_ngram_size3-min_len3", 31)], {"no_repeat_ngram_size": 3}),
        ([("no_repeat_ngram_size3", 30), ("min_len3", 32)], {"min_len": 3}),
    ],
)
def test_the_best_checkpoint_and_the_best_search(chosen, monkeypatch, best, further, search):
    scores = {"update-3": 20.0, "update-6": 20.5, "average": 20.5, "scored": 1.0} | {best: 30.0}
    scores |= {f"{best}-beam5-lenpen{value}": score for value, score in ((1.0, 30.0), (0.6, 31.0), (1.6, 29.0))}
    further = {f"{best}-beam5-lenpen0.6-{name}": score for name, score in further}
    stages = chosen({**scores, **further}, metric="bleu")
    record = stages.record
    assert (record["chosen"], record["search"]) == (best, {"beam": 5, "lenpen": 0.6, **search})
    assert record["candidates"]["update-3"] == {"loss": 1.5, "BLEU": scores["update-3"]}
    assert record["candidates"]["average"] == {"BLEU": scores["average"]}
    assert [tried["bleu"] for tried in record["searches"]] == [30.0, 30.0, 31.0, 29.0, *further.values()]
    assert record["searches"][0] == {"beam": 1, "bleu": 30.0}
    exported = []
    monkeypatch.setattr(model_folder, "export_folder", lambda *words, **named: exported.append((words, named)))
    stages.export(Path("made"))
    ((words, named),) = exported
    assert words == (stages.trials / f"{best}.pt", Path("made"), stages.encoder)
    assert named["search"] == record["search"] and named["facts"]["chosen"] == f"{best}, by bleu"
    assert named["facts"]["pairs"] == {"train": 48, "valid": 12}


@pytest.mark.parametrize(("losses", "best"), [({3: 1.5, 6: 2.0}, "update-3"), ({3: 1.5, 6: 1.0}, "update-6")])
def test_by_the_held_out_loss_alone(chosen, monkeypatch, losses, best):
    monkeypatch.setitem(LOSSES, 6, losses[6])
    record = chosen({"scored": 1.0}, metric="loss").record
    assert record["chosen"] == best
    assert record["candidates"] == {"update-3": {"loss": 1.5}, "update-6": {"loss": losses[6]}}
    assert record["search"] == {"beam": 5}


def test_a_given_beam_is_used(chosen):
    scores = {"update-3": 9.0, "update-6": 8.0, "average": 8.0, "scored": 1.0}
    scores |= {f"update-3-beam2-lenpen{value}": value for value in (1.0, 0.6, 1.6)}
    scores |= {f"update-3-beam2-lenpen1.6-{name}": 1.0 for name in ("no_repeat_ngram_size3", "min_len3")}
    record = chosen(scores, metric="bleu", beam=2).record
    assert (record["chosen"], record["search"]) == ("update-3", {"beam": 2, "lenpen": 1.6})


def test_python(folder, tmp_path, monkeypatch):
    """Pairs of a generator become a file; everything else is as on the command line, and the model is loaded."""
    monkeypatch.setattr(s2sft_fairseq, "Seq2Seq", SimpleNamespace(from_pretrained=str), raising=False)
    ran = []
    monkeypatch.setattr(Finetuning, "run", lambda self: ran.append(self))
    pairs = [line.split("\t") for line in (folder / "pairs.tsv").read_text().splitlines()]
    further = ["--log-interval", "1"]
    made = finetune(folder / "encoder", (pair for pair in pairs), output=tmp_path, further=further, **SHORT)
    assert made == str(tmp_path / "model")
    (stages,) = ran
    (file,) = stages.files["train"]
    assert [json.loads(line) for line in file.read_text().splitlines()] == [{"src": a, "tgt": b} for a, b in pairs]
    assert vars(stages.settings) == vars(started(folder, tmp_path).settings) and stages.further == further
    with pytest.raises(UserError) as error:
        finetune("none", pairs, output=tmp_path, epoch=3, beam=0)
    assert error.value.problems[0].startswith("there is no setting epoch (did you mean epochs?): known are encoder, ")
    assert error.value.problems[1] == "--beam must be a whole number of at least 1, but is 0"


@pytest.mark.parametrize("name", ["made by another program", "converted", "a model"])
def test_encoders(folder, tmp_path, monkeypatch, name):
    """A converted encoder or a model is linked."""
    encoder = tmp_path / "encoder"
    encoder.mkdir()
    (encoder / "config.json").write_text('{"format": "s2sft_fairseq model"}' if name == "a model" else "{}")
    if name != "made by another program":
        (encoder / ("model.pt" if name == "converted" else "model.safetensors")).touch()
    called = []
    stages = started(folder, tmp_path / "out", lambda *words: called.append(words), encoder=encoder, max_source=600)
    stages.make_encoder(tmp_path / "made")
    if name == "made by another program":
        assert called == [("convert", [str(encoder), "--to", str(tmp_path / "made"), "--max-positions", "665"])]
    else:
        assert (tmp_path / "made").readlink() == encoder and called == []


def test_outputs_that_are_refused(folder, tmp_path):
    """Checkpoints of another training would be resumed, and removed at the end."""
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(UserError, match=r"--output must be new, empty or of this command, but .* holds checkpoints$"):
        started(folder, tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"--output must be a folder, but .*/file is not one$"):
        started(folder, tmp_path / "file")


def test_zero_counts_as_given(folder, tmp_path):
    settings = started(folder, tmp_path, seed=0, warmup=0).settings
    assert (settings.seed, settings.warmup) == (0, 0) and {"seed", "warmup"} <= settings.given


def test_a_converted_encoder_without_a_head(folder, whole, tmp_path, capsys):
    """It prints that the encoder's original folder would be better."""
    stages = started(folder, tmp_path, encoder=whole[0] / "encoder")
    stages.make_encoder(stages.encoder)
    stages.complete_head()
    assert set(stages.lacking()) == {"fit_head", "output_prior"}
    assert "begins with a random one: give the folder that it was converted from" in capsys.readouterr().out
    assert not (tmp_path / "fitted").exists()


def test_the_first_layers(folder, whole, tmp_path, monkeypatch):
    """They are an option of the conversion, also of the one that fits a head; a trained model stays as it is."""
    stages = started(folder, tmp_path / "out", layers=3)
    assert stages.conversion() == ["--layers", "3"]
    assert started(folder, tmp_path / "all").conversion() == []
    trained = started(folder, tmp_path / "other", layers=3, encoder=whole[0] / "encoder")
    with pytest.raises(UserError, match=r"^--layers is for encoders as they are published, but .*/encoder is conv"):
        trained.make_encoder(trained.encoder)
    further = stages.from_model(whole[0] / "encoder", 5, updates=7, output=tmp_path / "further")
    assert further.settings.layers is None


def test_a_checkpoint_as_encoder(folder, tmp_path):
    (tmp_path / "best.pt").touch()
    called = []
    with pytest.raises(UserError, match=r"--tokenizer-dir is needed for .*best.pt"):
        started(folder, tmp_path / "out", encoder=tmp_path / "best.pt")
    named = {"encoder": tmp_path / "best.pt", "tokenizer_dir": tmp_path}
    started(folder, tmp_path / "out", lambda *words: called.append(words), **named).make_encoder(tmp_path / "made")
    assert called == [
        ("export", [str(tmp_path / "best.pt"), "--to", str(tmp_path / "made"), "--tokenizer-dir", str(tmp_path)])
    ]


@pytest.mark.parametrize("tokenizer", [False, True])
def test_a_file_of_another_program(folder, tmp_path, tokenizer):
    """It is converted; where its tokenizer is elsewhere, that is told."""
    (tmp_path / "model.gguf").touch()
    named = {"encoder": tmp_path / "model.gguf", **({"tokenizer_dir": tmp_path} if tokenizer else {})}
    called = []
    started(folder, tmp_path / "out", lambda *words: called.append(words), **named).make_encoder(tmp_path / "made")
    further = ["--tokenizer-dir", str(tmp_path)] if tokenizer else []
    assert called == [("convert", [str(tmp_path / "model.gguf"), "--to", str(tmp_path / "made"), *further])]


@pytest.mark.parametrize(("further", "amp"), [([], True), (["--float32"], False)])
def test_float32_of_the_user(folder, tmp_path, further, amp):
    """It replaces ``--amp``, which it would contradict."""
    stages = started(folder, tmp_path, amp="on")
    stages.further = further
    assert ("--amp" in stages.training()) == amp


@pytest.fixture
def finished(whole, tmp_path):
    """A copy of a finished output, and what its files are."""
    output = tmp_path / "out"
    shutil.copytree(whole[0], output, symlinks=True)
    return output


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_more_updates_go_on_from_the_model(folder, finished, capsys):
    """The model stays, and its weights are where the further training begins; the same command finds it done."""
    before = contents(finished)
    stages = started(folder, finished, updates=8)
    stages.run()
    made = finished / "updates-8"
    assert stages.model == made / "model"
    printed = capsys.readouterr().out
    assert (
        f"going on: a restart, with warm-up, from the model of 6 updates for 2 more. {finished}/model stays" in printed
    )
    assert (made / "encoder").resolve() == finished / "model"
    record = json.loads((made / "finetune.json").read_text())
    assert record["settings"]["updates"]["value"] == 2
    assert record["earlier"] == {"updates": 6, "model": str(finished / "model")}
    assert json.loads((made / "model" / "config.json").read_text())["training"]["updates"] == 8
    one, other = (weights(each / "model") for each in (finished, made))
    assert one.keys() == other.keys() and not all(torch.equal(value, other[name]) for name, value in one.items())
    assert {name: text for name, text in contents(finished).items() if name.parts[0] != "updates-8"} == before

    def refuse(name, words):
        raise AssertionError(name)

    again = started(folder, finished, refuse, updates=8)
    again.run()
    assert again.model == stages.model
    started(folder, finished, refuse).run()  # the earlier one is still done, too


@pytest.fixture
def next_stages(monkeypatch, folder):
    """Return the stages that would run for these settings of an output, without running them."""
    ran = []
    monkeypatch.setattr(Finetuning, "run_stages", lambda self: ran.append(self))

    def stages(output, **settings):
        started(folder, output, **settings).run()
        return ran[-1]

    return stages


def test_which_model_is_trained_further(finished, next_stages):
    """The longest that is shorter, and that with which it began before; epochs count, too."""
    given = next_stages(finished, updates=20).settings
    assert (given.encoder, given.updates) == (str(finished / "model"), 14)
    assert (given.max_source, given.max_target, given.lr) == (8, 7, "1e-3")
    (finished / "updates-10" / "model").mkdir(parents=True)
    given = next_stages(finished, updates=20).settings
    assert (given.encoder, given.updates) == (str(finished / "updates-10" / "model"), 10)
    pins = {"encoder": str(finished / "model")}
    (finished / "updates-20").mkdir()
    (finished / "updates-20" / "finetune.settings").write_text(json.dumps(pins))
    assert next_stages(finished, updates=20).settings.updates == 14
    given = next_stages(finished, updates=None, epochs=2).settings  # 48 pairs, 8 an update
    assert (given.updates, given.epochs, given.output) == (2, None, finished / "updates-12")


@pytest.mark.parametrize("settings", [{"updates": 5}, {"updates": None, "epochs": 1}])
def test_fewer_updates_are_refused(folder, finished, settings):
    before = contents(finished)
    with pytest.raises(UserError, match=r"holds a model of 6 updates: .* must make more, but make [56]$"):
        started(folder, finished, **settings).run()
    assert contents(finished) == before


def test_other_settings_are_refused_as_before(folder, finished):
    with pytest.raises(UserError, match=r"other settings.*\n  updates: before 6, now 8\n  lr: before 1e-3, now 2e-3$"):
        started(folder, finished, updates=8, lr="2e-3").run()
    (finished / "finetune.json").write_text("{}")
    with pytest.raises(UserError, match=r"other settings.*\n  updates: before 6, now 8$"):
        started(folder, finished, updates=8).run()


def test_settings_of_the_training_may_change_until_it_begins(folder, finished):
    """Such as a value that only the training finds wrong. Settings of finished stages may not."""
    for name in ("model", "scored.txt"):
        (finished / name).rename(finished / f"no-{name}")
    started(folder, finished, lr="2e-3", noise_symbol="w5").pin_everything()
    pins = json.loads((finished / "finetune.settings").read_text())
    assert (pins["lr"], pins["noise_symbol"]) == ("2e-3", "w5") and not (finished / "plan.json").exists()
    with pytest.raises(UserError, match=r"other settings.*\n  held_out: before 200, now 3$"):
        started(folder, finished, lr="2e-3", noise_symbol="w5", held_out=3).pin_everything()
    (finished / "checkpoints").mkdir()
    (finished / "checkpoints" / "checkpoint_last.pt").touch()
    with pytest.raises(
        UserError, match=r"other settings.*\n  lr: before 2e-3, now 1e-3\n  noise_symbol: before w5, now $"
    ):
        started(folder, finished).pin_everything()


@pytest.mark.parametrize(
    ("named", "further", "problem"),
    [
        ({"lr": "fast"}, [], "--lr must be a number of at least 0, but is fast"),
        ({"lr": -1}, [], "--lr must be a number of at least 0, but is -1"),
        ({"dropout": "2"}, [], "--dropout must be a number from 0 to 1, but is 2"),
        ({"dropout": "1"}, [], "--dropout must be below 1, but is 1"),
        ({"updates": 5, "warmup": 6}, [], "--warmup must be at most --updates (5), but is 6"),
        ({"layout": "--num-roles x"}, [], "argument --num-roles: invalid int value: 'x'"),
        ({}, ["--clip-norm", "x"], "argument --clip-norm: invalid float value: 'x'"),
        ({}, ["--clip-nrm", "2"], "unrecognized arguments: --clip-nrm 2"),
        ({}, ["--clip-norm", "-2"], "--clip-norm must be a number from 0 on, but is -2.0"),
        ({}, ["--learning-rte=1"], "unrecognized arguments: --learning-rte=1"),
        ({}, ["--num-train-epochs", "3"], "there is no option --num-train-epochs (--max-epoch is its name here)"),
        ({}, ["--save-dir", "x"], "--save-dir is set by s2sft finetune: leave it out"),
        ({}, ["--help"], "--help must be left out"),
        ({}, ["--user-dir", "/none"], "--user-dir /none: no such folder"),
    ],
)
def test_a_wrong_value_leaves_no_trace(folder, tmp_path, named, further, problem):
    """All options are checked before the first stage, in Python and on the command line."""
    with pytest.raises(UserError) as error:
        finetune(folder / "encoder", [("a", "b")], output=tmp_path / "out", further=further, **named)
    assert problem in str(error.value)
    options = [f"--{name}={value}" for name, value in named.items()]
    words = ("--encoder", folder / "encoder", "--train", folder / "pairs.tsv", "--output", "out", *options)
    done = call(tmp_path, "finetune", *words, "--", *further)
    assert done.returncode == 2 and problem in done.stderr and "usage" not in done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("named", "problem"),
    [
        ({"further": "--lr 1"}, "further must be a list of texts, such as ['--clip-norm', '1'], but is '--lr 1'"),
        ({"further": None}, "further must be a list of texts"),
        ({"further": ["--clip-norm", 1]}, "further must be a list of texts"),
        ({"amp": True}, "--amp must be one of auto, on, off, but is True"),
        ({"Lr": 1}, "there is no setting Lr (did you mean lr?)"),
    ],
)
def test_arguments_of_a_program(folder, tmp_path, named, problem):
    with pytest.raises(UserError) as error:
        finetune(folder / "encoder", [("a", "b")], output=tmp_path / "out", **named)
    assert problem in str(error.value)


def test_options_of_the_training_are_accepted(folder, tmp_path):
    for further in (["--lr-scheduler", "inverse_sqrt"], ["--float32"], ["--update-freq", "2"], []):
        stages = started(folder, tmp_path)
        stages.further = further
        assert list(stages.training_problems()) == []
