"""Every command that reads weights reports NaN and infinite weights with file and tensor."""

import json

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.data import Dictionary
from tiny import tiny_dictionary
from torch import nn

from s2sft_fairseq.checkpoints.averaging import average_checkpoints
from s2sft_fairseq.checkpoints.finite_weights import check_finite, check_half_precision, not_finite
from s2sft_fairseq.checkpoints.pretrained import PretrainedEncoder
from s2sft_fairseq.checkpoints.source_files import open_source
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.exports.hugging_face import read_model
from s2sft_fairseq.models.deltalm_start import open_start

NAN, INF = float("nan"), float("inf")


def spoiled(value, **options):
    """Return many numbers, one of which is `value`."""
    tensor = torch.arange(1000.0).reshape(10, 100)
    tensor[7, 31] = value
    return tensor.to(**options)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("value", "what"), [(NAN, "NaN"), (INF, "infinite"), (-INF, "infinite"), (1, None)])
def test_values_that_are_found(dtype, value, what):
    whole = spoiled(value, dtype=dtype)
    weights = {"whole": whole, "turned": whole.T, "part": whole[:, ::31], "row": whole[7], "other": whole[8]}
    assert not_finite(weights.items()) == ({name: what for name in ("whole", "turned", "part", "row")} if what else {})


def test_eight_bits():
    value = torch.tensor([1.0, NAN]).to(torch.float8_e4m3fn)
    assert not_finite([("a", value), ("b", value[:1])]) == {"a": "NaN"}


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.float8_e4m3fn, torch.complex64])
def test_quantized_weights(dtype):
    weights = {"a": torch.ones(2), "b": torch.ones(2).to(dtype)}
    with pytest.raises(UserError, match=f"of 16 bits or more, but b is {str(dtype)[6:]} in 1 of its 2 tensors"):
        check_finite("a.pt", weights)


def test_more_elements_than_memory():
    one = torch.tensor([NAN]).expand(10**9, 10**9)
    assert not_finite([("a", one), ("b", torch.ones(3, 1).expand(-1, 10**12))]) == {"a": "NaN"}


def test_tensors_without_floating_point_numbers():
    sparse = torch.eye(3).to_sparse()
    weights = {"numbers": torch.arange(3), "none": torch.zeros(0, 4), "meta": torch.ones(2, device="meta"), "a": sparse}
    check_finite("a.pt", {**weights, "text": "NaN", "number": NAN})


def test_names_the_file_and_the_first_tensors():
    weights = {f"layer{number}": spoiled(NAN if number % 2 else INF) for number in range(7)}
    told = (
        r"^a\.pt: weights must be finite, but layer0 is infinite, layer1 is NaN, layer2 is infinite, layer3 is NaN, "
        r"layer4 is infinite, \.\.\. in 7 of its 8 tensors\. "
    )
    with pytest.raises(UserError, match=told):
        check_finite("a.pt", {**weights, "good": torch.ones(3)})
    with pytest.raises(UserError, match=r"a\.pt: .*but a is infinite in 1 of its 1 tensors \(float16 ends at 65,504\)"):
        check_finite("a.pt", {"a": torch.tensor([1e6]).half()})


def test_weights_that_overflow_in_float16():
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.weight[0, 0] = 1e5
    check_half_precision(model)
    check_half_precision(model.bfloat16())
    with pytest.raises(UserError, match=r"--fp16 .* float16 ends at 65,504, and weight is infinite; give --bf16"):
        check_half_precision(model.float().half())


@pytest.fixture
def folder(tmp_path):
    """A converted encoder, a source checkpoint, and a fairseq checkpoint, whose weights are not finite."""
    weights = {"good": torch.ones(2), "bad": spoiled(NAN)}
    state = {
        "model": weights,
        "optimizer_history": [{"optimizer_name": "A", "lr_scheduler_state": {}, "num_updates": 0}],
    }
    state |= {"args": None, "cfg": {"model": {"_name": "unilm"}}, "extra_state": {"train_iterator": {"epoch": 1}}}
    torch.save(state, tmp_path / "model.pt")
    torch.save(weights, tmp_path / "pytorch_model.bin")
    described = {"sizes": {}, "vocab_size": 9, "newly_initialized": []}
    (tmp_path / "config.json").write_text(json.dumps(described))
    (tmp_path / "dict.txt").write_text("".join(f"{symbol} 1\n" for symbol in tiny_dictionary().symbols))
    return tmp_path


DOORS = {
    "convert": ("pytorch_model.bin", lambda folder: open_source(folder / "pytorch_model.bin")),
    "train --pretrained": ("model.pt", lambda folder: PretrainedEncoder.open(folder).load_into(nn.Linear(2, 2))),
    "train --arch deltalm --pretrained ENCODER": (
        "model.pt",
        lambda folder: open_start(str(folder), tiny_dictionary()),
    ),
    "train --arch deltalm --pretrained FILE": (
        "model.pt",
        # next to its config.json, the file would mean the folder
        lambda folder: (folder / "config.json").unlink() or open_start(f"{folder}/model.pt", Dictionary()),
    ),
    "average": ("model.pt", lambda folder: average_checkpoints([folder / "model.pt"])),
    "export": ("model.pt", lambda folder: read_model(folder / "model.pt")),
    "generate": (
        "model.pt",
        lambda folder: checkpoint_utils.load_model_ensemble([f"{folder}/model.pt"], task=object()),
    ),
    "train --restore-file": ("model.pt", lambda folder: checkpoint_utils.load_checkpoint_to_cpu(f"{folder}/model.pt")),
}


@pytest.mark.parametrize("door", DOORS)
def test_every_command_that_reads_weights(folder, door):
    file, read = DOORS[door]
    with pytest.raises(UserError, match=rf"{file}: weights must be finite, but bad is NaN in 1 of its 2 tensors"):
        read(folder)
