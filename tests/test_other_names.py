"""Names of options of other programs are answered with the names of this package."""

import inspect

import pytest
from tiny import tiny_dictionary  # noqa: F401  (imports fairseq with the plugin)

from s2sft_fairseq import finetune, other_names
from s2sft_fairseq.api.search_arguments import apply
from s2sft_fairseq.commands import fairseq_command, generate
from s2sft_fairseq.commands import finetune as finetune_command
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.recipes.finetune_settings import RUN_OPTIONS, SETTINGS
from s2sft_fairseq.search_bounds import PYTHON, SEARCH


def test_all_answers_are_names_of_this_package():
    own = {**RUN_OPTIONS, **SETTINGS, **inspect.signature(finetune).parameters}
    assert set(other_names.FINETUNE.values()) <= set(own) and set(other_names.FINETUNE).isdisjoint(own)
    assert set(other_names.SEARCH.values()) <= set(PYTHON) and set(other_names.SEARCH).isdisjoint(PYTHON)
    assert set(other_names.GENERATE.values()) <= set(SEARCH) and set(other_names.GENERATE).isdisjoint(SEARCH)


@pytest.mark.parametrize(
    ("name", "ours"),
    [("num_beams", "beam"), ("max_new_tokens", "max_len"), ("max_length", "max_len"), ("do_sample", "sampling"),
     ("num_return_sequences", "num_return"), ("no_repeat_ngram_size", "no_repeat_ngram"), ("beam_size", "beam"),
     ("nbest", "num_return"), ("lenpen", "length_penalty"), ("max_len_b", "max_len"), ("sampling_topk", "top_k")],
)  # fmt: skip
def test_search_arguments(name, ours):
    with pytest.raises(UserError, match=rf"{name} is no argument of the search \({ours} is its name here\)"):
        apply({}, {}, {name: 2})


@pytest.mark.parametrize(
    ("name", "ours"),
    [("learning_rate", "lr"), ("num_train_epochs", "epochs"), ("per_device_train_batch_size", "device_batch"),
     ("output_dir", "output"), ("max_steps", "updates"), ("num_beams", "beam"), ("warmup_steps", "warmup")],
)  # fmt: skip
def test_fine_tuning(tmp_path, name, ours):
    with pytest.raises(UserError, match=rf"there is no setting {name} \({ours} is its name here\): known are"):
        finetune("none", [("a", "b")], output=tmp_path / "out", **{name: 1})
    option, own = (f"--{each.replace('_', '-')}" for each in (name, ours))
    for word in (option, f"--{name}", f"{option}=1"):
        with pytest.raises(UserError, match=rf"there is no option {word.split('=')[0]} \({own} is its name here\)"):
            finetune_command.main(["--encoder", "none", word, "1"])
    assert not (tmp_path / "out").exists()


def test_generate():
    with pytest.raises(UserError) as error:
        generate.main(["--path", "m", "--num-beams", "4", "--max-new-tokens=5", "--no-repeat-ngram-size", "3"])
    assert error.value.problems == [
        "there is no option --num-beams (--beam is its name here)",
        "there is no option --max-new-tokens (--max-len-b is its name here)",
    ]


def test_train():
    words = ["data", "--num-train-epochs", "3", "--learning-rate", "1e-4"]
    with pytest.raises(UserError) as error:
        fairseq_command.run("train", words)
    assert error.value.problems == ["there is no option --num-train-epochs (--max-epoch is its name here)"]
