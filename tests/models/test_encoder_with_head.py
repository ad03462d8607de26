"""What an encoder with a head trains and keeps, and which checkpoints it takes."""

import pytest
import torch
from tiny import tiny_model

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.encoder_with_head import EncoderWithHead
from s2sft_fairseq.modules.task_heads import ClassificationHead


def make(outputs=3, **sizes):
    return EncoderWithHead(tiny_model(**sizes), ClassificationHead(16, outputs, dropout=0.1))


def batch():
    zeros = torch.zeros(5, dtype=torch.long)
    return {
        "tokens": torch.arange(5, 10),
        "positions": torch.tensor([0, 1, 2, 0, 1]),
        **{name: zeros for name in ("segments", "steps", "groups")},
        "lengths": [(3,), (2,)],
    }


@pytest.mark.parametrize("segments", [0, 1])
def test_every_parameter_is_trained(segments):
    model = make(num_segments=segments).train()
    assert not [name for name in model.state_dict() if "lm_head" in name]
    logits = model(**batch())
    assert logits.shape == (2, 3)
    logits.sum().backward()
    assert all(p.grad is not None for p in model.parameters())
    exempt = {name for name, p in model.named_parameters() if getattr(p, "param_group", "") == "no_decay"}
    assert {"head.dense.bias", "head.output.bias", "encoder.layers.0.fc1.bias"} <= exempt
    assert "head.dense.weight" not in exempt
    assert model.max_positions() == 64


def test_checkpoints():
    torch.manual_seed(1)
    one, other = make(), make(seed=5)
    other.load_state_dict(one.state_dict())
    assert torch.equal(one.eval()(**batch()), other.eval()(**batch()))
    with pytest.raises(UserError, match=r"^the checkpoint has no head for this task: to start from a generator"):
        one.load_state_dict(tiny_model().state_dict())
    with pytest.raises(UserError, match=r"output\.weight must have the shape \(3, 16\), but has \(2, 16\)"):
        one.load_state_dict(make(2).state_dict())
    with pytest.raises(UserError, match=r"^the dictionary has 50 symbols, but the checkpoint was made with 60"):
        one.load_state_dict(make(vocab_size=60).state_dict())
