"""A training with nothing to begin with is refused, unless random weights are asked for; by every door."""

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch import nn

import s2sft_fairseq.runtime as runtime
from s2sft_fairseq.errors import UserError

REFUSED = r"--pretrained is needed: .*\(last\.pt does not exist\), 6 random weights would be trained; .*--random-init"


def begin(loaded=None, *, random=True, **options):
    """Begin a training whose checkpoint is `loaded`; returns what fairseq's trainer would."""
    model = nn.Linear(2, 2)
    model.has_random_weights = random
    task = SimpleNamespace(may_begin_at_random=options.pop("pretraining", False))
    trainer = SimpleNamespace(get_model=lambda: model, task=task, cfg=SimpleNamespace(model=SimpleNamespace(**options)))
    return runtime.random_start._require_weights(lambda *_: loaded)(trainer, "last.pt")


def test_refuses_random_weights():
    with pytest.raises(UserError, match=REFUSED):
        begin()
    with pytest.raises(UserError, match=REFUSED):
        begin(random_init=False)


def test_random_weights_that_are_asked_for(caplog):
    caplog.set_level("INFO")
    assert begin(random_init=True) is None
    assert begin(pretraining=True) is None
    assert caplog.text.count("the training begins with 6 random weights") == 2


def test_weights_to_begin_with(caplog):
    caplog.set_level("INFO")
    state = {"epoch": 2}
    assert begin(state) is state  # resumed, or of --restore-file and the like
    assert begin(random=False) is None  # --pretrained
    assert not caplog.text


@pytest.fixture
def fairseq_train(run_process):
    """What ``fairseq-train`` with the plugin as ``--user-dir`` prints as it fails."""
    plugin = Path(__file__).resolve().parents[2] / "s2sft_fairseq"

    def run(*words):
        command = Path(sys.executable).with_name("fairseq-train")
        return run_process(command, *words, "--user-dir", plugin, "--task", "unilm_seq2seq", status=1).stderr

    return run


def test_every_door(call_command, tiny_data, tiny_options, fairseq_train, tmp_path):
    words = [word for word in tiny_options.training if word != "--random-init"]
    words = (tiny_data, *words, "--max-update", 1, "--save-dir", tmp_path / "saved")
    error = call_command("train", *words, status=2).stderr
    assert "error: --pretrained is needed" in error and "--random-init" in error and "Traceback" not in error
    assert "error: --pretrained is needed" in fairseq_train(*words)
    model = ("model=unilm", "+model.encoder_layers=1", "+model.encoder_embed_dim=16", "+model.encoder_ffn_embed_dim=32")
    folders = (f"task.data={tiny_data}", f"checkpoint.save_dir={tmp_path}/saved", f"hydra.run.dir={tmp_path}/run")
    hydra = ("task=unilm_seq2seq", *model, "+model.encoder_attention_heads=2", "criterion=mask_attention", *folders)
    options = ("optimizer=adam", "dataset.batch_size=8", "common.cpu=true")
    assert "error: --pretrained is needed" in call_command("hydra-train", *hydra, *options, status=2).stderr
    assert not list(tmp_path.glob("saved/*.pt"))


def test_a_training_that_goes_on_needs_neither(call_command, tiny_data, tiny_options, tmp_path):
    words = (tiny_data, *tiny_options.training, "--save-dir", tmp_path / "saved")
    call_command("train", *words, "--max-update", 1)
    plain = [word for word in words if word != "--random-init"]
    assert "@ 1 updates" in call_command("train", *plain, "--max-update", 2).stdout
    begin = (*plain[:-1], tmp_path / "second", "--max-update", 1)
    last = tmp_path / "saved" / "checkpoint_last.pt"
    call_command("train", *begin, "--finetune-from-model", last)
    call_command("train", *begin[:-4], "--save-dir", tmp_path / "third", "--max-update", 3, "--restore-file", last)
