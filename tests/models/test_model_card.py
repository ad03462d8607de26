"""Model cards: the metadata that a model's page shows."""

import yaml

from s2sft_fairseq.models.model_card import model_card

CONFIG = {
    "cfg": {"model": {"_name": "unilm", "encoder_layers": 6}, "task": {"_name": "unilm_seq2seq"}},
    "task_state": {"layout": {"finetune_method": "causal"}},
    "package_version": "1",
    "search": {"beam": 3},
}


def test_names_of_encoders_are_quoted():
    """A colon or a hash has a meaning in YAML."""
    for encoder in ("bert: base #1", "a/b", '"x"'):
        front = model_card({**CONFIG, "training": {"encoder": encoder}}, 5).split("---")[1]
        assert yaml.safe_load(front)["base_model"] == encoder
    assert "base_model" not in model_card({**CONFIG, "training": {}}, 5)
