"""Model folders by the command lines: every command accepts one in place of the checkpoint that it was made from."""

import json
from unittest.mock import Mock

import pytest
import torch
from command_output import last_value

from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.checksums import write_checksums

pytest.importorskip("safetensors", reason="is what a model folder holds")

LINES = ("a b c d", "d e f g h", "", "h h", "zebra . d")


def generate(call_command, tmp_path, *words):
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in LINES))
    files = ("--input", "in.txt", "--output", "out.jsonl", "--overwrite")
    call_command("generate", *words, *files, "--cpu", "--beam", 3, "--nbest", 2)
    return (tmp_path / "out.jsonl").read_text()


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


@pytest.mark.parametrize("method", ["causal", "masked", "pseudo_masked", "infilling"])
def test_every_command_accepts_it(trained, toy, call_command, tmp_path, method):
    """It generates bit for bit the same, without a separate tokenizer; it can be validated, and trained further."""
    best = trained(method).best
    told = call_command("export", best, "--tokenizer-dir", toy.folder, "--to", "model").stdout
    assert "wrote model" in told
    names = {"model.safetensors", "config.json", "dict.txt", "README.md", "SHA256SUMS", "vocab.txt"}
    assert {path.name for path in (tmp_path / "model").iterdir()} == names
    expected = generate(call_command, tmp_path, "--path", best, "--tokenizer-dir", toy.folder)
    assert generate(call_command, tmp_path, "--path", "model") == expected
    one, other = (
        call_command("validate", toy.data, "--path", path, "--cpu", "--batch-size", 8).stdout
        for path in (best, "model")
    )
    assert last_value(one, "loss", "valid on 'valid'") == last_value(other, "loss", "valid on 'valid'")
    further = ("--finetune-method", method, *toy.layout, "--lr", "0", "--max-update", 1, "--no-epoch-checkpoints")
    call_command("train", toy.data, "--pretrained", "model", *further, "--cpu", "--save-dir", "on")
    again = load_checkpoint(tmp_path / "on" / "checkpoint_last.pt")["model"]
    assert_same(again, load_checkpoint(best)["model"])
    # The training writes a model folder too, with the tokenizer of the one from which it started.
    assert_same(load_checkpoint(tmp_path / "on" / "model")["model"], again)
    assert (tmp_path / "on" / "model" / "vocab.txt").is_file()


def test_round_trip(trained, toy, call_command, tmp_path):
    """It has the checkpoint's weights, options and layout, without paths of the machine."""
    best = trained("pseudo_masked").best
    call_command("export", best, "--tokenizer-dir", toy.folder, "--to", "model")
    call_command("export", "model", "--to", "again")
    saved = load_checkpoint(best)
    for name in ("model", "again"):
        state = load_checkpoint(tmp_path / name)
        assert_same(state["model"], saved["model"])
        assert state["task_state"] == saved["task_state"]
        assert state["cfg"]["model"] == {**saved["cfg"]["model"], "pretrained": None}
        assert state["cfg"]["task"] == {**saved["cfg"]["task"], "data": ""}
        assert state["cfg"]["criterion"] == saved["cfg"]["criterion"]
    for name in ("model.safetensors", "config.json", "dict.txt"):
        one, other = ((tmp_path / folder / name).read_bytes() for folder in ("model", "again"))
        assert one == other or name == "config.json"
    card = (tmp_path / "model" / "README.md").read_text()
    assert "| method | pseudo_masked |" in card and "| longest source and target | 24 and 12 positions |" in card
    assert "Seq2Seq.from_pretrained" in card and str(toy.folder) not in (tmp_path / "model" / "config.json").read_text()


