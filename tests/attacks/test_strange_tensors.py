"""Tensors that no weights are: sparse, without values, expanded, outside their storage."""

import pytest
import torch
from hostile_files import save_weights

from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.checkpoints.source_files import open_source
from s2sft_fairseq.errors import UserError


def expanded():
    return torch.zeros(1).expand(10**6, 10**6)


STRANGE = {
    "coo": (lambda: torch.eye(3).to_sparse(), r"a must be an ordinary tensor, but has the layout torch\.sparse_coo"),
    "csr": (
        lambda: torch.eye(3).to_sparse_csr(),
        r"a must be an ordinary tensor, but has the layout torch\.sparse_csr",
    ),
    "meta": (lambda: torch.zeros(10**9, 10**3, device="meta"), r"a must be an ordinary tensor, but is on .* meta"),
    "quantized": (lambda: torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.qint8), r"a must be .* is quantized"),
    "expanded": (expanded, r"a must be an ordinary tensor, but its shape is \(1000000, 1000000\), of only 1 elements"),
    "nested": (lambda: {"b": [expanded()]}, r"a\.b\.0 must be an ordinary tensor, but its shape is \(1000000, "),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR", "ignore:torch.quantize_per_tensor", "ignore:TypedStorage")
@pytest.mark.parametrize("name", STRANGE)
def test_tensors_that_are_no_weights(tmp_path, name):
    make, message = STRANGE[name]
    path = save_weights(tmp_path, {"a": make()})
    for read in (load_checkpoint, open_source):
        with pytest.raises(UserError, match=rf"pytorch_model\.bin: {message}"):
            read(path)


class Rebuilt:
    """Pickled as a tensor with any offset and strides over a storage of four numbers."""

    def __init__(self, *place):
        self.place = place

    def __reduce__(self):
        return torch._utils._rebuild_tensor_v2, (torch.zeros(4).storage(), *self.place, False, {})


@pytest.mark.parametrize(
    "place", [(2**40, (4,), (1,)), (0, (4,), (2**40,)), (-1, (4,), (1,)), (0, (2**40,), (1,)), (0, (2,), (-1,))]
)
def test_tensors_outside_of_their_storage(tmp_path, place):
    path = save_weights(tmp_path, {"a": Rebuilt(*place)})
    with pytest.raises(UserError, match=r"pytorch_model\.bin"):
        open_source(path)
