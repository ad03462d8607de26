"""A checkpoint runs no code, neither from its pickle nor through its configuration."""

import logging
import os
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fairseq import checkpoint_utils
from tiny import TINY_SIZES
from tokenizer_folders import write_wordpiece

import s2sft_fairseq
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.runtime import checkpoints
from s2sft_fairseq.tasks import prediction


@pytest.fixture
def attack(tmp_path, tiny_corpus):
    """A folder of data, ``save(**state)`` for checkpoints, and `code`, an expression that makes the file `marker`."""
    data = tmp_path / "data"
    write_wordpiece(data)
    for name in ("dict.txt", "dict.src.txt", "dict.tgt.txt"):
        (data / name).write_text((tiny_corpus / "dict.txt").read_text())
    (tmp_path / "in.txt").write_text("a b c\n")
    marker = tmp_path / "attacked"

    def save(name="evil.pt", **entries):
        state = {
            "args": None,
            "cfg": {},
            "model": {},
            "optimizer_history": [{"optimizer_name": "FairseqAdam", "lr_scheduler_state": {}, "num_updates": 1}],
            "extra_state": {"train_iterator": {"epoch": 1}},
            "task_state": {},
            **entries,
        }
        torch.save(state, tmp_path / name)
        return str(tmp_path / name)

    code = f"__import__('pathlib').Path({str(marker)!r}).touch() or [(16, 3)]"
    return SimpleNamespace(data=data, save=save, marker=marker, code=code, task=own_task(data))


def own_task(data):
    limits = {"max_source_positions": 24, "max_target_positions": 16}
    languages = {"source_lang": "src", "target_lang": "tgt"}
    return {"_name": "unilm_seq2seq", "data": str(data), "finetune_method": "causal", **languages, **limits}


TRANSFORMER = {"encoder_embed_dim": 16, "decoder_embed_dim": 16, "encoder_layers": 1, "decoder_layers": 1}
TRANSLATION = {"_name": "translation", "source_lang": "src", "target_lang": "tgt"}

# Configurations with {code} that fairseq would evaluate or use to build something else, and the expected error.
CONFIGS = {
    "fconv": (
        {"model": {"_name": "fconv", "encoder_layers": "{code}"}},
        r"cfg\.model\._name is 'fconv'.*transformer_lm",
    ),
    "fconv by its arch": (
        {"model": Namespace(arch="fconv_iwslt_de_en", encoder_layers="{code}")},
        r"cfg\.model\.arch is 'fconv_iwslt_de_en'",
    ),
    "fconv by the name of a section": (
        {"model": {"fconv": {"encoder_layers": "{code}"}}},
        r"cfg\.model must name .*fconv",
    ),
    "fconv_lm": ({"model": {"_name": "fconv_lm", "decoder_layers": "{code}"}}, r"cfg\.model\._name is 'fconv_lm'"),
    "fconv_self_att": (
        {"model": {"_name": "fconv_self_att", "pretrained": "{code}"}},
        r"cfg\.model\._name is 'fconv_self_att'",
    ),
    "wav2vec2": ({"model": {"_name": "wav2vec2", "conv_feature_layers": "{code}"}}, r"cfg\.model\._name is 'wav2vec2'"),
    "hubert": ({"model": {"_name": "hubert", "conv_feature_layers": "{code}"}}, r"cfg\.model\._name is 'hubert'"),
    "two names": ({"model": {"_name": "unilm", "arch": "fconv"}}, r"cfg\.model\.arch is 'fconv'"),
    "a name that is no text": ({"model": {"_name": ["fconv"]}}, r"cfg\.model\._name is \['fconv'\]"),
    "transformer": (
        {"model": {"_name": "transformer", **TRANSFORMER, "adaptive_softmax_cutoff": "{code}"}, "task": TRANSLATION},
        r"cfg\.model\.adaptive_softmax_cutoff is \"__import__.*not Python code",
    ),
    "transformer by its arch": (
        {"model": Namespace(arch="transformer_tiny", adaptive_softmax_cutoff="{code}"), "task": TRANSLATION},
        r"cfg\.model\.adaptive_softmax_cutoff is \"__import__",
    ),
    "after white space": (
        {
            "model": {"_name": "transformer", **TRANSFORMER, "adaptive_softmax_cutoff": " \t {code}"},
            "task": TRANSLATION,
        },
        r"cfg\.model\.adaptive_softmax_cutoff is .*__import__",
    ),
    "transformer's attention": (
        {"model": {"_name": "transformer", **TRANSFORMER, "encoder": {"xformers_att_config": "{code}"}}},
        r"cfg\.model\.encoder\.xformers_att_config is \"__import__",
    ),
    "transformer_lm": (
        {"model": {"_name": "transformer_lm", "character_filters": "{code}", "character_embeddings": True}},
        r"cfg\.model\.character_filters is \"__import__",
    ),
    "deltalm": (
        {"model": {"_name": "deltalm", "adaptive_softmax_cutoff": "{code}"}},
        r"cfg\.model\.adaptive_softmax_cutoff is \"__import__",
    ),
    "put together from parts": (
        {
            "model": {"_name": "deltalm", "adaptive_softmax_cutoff": "${common.a}${common.b}"},
            "common": {"a": "f", "b": "()"},
        },
        r"cfg\.model\.adaptive_softmax_cutoff is '\$\{common\.a\}\$\{common\.b\}'",
    ),
    "put together in a path": (
        {"model": {"_name": "unilm", "pretrained": "${oc.env:HOME}"}},
        r"cfg\.model\.pretrained is ",
    ),
    "a list": ({"model": {"_name": "unilm", "layers": [1, "{code}"]}}, r"cfg\.model\.layers\[1\] is \"__import__"),
    "multilingual_translation": (
        {"task": {"_name": "multilingual_translation", "left_pad_source": "{code}"}},
        r"cfg\.task\._name is 'multilingual_translation'.*language_modeling",
    ),
    "a task by its old name": (
        {"task": {"_name": "translation", "task": "multilingual_translation", "left_pad_source": "{code}"}},
        r"cfg\.task\.task is 'multilingual_translation'",
    ),
    "a program after saving": (
        {"task": {"_name": "audio_pretraining", "post_save_script": "touch {marker}"}},
        r"cfg\.task\._name is 'audio_pretraining'",
    ),
    "ctc": ({"criterion": {"_name": "ctc", "wer_args": "{code}"}}, r"cfg\.criterion\._name is 'ctc'.*cross_entropy"),
    "ctc by its name alone": ({"criterion": "ctc"}, r"cfg\.criterion is 'ctc'"),
    "bpe": ({"bpe": {"_name": "evil", "code": "{code}"}}, r"cfg\.bpe\._name is 'evil'.*subword_nmt"),
    "tokenizer": ({"tokenizer": {"_name": "evil"}}, r"cfg\.tokenizer\._name is 'evil'.*moses"),
    "an option of a bpe": (
        {"bpe": {"_name": "sentencepiece", "sentencepiece_model": "{code}"}},
        r"cfg\.bpe\.sentencepiece_model is \"__import__",
    ),
    "an optimizer": (
        {"optimizer": {"_name": "adam", "adam_betas": "{code}"}},
        r"cfg\.optimizer\.adam_betas is \"__import__",
    ),
    "bytes": (
        {"model": {"_name": "unilm", "activation_fn": b"f()"}},
        r"cfg\.model\.activation_fn must be .* is a bytes",
    ),
}


