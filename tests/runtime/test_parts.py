"""A task, a model and a criterion fit each other, or an error names the option."""

import pytest
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.models import ARCH_MODEL_REGISTRY
from fairseq.tasks import TASK_REGISTRY

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.runtime.parts import check_parts, task_name

OURS = {name for name, task in TASK_REGISTRY.items() if task.__module__.startswith("s2sft_fairseq.")}
PACKED = {name for name in OURS if not name.startswith("deltalm")}


def fits(task, **parts):
    try:
        check_parts(TASK_REGISTRY[task], **parts)
    except UserError as error:
        assert all(f"--{name}" in str(error) or "--task" in str(error) for name in parts)
        return False
    return True


@pytest.mark.parametrize("arch", ["bart_large", "transformer", "transformer_lm", "roberta_base", "fconv", "lstm"])
def test_models_of_fairseq_are_for_its_tasks(arch):
    assert not any(fits(task, arch=arch) for task in OURS)
    assert fits("translation", arch=arch)


def test_own_models():
    for arch in ARCH_MODEL_REGISTRY:
        if arch.startswith("unilm"):
            assert {task for task in TASK_REGISTRY if fits(task, arch=arch)} == PACKED
        if arch.startswith("deltalm"):
            assert {task for task in OURS if fits(task, arch=arch)} == OURS - PACKED and fits("translation", arch=arch)


def test_criterions_of_fairseq_read_no_packed_batch():
    theirs = [name for name, cls in CRITERION_REGISTRY.items() if cls.__module__.startswith("fairseq.")]
    assert "label_smoothed_cross_entropy" in theirs
    assert not any(fits(task, criterion=name) for task in PACKED for name in theirs)
    assert all(fits(task, criterion="cross_entropy") for task in TASK_REGISTRY.keys() - PACKED)


@pytest.mark.parametrize(
    ("criterion", "tasks"),
    [
        ("mask_attention", PACKED - {"unilm_classification", "unilm_question_answering"}),
        ("classification", {"unilm_classification"}),
        ("answer_span", {"unilm_question_answering"}),
    ],
)
def test_own_criterions(criterion, tasks):
    assert {task for task in TASK_REGISTRY if fits(task, criterion=criterion)} == tasks


def test_names_of_tasks():
    class Own(TASK_REGISTRY["unilm_seq2seq"]):
        pass

    assert task_name(Own) == "unilm_seq2seq" and task_name(object()) == "object"


@pytest.mark.parametrize(
    ("words", "stated"),
    [
        (("--arch", "bart_large"), "--arch must be unilm or one of its sizes for unilm_seq2seq, but is bart_large"),
        (("--arch", "transformer_lm"), "--arch must be unilm or one of its sizes for unilm_seq2seq"),
        (("--task", "translation"), "--task must be ernie_gen_pretraining, unilm_classification, "),
        (("--arch", "deltalm_tiny"), "--criterion mask_attention is for ernie_gen_pretraining, unilm_pretraining"),
        (
            ("--criterion", "cross_entropy"),
            "--criterion must be mask_attention for unilm_seq2seq, but is cross_entropy",
        ),
    ],
)
def test_the_command_line(call_command, tiny_data, words, stated):
    training = ("--arch", "unilm_tiny", "--criterion", "mask_attention", "--optimizer", "adam", "--cpu")
    error = call_command("train", tiny_data, *training, "--max-update", 1, *words, status=2).stderr
    assert stated in error and "Traceback" not in error


def test_hydra_too(call_command, tiny_data, tmp_path):
    words = (f"task.data={tiny_data}", f"hydra.run.dir={tmp_path}/run", "optimizer=adam", "dataset.batch_size=8")
    for parts, stated in (
        (("task=translation", "model=unilm", "criterion=cross_entropy"), "--task must be"),
        (
            (
                "task=unilm_seq2seq",
                "model=unilm",
                "criterion=cross_entropy",
                "model.random_init=true",
                "model.encoder_layers=1",
            ),
            "--criterion must",
        ),
    ):
        error = call_command("hydra-train", *words, *parts, "common.cpu=true", status=2).stderr
        assert stated in error and "Traceback" not in error
