"""Classes that a checkpoint's configuration may name; tests/attacks/test_checkpoint_code.py has forbidden ones."""

from argparse import Namespace

import pytest
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY, BaseFairseqModel
from fairseq.registry import REGISTRIES
from fairseq.tasks import TASK_REGISTRY

from s2sft_fairseq.checkpoints.trusted_config import FROM_FAIRSEQ, check_config, not_built
from s2sft_fairseq.errors import UserError

REFUSED = {"model": "fconv", "task": "multilingual_translation", "criterion": "ctc", "tokenizer": "evil", "bpe": "evil"}


class OfTheUser(BaseFairseqModel):
    """A model of a plugin that the user imports."""


@pytest.mark.parametrize("part", FROM_FAIRSEQ)
def test_lists_only_what_fairseq_has(part):
    registries = {"model": MODEL_REGISTRY, "task": TASK_REGISTRY}
    registry = registries.get(part) or REGISTRIES[part]["registry"]
    assert set(FROM_FAIRSEQ[part]) <= set(registry)
    assert REFUSED[part] not in FROM_FAIRSEQ[part]


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"model": None, "task": None, "criterion": None, "tokenizer": None, "bpe": None},
        {
            "model": {"_name": "unilm_tiny"},
            "task": {"_name": "unilm_seq2seq"},
            "criterion": {"_name": "mask_attention"},
        },
        {
            "model": Namespace(arch="deltalm_base"),
            "task": {"_name": "deltalm_pretraining"},
            "bpe": {"_name": "pretrained"},
        },
        {
            "model": Namespace(arch="transformer_wmt_en_de_big"),
            "task": {"_name": "translation"},
            "criterion": "cross_entropy",
        },
        {"model": {"_name": "bart_large"}, "tokenizer": {"_name": "moses"}, "bpe": {"_name": "gpt2"}},
        {"optimizer": {"_name": "adafactor"}, "lr_scheduler": {"_name": "cosine"}, "scoring": {"_name": "bleu"}},
    ],
)
def test_own_classes_and_those_of_the_list_may_be_built(config):
    check_config("a.pt", {"cfg": config})


def test_options_of_one_namespace_before_fairseq_0_10():
    options = {"task": "translation", "criterion": "label_smoothed_cross_entropy", "lr": [0.1], "bpe": None}
    check_config("a.pt", {"args": Namespace(arch="transformer_iwslt_de_en", **options)})
    check_config("a.pt", {"args": Namespace(arch="transformer")})  # fairseq uses translation as the default task


def test_a_model_of_the_users_own_plugin_may_be_built(monkeypatch):
    monkeypatch.setitem(ARCH_MODEL_REGISTRY, "of_the_user", OfTheUser)
    check_config("a.pt", {"cfg": {"model": {"_name": "of_the_user"}}})
    with pytest.raises(UserError, match=r"a\.pt: cfg\.model\._name is 'of_somebody'"):
        check_config("a.pt", {"cfg": {"model": {"_name": "of_somebody"}}})


@pytest.mark.parametrize(
    "value",
    [
        *("", "gelu", "en-de", "de-en,fr-en", "1000,2000", "(0.9, 0.98)", "[0.1, -2e-5]", '{"beam": 4, "lenpen": 0.6}'),
        *("checkpoint_last.pt", "data-bin/train", "../a folder (new)/b", "~/data", "/a/b:/c", "[SEP]", ". , !", "a b"),
        *("<s>", "2-6", "embeddings|head", "no_c10d", "naïve", "0.4,0.6", "right,right", "f(", "a\x00b", "(" * 500),
        *(None, True, 3, 0.5, [1, "a", None], {"a": {"b": [2]}}),
    ],
)
def test_numbers_words_and_paths(value):
    check_config("a.pt", {"cfg": {"model": {"_name": "unilm", "option": value}}})


@pytest.mark.parametrize(
    "value",
    [
        *(
            "f()",
            "  f()",
            "\tf()",
            "a[0]",
            "a.b.c(1)",
            "[x for x in y]",
            "lambda: 0",
            "f'{x}'",
            "(y := 1)",
            "x if y else z",
        ),
        *("9**9**9", "'a' * 9", "1 << 9", "'%99d' % 1", "(\n f())", "-" * 3000 + "f()", "${a}", "a${b}c"),
    ],
)
def test_code(value):
    with pytest.raises(
        UserError, match=r"a\.pt: cfg\.task\.options\.x\[0\] is .*, but an option must be a number, a word"
    ):
        check_config("a.pt", {"cfg": {"task": {"_name": "translation", "options": {"x": [value]}}}})


def test_paths_may_look_like_code():
    check_config(
        "a.pt", {"cfg": {"checkpoint": {"save_dir": "runs(1)"}, "task": {"_name": "translation", "data": "a(1)"}}}
    )


def test_parts_that_are_not_built():
    of_a_task = {"cfg": {"task": {"_name": "multilingual_translation"}}}
    with not_built("task"):
        check_config("a.pt", of_a_task)
        with pytest.raises(UserError, match=r"cfg\.model\._name is 'fconv'"):
            check_config("a.pt", {"cfg": {"model": {"_name": "fconv"}}})
        with pytest.raises(UserError, match=r"cfg\.task\.x is 'f\(\)'"):
            check_config("a.pt", {"cfg": {"task": {"_name": "multilingual_translation", "x": "f()"}}})
    with not_built(*FROM_FAIRSEQ):
        check_config("a.pt", {"cfg": {"model": {"_name": "fconv", "encoder_layers": "f()"}}})
    with pytest.raises(UserError, match=r"cfg\.task\._name is 'multilingual_translation'"):
        check_config("a.pt", of_a_task)