def filled(value, attack):
    """Return a configuration with the code of an attack."""
    if isinstance(value, str):
        return value.replace("{code}", attack.code).replace("{marker}", str(attack.marker))
    if isinstance(value, list):
        return [filled(inner, attack) for inner in value]
    if isinstance(value, Namespace):
        return Namespace(**filled(vars(value), attack))
    return {name: filled(inner, attack) for name, inner in value.items()} if isinstance(value, dict) else value


@pytest.mark.parametrize("name", CONFIGS)
def test_configurations_that_would_run_code(attack, name):
    config, message = CONFIGS[name]
    config = {"model": {"_name": "unilm", **TINY_SIZES}, "task": attack.task, **filled(config, attack)}
    if config["task"]["_name"] == "translation":
        config["task"] = {**config["task"], "data": str(attack.data)}
    path = attack.save(cfg=config)
    with pytest.raises(UserError, match=rf"(?s)evil\.pt: {message}"):
        checkpoint_utils.load_model_ensemble_and_task([path])
    assert not attack.marker.exists()


def test_all_problems_are_reported_at_once(attack):
    path = attack.save(cfg={"model": {"_name": "fconv", "encoder_layers": attack.code}, "criterion": {"_name": "ctc"}})
    with pytest.raises(UserError) as error:
        checkpoint_utils.load_checkpoint_to_cpu(path)
    fields = ("cfg.model._name", "cfg.model.encoder_layers", "cfg.criterion._name")
    assert all(f"evil.pt: {field} is" in str(error.value) for field in fields)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"args": Namespace(arch="fconv", task="translation", encoder_layers="1")}, r"args\.arch is 'fconv'"),
        ({"args": Namespace(arch="transformer", task="translation", criterion="ctc")}, r"args\.criterion is 'ctc'"),
        (
            {"args": Namespace(arch="transformer", adaptive_softmax_cutoff="f()")},
            r"args\.adaptive_softmax_cutoff is 'f\(",
        ),
        ({"args": {"arch": "transformer"}}, r"args must be a Namespace, but is a dict"),
        ({"cfg": "model: {_name: fconv}"}, r"cfg must be a dict, but is a str"),
    ],
)
def test_other_forms_of_a_configuration(attack, entries, message):
    with pytest.raises(UserError, match=rf"evil\.pt: {message}"):
        checkpoint_utils.load_model_ensemble_and_task([attack.save(**entries)])


