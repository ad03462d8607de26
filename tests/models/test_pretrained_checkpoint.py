"""A checkpoint in ``--pretrained``: the settings that it gives, for every kind of training, and what is refused."""

from types import SimpleNamespace

import pytest
import torch
from tiny import CLS, TINY_SIZES, VOCAB_SIZE, tiny_dictionary, tiny_model

from s2sft_fairseq.checkpoints.conversion import Conversion
from s2sft_fairseq.checkpoints.pretrained import write_pretrained
from s2sft_fairseq.data.dictionary import symbols_fingerprint
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.deltalm_start import open_start
from s2sft_fairseq.models.encoder_with_head import ClassificationHead, EncoderWithHead
from s2sft_fairseq.models.pretrained_checkpoint import open_pretrained
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.models.unilm_config import SIZES, UnilmConfig

TASK = SimpleNamespace(source_dictionary=tiny_dictionary(), target_dictionary=tiny_dictionary())
SYMBOLS = symbols_fingerprint(TASK.source_dictionary.symbols)


def save(path, model, task=None, state=None, **options):
    """Write what fairseq saves of a training."""
    cfg = model.cfg if hasattr(model, "cfg") else model.encoder.cfg
    settled = {name: getattr(cfg, name) for name in ("pretrained", "lora_rank", "lora_alpha", *SIZES)}
    cfg = {"model": {"_name": "unilm", **settled, **options}, "task": task or {"_name": "unilm_pretraining"}}
    torch.save({"cfg": cfg, "model": model.state_dict(), "task_state": state or {"symbols": SYMBOLS}}, path)
    return path


def begin(path, **options):
    """Build a model from the checkpoint in ``--pretrained``."""
    return UnilmModel.build_model(UnilmConfig(pretrained=str(path), **options), TASK)


def same(one, other, *, but=()):
    first, second = one.state_dict(), other.state_dict()
    assert first.keys() == second.keys()
    return {name for name in first if not torch.equal(first[name], second[name])} == set(but)


@pytest.mark.parametrize("kind", [{}, {"relative_position_bins": 8, "max_relative_position": 16}, {"num_segments": 4}])
def test_a_checkpoint_of_pre_training(tmp_path, kind):
    """Its sizes, kind and head are used; nothing is initialized again, and no folder is needed afterwards."""
    trained = tiny_model(1, **kind)
    model = begin(save(tmp_path / "best.pt", trained))
    assert same(model, trained) and not model.has_random_weights
    assert {name: getattr(model.cfg, name) for name in {**TINY_SIZES, **kind}} == {**TINY_SIZES, **kind}
    assert model.cfg.pretrained is None


def test_sizes_that_contradict_it(tmp_path):
    with pytest.raises(UserError, match="--encoder-layers is 3, but the pretrained encoder has 2"):
        begin(save(tmp_path / "best.pt", tiny_model(1)), encoder_layers=3)


@pytest.mark.parametrize(
    ("task", "state", "layout"),
    [
        ({"_name": "ernie_gen_pretraining", "target_segment": 3}, {}, {"target_segment": 3}),
        ({"_name": "unilm_pretraining", "target_segment": 3, "placeholder": "w7"}, {}, {"placeholder": "w7"}),
        (
            {"_name": "unilm_seq2seq"},
            {"layout": {"finetune_method": "causal", "source_segments": "0,1", "max_source_positions": 9}},
            {"source_segments": "0,1"},
        ),
        ({"_name": "unilm_classification"}, {"classes": ["a", "b"]}, {}),
    ],
    ids=["ernie-gen", "unilm", "fine-tuned", "classified"],
)
def test_the_layout_that_its_weights_learned(tmp_path, task, state, layout):
    """The next training decides about the length of texts and the way of prediction."""
    assert open_pretrained(save(tmp_path / "best.pt", tiny_model(1), task, state)).layout == layout


def test_a_classifier(tmp_path):
    """Its encoder is used, its head is left out, and a language model head is initialized."""
    trained = tiny_model(1)
    head = {name for name in trained.state_dict() if name.startswith("lm_head.")}
    path = save(tmp_path / "best.pt", EncoderWithHead(tiny_model(1), ClassificationHead(16, 2, dropout=0.0)))
    assert open_pretrained(path).newly_initialized == sorted(head)
    assert same(begin(path), trained, but=head)


