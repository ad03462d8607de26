"""Heads compared with those of `transformers`; trained parameters and checkpoints of an encoder with a head."""

import pytest
import torch
from tiny import tiny_model

from s2sft_fairseq.checkpoints.conversion import read
from s2sft_fairseq.checkpoints.families.bert import BERT
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.convert import parameter_shapes
from s2sft_fairseq.models.encoder_with_head import ClassificationHead, EncoderWithHead, SpanHead
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.models.unilm_config import UnilmConfig, complete_sizes


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


transformers = pytest.importorskip("transformers", reason="transformers is not installed")

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
LENGTHS = [7, 3, 11]


@pytest.fixture
def theirs(request):
    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=50, max_position_embeddings=20, num_labels=request.param[1], **SIZES)
    model = getattr(transformers, request.param[0])(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # far from uniform, also the biases
            parameter.copy_(parameter + 0.3 * torch.randn_like(parameter))
    return model


def with_their_encoder(theirs, head):
    source = {name: value for name, value in theirs.state_dict().items() if name.startswith("bert.")}
    conversion = read(BERT, source, theirs.config.to_dict(), parameter_shapes)
    cfg = UnilmConfig()
    complete_sizes(cfg, conversion.sizes)
    encoder = UnilmModel(cfg, vocab_size=50, pad=0)
    encoder.load_state_dict({**encoder.state_dict(), **conversion.weights})
    return EncoderWithHead(encoder, head).eval()


def copy(ours, theirs):
    ours.load_state_dict(theirs.state_dict())


@torch.no_grad()
def our_logits(model, rows, segments):
    lengths = [len(row) for row in rows]
    given = torch.zeros(sum(lengths), dtype=torch.long)
    positions = torch.cat([torch.arange(length) for length in lengths])
    return model(torch.cat(rows), positions, torch.cat(segments), given, given, [(length,) for length in lengths])


def examples():
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randint(5, 50, (length,), generator=generator) for length in LENGTHS]
    return rows, [(torch.arange(length) > length // 2).long() for length in LENGTHS]


@torch.no_grad()
def their_output(theirs, rows, segments):
    pad = torch.nn.utils.rnn.pad_sequence
    mask = pad([torch.ones_like(row) for row in rows], batch_first=True)
    tokens, types = (pad(columns, batch_first=True) for columns in (rows, segments))
    return theirs(input_ids=tokens, attention_mask=mask, token_type_ids=types)


@pytest.mark.parametrize("theirs", [("BertForSequenceClassification", 3)], indirect=True)
def test_classification(theirs):
    head = ClassificationHead(16, 3, dropout=0.5)
    model = with_their_encoder(theirs, head)
    copy(head.dense, theirs.bert.pooler.dense)
    copy(head.output, theirs.classifier)
    rows, segments = examples()
    found = our_logits(model, rows, segments)
    torch.testing.assert_close(found, their_output(theirs, rows, segments).logits, atol=1e-5, rtol=1e-5)
    alone = [our_logits(model, [row], [segment]) for row, segment in zip(rows, segments, strict=True)]
    torch.testing.assert_close(torch.cat(alone), found, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("theirs", [("BertForQuestionAnswering", 2)], indirect=True)
def test_spans(theirs):
    head = SpanHead(16)
    model = with_their_encoder(theirs, head)
    copy(head.output, theirs.qa_outputs)
    rows, segments = examples()
    found = our_logits(model, rows, segments)
    output = their_output(theirs, rows, segments)
    expected = torch.stack([output.start_logits, output.end_logits], dim=-1)
    for row, ours, real in zip(expected, found.split(LENGTHS), LENGTHS, strict=True):
        torch.testing.assert_close(ours, row[:real], atol=1e-5, rtol=1e-5)
    alone = [our_logits(model, [row], [segment]) for row, segment in zip(rows, segments, strict=True)]
    torch.testing.assert_close(torch.cat(alone), found, atol=1e-5, rtol=1e-5)
