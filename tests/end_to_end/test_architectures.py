"""Named architectures that are not BERT's, made small by options: training, resuming and generation."""

import pytest
from command_output import generated, last_value

from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint

# Everything else is as the architecture sets it.
SMALL = {
    "electra_small": ("--embedding-dim", "8"),
    "modernbert_base": ("--encoder-layers", "3", "--local-attention-window", "6"),
}
KEPT = {
    "electra_small": {"embedding_dim": 8, "layer_norm_position": "post", "num_segments": 2},
    "modernbert_base": {"layer_norm_position": "pre", "feed_forward": "gated", "biases": "none", "num_segments": 0},
}


@pytest.mark.parametrize("arch", list(SMALL))
@pytest.mark.parametrize("method", ["causal", "pseudo_masked"])
def test_trains_and_generates(tiny_data, tiny_options, call_command, tmp_path, arch, method):
    options = (*tiny_options.training, "--arch", arch, *SMALL[arch], "--optimizer", "fused_adamw")
    options = (*options, "--finetune-method", method, "--save-dir", "saved")
    first = call_command("train", tiny_data, *options, "--max-update", "2").stdout
    further = call_command("train", tiny_data, *options, "--max-update", "40").stdout
    assert "(epoch 1 @ 2 updates)" in further
    assert last_value(further, "loss", "valid on 'valid' subset") < last_value(first, "loss", "valid on 'valid' subset")
    cfg = load_checkpoint(tmp_path / "saved" / "checkpoint_last.pt")["cfg"]["model"]
    assert {name: str(cfg[name]) for name in KEPT[arch]} == {name: str(value) for name, value in KEPT[arch].items()}
    done = call_command(
        "generate", tiny_data, "--path", "saved/checkpoint_last.pt", "--cpu", "--beam", "3", "--min-len", 3
    )
    assert all(len(text.split()) >= 3 for (text,) in generated(done.stdout).values())
    assert len(generated(done.stdout)) == 10
