"""``fairseq-hydra-train``, configured by Hydra instead of options."""

import sys
from pathlib import Path

from command_output import generated, last_value

import s2sft_fairseq
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint

MODEL = {
    "random_init": True,
    "encoder_layers": 1,
    "encoder_embed_dim": 16,
    "encoder_ffn_embed_dim": 32,
    "max_positions": 64,
}
SETTINGS = (
    *("optimization.lr=[0.001]", "optimization.max_update=2", "dataset.batch_size=8", "dataset.num_workers=0"),
    *("common.cpu=true", "checkpoint.save_dir=saved"),
)


def settings(toy, prefix=""):
    task = {"data": toy.data, "max_source_positions": 24, "max_target_positions": 12, "finetune_method": "causal"}
    model = {"encoder_attention_heads": 2, **MODEL}
    return [
        *(f"{prefix}task.{name}={value}" for name, value in task.items()),
        *(f"{prefix}model.{name}={value}" for name, value in model.items()),
        *SETTINGS,
    ]


def check(saved, toy, call_command):
    state = load_checkpoint(saved / "checkpoint_last.pt")
    assert state["optimizer_history"][-1]["num_updates"] == 2
    assert MODEL.items() <= state["cfg"]["model"].items()
    assert state["task_state"]["layout"]["finetune_method"] == "causal"
    done = call_command("generate", toy.data, "--path", saved / "checkpoint_last.pt", "--cpu")
    assert sorted(generated(done.stdout)) == list(range(5))
    done = call_command("validate", toy.data, "--path", saved / "checkpoint_last.pt", "--cpu", "--batch-size", "8")
    assert last_value(done.stdout, "loss", "valid on 'valid' subset") > 0


def test_fairseq_hydra_train(run_process, toy, call_command, tmp_path):
    # Hydra composes groups before the plugin is imported, so the plugin's parts are named explicitly.
    names = ("+task._name=unilm_seq2seq", "+model._name=unilm")
    names += ("criterion._name=mask_attention", "+optimizer._name=adam")
    command = Path(sys.executable).with_name("fairseq-hydra-train")
    plugin = f"common.user_dir={Path(s2sft_fairseq.__file__).parent}"
    run_process(command, *names, *settings(toy, "+"), plugin)
    check(tmp_path / "saved", toy, call_command)


def test_a_mistake_in_an_override(call_command):
    done = call_command("hydra-train", "+criterion._name=mask_attention", status=2)
    assert "error: Could not append to config. An item is already at 'criterion._name'." in done.stderr
    assert "Traceback" not in done.stderr
