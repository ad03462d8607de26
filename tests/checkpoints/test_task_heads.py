"""Our classifiers and answer-span models compared with the models of `transformers` that load their export."""

import json
from types import SimpleNamespace

import pytest
import torch
from hugging_face import MODELS, our_model, save, segments_of, texts, their_model

from s2sft_fairseq.checkpoints.families import FAMILIES
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.checkpoints.task_heads import FORMATS, TaskHead
from s2sft_fairseq.commands.convert import main as convert
from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.exports.hugging_face import export_to_hugging_face as export
from s2sft_fairseq.models.encoder_with_head import ClassificationHead, EncoderWithHead, SpanHead
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.models.unilm_config import UnilmConfig

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

CLASSES, ANSWERS = FORMATS
LABELS = ["no", "maybe", "yes"]


@pytest.fixture
def trained(tmp_path):
    """Make a model of a task on a converted encoder, with weights that all matter, and its checkpoint."""

    def make(name, task, classes=(), **of_task):
        convert([str(save(name, their_model(name), tmp_path / "saved")), "--to", str(tmp_path / "encoder")])
        encoder = our_model(tmp_path / "encoder")
        width = encoder.cfg.encoder_embed_dim
        head = ClassificationHead(width, len(classes) or 1, dropout=0.0) if task == CLASSES else SpanHead(width)
        model = EncoderWithHead(encoder, head).eval()
        with torch.no_grad():
            for parameter in head.parameters():
                parameter.copy_(0.5 * torch.randn(parameter.shape))
        state = {
            "model": model.state_dict(),
            "cfg": {"model": vars(encoder.cfg), "task": {"_name": task, "source_segments": None, **of_task}},
            "task_state": {"classes": list(classes)},
        }
        torch.save(state, tmp_path / "tuned.pt")
        return model

    return make


@torch.no_grad()
def logits_of(model, tokens, real, segments):
    """Return our logits: (B, C) of a classifier; (B, L, 2) of answer spans, 0 at the padding."""
    positions = torch.arange(tokens.size(1)).expand_as(tokens)[real]
    given, lengths = torch.zeros_like(positions), [(length,) for length in real.sum(dim=1).tolist()]
    packed = model(tokens[real], positions, segments[real], given, given, lengths)
    if isinstance(model.head, ClassificationHead):
        return packed
    rows = packed.new_zeros(*real.shape, 2)
    rows[real] = packed
    return rows


def load_exported(folder, auto_class):
    """Return the model that `transformers` loads from a folder; the folder has exactly the weights that it needs."""
    model, told = auto_class.from_pretrained(folder, output_loading_info=True)
    assert not told["missing_keys"] and not told["unexpected_keys"] and not told["mismatched_keys"]
    return model.eval()


@pytest.mark.parametrize(
    "name", ["bert", "bert-1-segment", "bert-6-segments", "roberta", "xlm-roberta", "mpnet", "deberta"]
)
def test_classes(name, trained, tmp_path, capsys):
    model = trained(name, CLASSES, LABELS)
    export(tmp_path / "tuned.pt", tmp_path / "exported", tmp_path / "encoder")
    theirs = load_exported(tmp_path / "exported", transformers.AutoModelForSequenceClassification)
    kind = MODELS[name][0].replace("MaskedLM", "SequenceClassification")
    assert type(theirs).__name__ == kind
    printed = capsys.readouterr().out
    assert f"exported: {kind}, {len(theirs.state_dict())} tensors" in printed
    assert ("with one </s> between two texts" in printed) == (name == "mpnet" or "roberta" in name)
    config = theirs.config
    assert config.id2label == dict(enumerate(LABELS)) and config.label2id == {"no": 0, "maybe": 1, "yes": 2}
    assert config.problem_type == "single_label_classification"
    tokens, real = texts([19, 30, 7], model.encoder.embeddings.tokens.padding_idx)
    segments = segments_of(real, model.encoder.cfg.num_segments)
    types = {"token_type_ids": segments} if model.encoder.cfg.num_segments else {}
    with torch.no_grad():
        expected = theirs(input_ids=tokens, attention_mask=real.long(), **types).logits
    found = logits_of(model, tokens, real, segments)
    assert found.shape == (3, 3) and found.std() > 0.1
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    # Converting the export gives the same encoder; the head is not part of it.
    convert([str(tmp_path / "exported"), "--to", str(tmp_path / "again")])
    again = load_checkpoint(tmp_path / "again" / "model.pt")["model"]
    assert again.keys() == model.encoder.state_dict().keys()
    assert all(torch.equal(again[key], value) for key, value in model.encoder.state_dict().items())


def test_a_regression(trained, tmp_path):
    model = trained("bert", CLASSES, regression=True)
    export(tmp_path / "tuned.pt", tmp_path / "exported", tmp_path / "encoder")
    theirs = load_exported(tmp_path / "exported", transformers.AutoModelForSequenceClassification)
    assert (theirs.config.num_labels, theirs.config.problem_type) == (1, "regression")
    tokens, real = texts([12, 5], 0)
    segments = torch.zeros_like(tokens)
    with torch.no_grad():
        expected = theirs(input_ids=tokens, attention_mask=real.long()).logits
    torch.testing.assert_close(logits_of(model, tokens, real, segments), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["bert", "roberta", "xlm-roberta", "mpnet", "electra-small-generator", "deberta"])