def test_a_configuration_that_contains_itself(attack):
    endless = {"_name": "unilm"}
    endless["again"] = endless
    with pytest.raises(UserError, match=r"evil\.pt: cfg must be a dictionary of options, but is nested without end"):
        checkpoint_utils.load_checkpoint_to_cpu(attack.save(cfg={"model": endless}))


DOORS = {
    "generate DATA": ("generate", "data", "--source-lang", "src", "--target-lang", "tgt"),
    "interactive": ("interactive", "data", "--source-lang", "src", "--target-lang", "tgt"),
    "validate": ("validate", "data", "--batch-size", 1),
    "generate --input": (*("generate", "--input", "in.txt", "--output", "out.txt", "--tokenizer-dir", "data"),),
}


@pytest.mark.parametrize("door", DOORS)
def test_every_command_that_builds_a_model(attack, call_command, door):
    attack.save(cfg={"model": {"_name": "fconv", "encoder_layers": attack.code}, "task": attack.task})
    done = call_command(*DOORS[door], "--path", "evil.pt", "--finetune-method", "causal", "--cpu", status=None)
    assert not attack.marker.exists()
    assert done.status == 2
    assert "evil.pt: cfg.model._name is 'fconv'" in done.stderr


def test_a_command_of_fairseqs_own(attack, run_process):
    attack.save(cfg={"model": {"_name": "fconv", "encoder_layers": attack.code}, "task": attack.task})
    command = Path(sys.executable).with_name("fairseq-validate")
    words = ("data", "--path", "evil.pt", "--batch-size", 1, "--cpu", "--task", "unilm_seq2seq")
    done = run_process(command, *words, "--user-dir", s2sft_fairseq.__path__[0], status=1)
    assert not attack.marker.exists()
    assert "evil.pt: cfg.model._name is 'fconv'" in done.stderr


def test_predict(attack):
    task = {"_name": "unilm_classification", "data": str(attack.data)}
    path = attack.save(cfg={"model": {"_name": "fconv", "encoder_layers": attack.code}, "task": task})
    with pytest.raises(UserError, match=r"cfg\.model\._name is 'fconv'"):
        prediction.load(Path(path), {})
    assert not attack.marker.exists()


def test_a_pretrained_component(attack):
    """A part that fairseq's own models load through an option such as --load-pretrained-encoder-from."""
    path = attack.save(cfg={"model": {"_name": "wav2vec2", "conv_feature_layers": attack.code}})
    with pytest.raises(UserError, match=r"cfg\.model\._name is 'wav2vec2'"):
        checkpoint_utils.load_pretrained_component_from_model(None, path)


class Pickled:
    """Runs a command when it is unpickled unsafely."""

    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


def test_a_variable_that_switches_safe_loading_off(attack, run_command):
    """Through the real command line, because PyTorch and fairseq read the variable themselves."""
    path = attack.save(model=Pickled(attack.marker))
    words = ("validate", "data", "--path", path, "--cpu", "--batch-size", "1")
    done = run_command(*words, status=2, TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD="1")
    assert not attack.marker.exists()
    assert "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD" in done.stdout + done.stderr
    assert "evil.pt: refused, it holds posix.system." in done.stderr


def test_the_variable_set_later(attack, monkeypatch, caplog):
    path = attack.save(model=Pickled(attack.marker))
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    for load in (checkpoint_utils.load_checkpoint_to_cpu, checkpoint_utils.load_ema_from_checkpoint, load_checkpoint):
        with pytest.raises(UserError, match=r"refused, it holds posix\.system\."):
            load(path)
    assert not attack.marker.exists()
    with caplog.at_level(logging.WARNING):
        checkpoints.keep_safe_loading_on()
    assert "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD is ignored" in caplog.text
    with pytest.raises(Exception, match=r"posix\.system"):
        torch.load(path, map_location="cpu")
    assert not attack.marker.exists()


def test_a_plugin_that_a_checkpoint_names_is_not_imported(attack, tmp_path):
    plugin = tmp_path / "evil_plugin"
    plugin.mkdir()
    (plugin / "__init__.py").write_text(f"open({str(attack.marker)!r}, 'w')\n")
    cfg = {"model": {"_name": "unilm", **TINY_SIZES}, "task": attack.task, "common": {"user_dir": str(plugin)}}
    with pytest.raises(UserError, match="does not fit the model"):  # it was built, and lacks weights
        checkpoint_utils.load_model_ensemble_and_task([attack.save(cfg=cfg)])
    assert not attack.marker.exists()