def test_search_of_a_folder(trained, toy, call_command, tmp_path):
    """Its own options apply unless the command line sets them."""
    call_command("export", trained("causal").best, "--tokenizer-dir", toy.folder, "--to", "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    config["search"] = {"beam": 2, "length_penalty": "gnmt", "lenpen": 0.5, "keep_unfinished": True}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    (tmp_path / "in.txt").write_text("a b\n")
    words = ("--input", "in.txt", "--output", "none.txt", "--cpu")
    done = call_command("generate", "--path", "model", *words, status=2)
    assert "model/config.json" in done.stderr and "s2sft doctor --accept model" in done.stderr
    call_command("doctor", "--accept", "model")
    expected = generate(
        *(call_command, tmp_path, "--path", trained("causal").best, "--tokenizer-dir", toy.folder),
        *("--length-penalty", "gnmt", "--lenpen", 0.5, "--keep-unfinished"),
    )
    assert generate(call_command, tmp_path, "--path", "model") == expected
    done = call_command("generate", toy.data, "--path", "model", "--cpu", "--lenpen", 1)
    assert "--beam=2 --length-penalty=gnmt --keep-unfinished" in done.stderr + done.stdout


@pytest.mark.parametrize(
    ("search", "named"),
    [
        ({"user_dir": "plug"}, "search.user_dir is no option of a search"),
        ({"no_repeat_ngram_ignore": "--user-dir=plug", "no_repeat_ngram_size": 2}, "--no-repeat-ngram-ignore must"),
    ],
)
def test_the_search_of_a_folder_runs_no_code(trained, toy, call_command, tmp_path, search, named):
    """A folder can come from anywhere, and --user-dir names code to import."""
    (tmp_path / "plug").mkdir()
    (tmp_path / "plug" / "__init__.py").write_text("import pathlib\npathlib.Path('ran').touch()\n")
    call_command("export", trained("causal").best, "--tokenizer-dir", toy.folder, "--to", "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, "search": search}))
    write_checksums(tmp_path / "model")
    (tmp_path / "in.txt").write_text("a b\n")
    files = ("--input", "in.txt", "--output", "out.txt", "--cpu")
    assert named in call_command("generate", "--path", "model", *files, status=2).stderr
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("option", ["--finetune-from-model", "--restore-file"])
def test_a_training_starts_from_a_folder(trained, toy, call_command, tmp_path, option):
    best = trained("causal").best
    call_command("export", best, "--tokenizer-dir", toy.folder, "--to", "model")
    options = (*toy.training, "--finetune-method", "causal", "--lr", "0", "--max-update", 1, "--no-model-folder")
    call_command("train", toy.data, *options, option, "model", "--save-dir", "on")
    assert_same(load_checkpoint(tmp_path / "on" / "checkpoint_last.pt")["model"], load_checkpoint(best)["model"])


def test_a_resumed_training_updates_the_folder(toy, call_command, tmp_path):
    """The folder has the last best checkpoint; without --pretrained, the tokenizer comes from the previous folder."""
    options = (*toy.training, "--finetune-method", "causal", "--save-dir", "saved", "--validate-interval-updates", 1)
    call_command("train", toy.data, *options, "--max-update", 1, "--no-model-folder")
    assert not (tmp_path / "saved" / "model").exists()
    done = call_command("train", toy.data, *options, "--max-update", 2)
    assert "saved/model is not written" in done.stdout and "--tokenizer-dir DIR" in done.stdout
    call_command("export", "saved/checkpoint_last.pt", "--tokenizer-dir", toy.folder, "--to", "saved/model")
    call_command("train", toy.data, *options, "--max-update", 4)
    saved, state = (load_checkpoint(tmp_path / "saved" / name) for name in ("checkpoint_best.pt", "model"))
    assert_same(state["model"], saved["model"])
    config = json.loads((tmp_path / "saved" / "model" / "config.json").read_text())
    assert config["training"]["updates"] == saved["optimizer_history"][-1]["num_updates"]


def test_files_of_the_user_are_kept(toy, call_command, tmp_path):
    options = (*toy.training, "--finetune-method", "causal", "--save-dir", "saved")
    call_command("train", toy.data, *options, "--max-update", 1)
    call_command("export", "saved/checkpoint_last.pt", "--tokenizer-dir", toy.folder, "--to", "saved/model")
    (tmp_path / "saved" / "model" / "NOTES.txt").write_text("mine")
    error = call_command("train", toy.data, *options, "--max-update", 2, status=2).stderr
    assert "saved/model could not be written" in error and "holds NOTES.txt" in error
    assert (tmp_path / "saved" / "model" / "NOTES.txt").read_text() == "mine"


@pytest.mark.parametrize("full", [OSError(28, "No space left on device"), RuntimeError("No space left")])
def test_a_disk_that_is_full_at_the_end(toy, call_command, tmp_path, monkeypatch, full):
    """The training is saved, the previous folder is unchanged, and the status says that the new one is missing."""
    options = (*toy.training, "--finetune-method", "causal", "--save-dir", "saved")
    call_command("train", toy.data, *options, "--max-update", 1)
    call_command("export", "saved/checkpoint_last.pt", "--tokenizer-dir", toy.folder, "--to", "saved/model")
    before = {path.name: path.read_bytes() for path in (tmp_path / "saved" / "model").iterdir()}
    monkeypatch.setattr("s2sft_fairseq.models.model_folder.write_model", Mock(side_effect=full))
    done = call_command("train", toy.data, *options, "--max-update", 2, status=2)
    (told,) = [line for line in done.stderr.splitlines() if "saved/model could not be written" in line]
    assert "No space left" in told and "the training is complete" in told and "Traceback" not in done.stderr
    assert {path.name: path.read_bytes() for path in (tmp_path / "saved" / "model").iterdir()} == before
    assert load_checkpoint(tmp_path / "saved" / "checkpoint_last.pt")["optimizer_history"][-1]["num_updates"] == 2


def test_what_cannot_be_exported(trained, toy, call_command, tmp_path):
    best = trained("causal").best
    error = call_command("export", best, "--to", "model", status=2).stderr
    assert f"--tokenizer-dir is needed for {best}" in error
    (tmp_path / "short").mkdir()
    (tmp_path / "short" / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n")
    error = call_command("export", best, "--tokenizer-dir", "short", "--to", "model", status=2).stderr
    assert "short has 5 symbols" in error and "was trained with 59" in error
    symbols = (toy.folder / "vocab.txt").read_text().splitlines()
    (tmp_path / "turned").mkdir()
    (tmp_path / "turned" / "vocab.txt").write_text("".join(f"{symbol}\n" for symbol in (*symbols[:-2], ",", ".")))
    error = call_command("export", best, "--tokenizer-dir", "turned", "--to", "model", status=2).stderr
    assert "turned has other symbols than" in error and "in another order" in error
    torch.save({"model": {}}, tmp_path / "other.pt")
    error = call_command("export", "other.pt", "--tokenizer-dir", "short", "--to", "model", status=2).stderr
    assert "other.pt must be a checkpoint of s2sft train" in error
    torch.save({"model": {"w": torch.ones(1)}, "cfg": {"model": {}, "task": {}}}, tmp_path / "other.pt")
    error = call_command("export", "other.pt", "--tokenizer-dir", "short", "--to", "model", status=2).stderr
    assert "other.pt must be a checkpoint of a model of this plugin" in error
    assert not (tmp_path / "model").exists()