def test_answers(name, trained, tmp_path):
    model = trained(name, ANSWERS)
    export(tmp_path / "tuned.pt", tmp_path / "exported", tmp_path / "encoder")
    theirs = load_exported(tmp_path / "exported", transformers.AutoModelForQuestionAnswering)
    assert type(theirs).__name__ == MODELS[name][0].replace("MaskedLM", "QuestionAnswering")
    tokens, real = texts([19, 30], model.encoder.embeddings.tokens.padding_idx)
    segments = segments_of(real, model.encoder.cfg.num_segments)
    types = {"token_type_ids": segments} if model.encoder.cfg.num_segments else {}
    with torch.no_grad():
        output = theirs(input_ids=tokens, attention_mask=real.long(), **types)
    found = logits_of(model, tokens, real, segments)
    for part, expected in enumerate((output.start_logits, output.end_logits)):
        torch.testing.assert_close(found[..., part][real], expected[real], atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("name", "task", "reason"),
    [
        ("electra-small-generator", CLASSES, "ELECTRA cannot be exported: ElectraForSequenceClassification has GELU"),
        ("modernbert", CLASSES, "ModernBERT cannot be exported: ModernBertForSequenceClassification has GELU and a"),
        ("modernbert", ANSWERS, "ModernBERT cannot be exported: ModernBertForQuestionAnswering has a dense layer and"),
    ],
)
def test_heads_that_differ_in_transformers(name, task, reason, trained, tmp_path):
    trained(name, task, LABELS if task == CLASSES else ())
    with pytest.raises(UserError, match=f"^{task} with {reason}"):
        export(tmp_path / "tuned.pt", tmp_path / "exported", tmp_path / "encoder")
    assert not (tmp_path / "exported").exists()


def test_a_family_without_such_a_head_is_refused():
    names = {family.name for family in FAMILIES}
    for task, layout in FORMATS.items():
        assert {*layout.modules, *layout.refused} <= names
        for name in ("EuroBERT", "GTE"):
            with pytest.raises(UserError, match=f"^{task} with {name} cannot be exported"):
                TaskHead(task, {}, {}, None).write(name)


def test_segments_that_a_tokenizer_does_not_give_are_reported(trained, tmp_path, capsys):
    trained("bert", CLASSES, LABELS, source_segments="0,0")
    export(tmp_path / "tuned.pt", tmp_path / "exported", tmp_path / "encoder")
    printed = capsys.readouterr().out
    assert "it was trained with --source-segments 0,0: give them as token_type_ids" in printed
    assert "between two texts" not in printed


def test_adapters_are_merged(trained, tmp_path):
    """The encoder includes the adapters; its language model head is left out."""
    trained("bert", CLASSES, LABELS)
    folder = tmp_path / "encoder"
    task = SimpleNamespace(source_dictionary=PretrainedDictionary.load(str(folder / "dict.txt")))
    cfg = UnilmConfig(pretrained=str(folder), lora_rank=2, dropout=0.0)
    encoder = UnilmModel.build_model(cfg, task)
    model = EncoderWithHead(encoder, ClassificationHead(16, 3, dropout=0.0)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape) * parameter.requires_grad
    state = {
        "model": model.state_dict(),
        "cfg": {"model": vars(cfg), "task": {"_name": CLASSES}},
        "task_state": {"classes": LABELS},
    }
    torch.save(state, tmp_path / "adapters.pt")
    export(tmp_path / "adapters.pt", tmp_path / "exported", folder)
    theirs = load_exported(tmp_path / "exported", transformers.AutoModelForSequenceClassification)
    tokens, real = texts([12, 5], 0)
    with torch.no_grad():
        expected = theirs(input_ids=tokens, attention_mask=real.long()).logits
    found = logits_of(model, tokens, real, torch.zeros_like(tokens))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state["cfg"]["task"].update(_name="other"),
         r"tuned\.pt must be a checkpoint of unilm_classification, unilm_question_answering .*, but is one of other$"),
        (lambda state: state["model"].pop("head.dense.bias"),
         r"the head of .*tuned\.pt must hold dense\.bias, dense\.weight, output\.bias, output\.weight, but holds d"),
        (lambda state: state.pop("task_state"), r"tuned\.pt must name 3 classes, .*, but names \[\]$"),
        (lambda state: state["cfg"]["model"].update(relative_position_bins=32),
         "^unilm_classification with UniLM cannot be exported: Hugging Face has no model with a relative .*$"),
        (lambda state: state["cfg"]["task"].update(regression=True), r"must name 3 classes, .*, but names \[\]$"),
    ],
)  # fmt: skip
def test_damaged_heads(change, message, trained, tmp_path):
    trained("bert", CLASSES, LABELS)
    state = load_checkpoint(tmp_path / "tuned.pt")
    change(state)
    torch.save(state, tmp_path / "tuned.pt")
    with pytest.raises(UserError, match=message):
        export(tmp_path / "tuned.pt", tmp_path / "exported", tmp_path / "encoder")
    assert not (tmp_path / "exported").exists()


def test_a_tokenizer_and_the_classes_beside(trained, tmp_path):
    """The folder is complete: `transformers` reads its tokenizer, and config.json names the classes."""
    trained("bert", CLASSES, LABELS)
    export(tmp_path / "tuned.pt", tmp_path / "exported", tmp_path / "encoder")
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")("w5", "w6")["token_type_ids"]
    config = json.loads((tmp_path / "exported" / "config.json").read_text())
    assert config["id2label"] == {"0": "no", "1": "maybe", "2": "yes"}