def test_adapters_are_merged_and_can_be_added(tmp_path):
    base = save(tmp_path / "base.pt", tiny_model(1))
    adapted = begin(base, lora_rank=2, dropout=0.0, attention_dropout=0.0)
    assert adapted.cfg.pretrained == str(base)
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora" in name:
                parameter.copy_(torch.randn(parameter.shape))
    model = begin(save(tmp_path / "adapters.pt", adapted), dropout=0.0, attention_dropout=0.0)
    assert model.cfg.lora_rank == 0
    inputs = {
        "tokens": torch.tensor([CLS, 7, 8]),
        "positions": torch.arange(3),
        **{name: torch.zeros(3, dtype=torch.long) for name in ("segments", "steps", "groups")},
        "lengths": [(3,)],
    }
    assert torch.allclose(model(**inputs), adapted(**inputs), atol=1e-4)
    assert not torch.allclose(begin(base, dropout=0.0, attention_dropout=0.0)(**inputs), adapted(**inputs), atol=1e-2)


def test_the_model_file_of_a_folder_means_the_folder(tmp_path):
    trained = tiny_model(1)
    sizes = {name: getattr(trained.cfg, name) for name in SIZES}
    write_pretrained(tmp_path / "encoder", Conversion("BERT", trained.state_dict(), sizes, {"target_segment": 1}))
    TASK.source_dictionary.save(str(tmp_path / "encoder" / "dict.txt"))
    found = open_pretrained(tmp_path / "encoder" / "model.pt")
    assert (found.path, found.layout) == (tmp_path / "encoder", {"target_segment": 1})
    assert same(begin(tmp_path / "encoder" / "model.pt"), trained)


def test_a_dictionary_of_other_symbols(tmp_path):
    """Other symbols of the same number would be confused; another number shows in the weights."""
    path = save(tmp_path / "best.pt", tiny_model(1), state={"symbols": symbols_fingerprint(["x"])})
    with pytest.raises(UserError, match=r"--pretrained .*best\.pt was trained with other symbols than"):
        begin(path)
    path = save(tmp_path / "best.pt", tiny_model(1, vocab_size=VOCAB_SIZE - 1))
    with pytest.raises(UserError, match="the dictionary has 50 symbols, but the checkpoint was made with 49"):
        begin(path)
    begin(save(tmp_path / "old.pt", tiny_model(1), state={"layout": {}}))  # it does not store its symbols


def test_checkpoints_that_are_refused(tmp_path):
    torch.save({"cfg": {"model": {"_name": "deltalm"}}, "model": {"encoder.x": torch.ones(1)}}, tmp_path / "other.pt")
    with pytest.raises(UserError, match=r"other\.pt must be a checkpoint of a unilm model, but is one of deltalm"):
        begin(tmp_path / "other.pt")
    torch.save({"weights": {}}, tmp_path / "other.pt")
    with pytest.raises(UserError, match="but is one of another program"):
        begin(tmp_path / "other.pt")
    path = save(tmp_path / "bad.pt", tiny_model(1), encoder_layers="2", activation_fn=3, layer_norm_eps=True)
    with pytest.raises(UserError) as error:
        begin(path)
    assert f"{path}: 3 problems" in str(error.value)
    assert error.value.problems[0] == "--encoder-layers must be a whole number, but is '2'"
    assert {problem.split()[0] for problem in error.value.problems[1:]} == {"--activation-fn", "--layer-norm-eps"}
    (tmp_path / "bad.pt").write_bytes(path.read_bytes()[:500])
    with pytest.raises(UserError, match=r"bad\.pt \(500 bytes\): not a PyTorch checkpoint"):
        begin(tmp_path / "bad.pt")
    with pytest.raises(UserError, match=r"--pretrained .*nothing\.pt must be a folder written by 's2sft convert'"):
        begin(tmp_path / "nothing.pt")


def test_deltalm_starts_from_it_too(tmp_path):
    trained = tiny_model(1, encoder_layers=4, layer_norm_eps=1e-5)
    path = save(tmp_path / "best.pt", trained)
    start = open_start(str(path), TASK.source_dictionary)
    assert start.is_encoder and start.known["encoder_layers"] == 4
    assert torch.equal(start.weights["embed_tokens.weight"], trained.embeddings.tokens.weight)
    path = save(path, trained, state={"symbols": symbols_fingerprint(["x"])})
    with pytest.raises(UserError, match="was trained with other symbols"):
        open_start(str(path), TASK.source_dictionary)
