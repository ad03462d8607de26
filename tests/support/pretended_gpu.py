"""A pretended GPU: tensors of CPU data that claim to be on another device.

`upload` and `moved` put tensors and models there; `counting` counts what happens within a ``with`` statement. Like CUDA
tensors, its tensors cannot be combined with CPU tensors. They compute real values, forward and backward.

The device type is ``lazy``, which PyTorch declares and nothing here uses otherwise. A custom type (``privateuseone``)
would have to be registered. That changes PyTorch for the whole process, and backward passes on it fail if another
backward pass has run before.
"""

import copy
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from gpu_counts import INDEXING, Counts, leaves
from torch import Tensor, nn
from torch.optim import optimizer as torch_optimizer
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("lazy", 0)
"""The pretended GPU, for factory functions such as ``torch.zeros(3, device=DEVICE)`` within `counting`."""

Model = TypeVar("Model", bound=nn.Module)

# They would have to change the tensor's own metadata, not only its data.
_UNSUPPORTED = {"resize_", "set_", "t_", "transpose_", "squeeze_", "unsqueeze_", "as_strided_"}
_attend = nn.functional.scaled_dot_product_attention


def upload(tensor: Tensor) -> Tensor:
    """Return a copy of a CPU tensor on the pretended GPU; it is not counted."""
    return _GpuTensor(tensor.detach().clone())


def download(tensor: Tensor) -> Tensor:
    """Return a CPU copy of a tensor of the pretended GPU; it is not counted.

    Raises:
        TypeError: if the tensor is on another device.
    """
    if not isinstance(tensor, _GpuTensor):
        raise TypeError(f"expected a tensor on the pretended GPU, but got one on {tensor.device}")
    return tensor.held.detach().clone()


def moved(model: Model, dtype: torch.dtype | None = None) -> Model:
    """Return a copy of a model on the pretended GPU; shared parameters stay shared and keep their attributes.

    Args:
        model: on the CPU.
        dtype: of its floating-point parameters and buffers; None: unchanged.
    """
    original, model = model, copy.deepcopy(model).to(dtype=dtype)
    for parameter, copied in zip(original.parameters(), model.parameters(), strict=True):
        vars(copied).update(vars(parameter))  # such as the mark of parameters without weight decay
    parameters: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False, remove_duplicate=False)):
            if id(parameter) not in parameters:
                ours = nn.Parameter(upload(parameter), requires_grad=parameter.requires_grad)
                vars(ours).update(vars(parameter))
                parameters[id(parameter)] = ours
            setattr(module, name, parameters[id(parameter)])
        for name, buffer in list(module.named_buffers(recurse=False)):
            setattr(module, name, upload(buffer))
    return model


@contextmanager
def counting() -> Iterator[Counts]:
    """Count what the pretended GPU is asked to do; if nested, the innermost counts.

    Within it PyTorch's optimizers have fused kernels for the pretended GPU.

    Raises:
        RuntimeError: (within) where tensors of both devices meet; single numbers of the CPU may.
        NotImplementedError: (within) for operators that change the shape of a tensor in place.
    """
    counts, fused = Counts(), [*torch_optimizer._get_fused_kernels_supported_devices(), DEVICE.type]
    with (
        patch.object(torch_optimizer, "_get_fused_kernels_supported_devices", lambda: fused),
        _Operators(counts),
        _Functions(counts),
    ):
        yield counts


class _GpuTensor(torch.Tensor):
    """A tensor that claims to be on `DEVICE`."""

    held: Tensor
    """Its data, on the CPU."""

    @staticmethod
    def __new__(cls, held: Tensor) -> "_GpuTensor":
        # In inference mode, views of tensors made before it are not inference tensors.
        with torch.inference_mode(held.is_inference()):
            made: _GpuTensor = torch.Tensor._make_wrapper_subclass(
                cls, held.shape, held.stride(), held.storage_offset(), dtype=held.dtype, device=DEVICE
            )
        made.held = held
        return made

    def __init__(self, held: Tensor) -> None:
        pass

    def __repr__(self, **_: Any) -> str:
        return f"{self.held!r} on the pretended GPU"

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _Operators(Counts()).run(func, args, kwargs or {})


class _Operators(TorchDispatchMode):
    """Runs operators on the data of the tensors, and counts them."""

    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self.counts = counts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.run(func, args, kwargs or {})

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Call an operator with tensors of either device."""
        tensors = [leaf for leaf in leaves([args, list(kwargs.values())]) if isinstance(leaf, Tensor)]
        ours = [tensor for tensor in tensors if isinstance(tensor, _GpuTensor)]
        asked = kwargs.get("device")
        to_gpu = bool(ours) if asked is None else torch.device(asked).type == DEVICE.type
        if not ours and not to_gpu:
            return func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if _is_composite(func):
            with self:  # inference mode does not decompose such an operator
                return func.decompose(*args, **kwargs)
        if name == "copy_":
            to_gpu = isinstance(args[0], _GpuTensor)
        held_args = _each(args, _held)
        held_kwargs = {key: _each(value, _held) for key, value in kwargs.items()}
        if name in ("copy_", "_to_copy") and not (to_gpu and len(ours) == len(tensors)):
            (self.counts.upload if to_gpu else self.counts.wait)(name)
            result = func(*held_args, **held_kwargs)
        else:
            self._check(func, name, args, [tensor for tensor in tensors if not isinstance(tensor, _GpuTensor)])
            result = func(*held_args, **held_kwargs)
            self.counts.operator(func, held_args, held_kwargs, result)
        # The tensor that an operator writes into stays the same object.
        known = {id(tensor.held): tensor for tensor in ours}
        return _each(result, lambda leaf: _on_gpu(leaf, known)) if to_gpu else result

    def _check(self, func: Any, name: str, args: Any, theirs: Sequence[Tensor]) -> None:
        if name in _UNSUPPORTED:
            raise NotImplementedError(f"{func}: the pretended GPU cannot change the shape of a tensor in place")
        if name in INDEXING:  # indices may be on the CPU; each call copies them
            indices = {id(index) for index in leaves(args[1])}
            for _ in (tensor for tensor in theirs if id(tensor) in indices):
                self.counts.upload(name)
            theirs = [tensor for tensor in theirs if id(tensor) not in indices]
        if shapes := [tuple(tensor.shape) for tensor in theirs if tensor.ndim]:
            raise RuntimeError(
                f"{func}: expected all tensors on one device, but got some on the pretended GPU and some on the CPU, "
                f"of shape {', '.join(map(str, shapes))}"
            )


class _Functions(TorchFunctionMode):
    """Handles what PyTorch hides from operators, and attention, which is one kernel on a GPU."""

    def __init__(self, counts: Counts) -> None:
        super().__init__()
        self.counts = counts

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, first = kwargs or {}, args[0] if args else None
        name = getattr(func, "__name__", "")
        if func is torch.tensor and torch.device(kwargs.get("device") or "cpu").type == DEVICE.type:
            return self._uploaded(torch.tensor(*args, **{**kwargs, "device": "cpu"}), name)
        if not isinstance(first, _GpuTensor):
            return func(*args, **kwargs)
        if func is _attend:
            query, key, value, *others = args
            mask = others[0] if others else kwargs.pop("attn_mask", None)
            attend = lambda *factors: _attend(*factors, *others[1:], **kwargs)  # noqa: E731
            return _Attention.apply(self.counts, attend, query, key, value, mask)
        if name == "numpy":
            raise TypeError("a tensor on the pretended GPU has no NumPy array: call cpu() first")
        if name == "tolist":
            self.counts.wait(name)
            return first.held.tolist()
        if name == "new_tensor":
            return self._uploaded(torch.tensor(args[1], dtype=kwargs.get("dtype", first.dtype)), name)
        if name in ("__getitem__", "__setitem__"):
            index = tuple(self._index(i, name) for i in args[1]) if isinstance(args[1], tuple) else args[1]
            args = (first, self._index(index, name), *args[2:])
        return func(*args, **kwargs)

    def _uploaded(self, tensor: Tensor, name: str) -> Tensor:
        self.counts.upload(name)
        return _GpuTensor(tensor)

    def _index(self, index: Any, name: str) -> Any:
        return self._uploaded(torch.tensor(index), name) if isinstance(index, list) else index


class _Attention(torch.autograd.Function):
    """Scaled dot-product attention in one launch forward and one backward."""

    @staticmethod
    def forward(ctx: Any, counts: Counts, attend: Callable[..., Tensor], *factors: Tensor | None) -> Tensor:
        if shapes := [tuple(x.shape) for x in factors if x is not None and not isinstance(x, _GpuTensor)]:
            raise RuntimeError(f"attention: expected all tensors on one device, but those of shape {shapes} are not")
        counts.launches["attention"] += 1
        needed = ctx.needs_input_grad[2:]
        if not any(needed):
            return _GpuTensor(attend(*map(_held, factors)))
        ctx.counts, ctx.needed = counts, needed
        with torch.enable_grad():
            ctx.factors = [
                None if factor is None else _held(factor).detach().requires_grad_(need)
                for factor, need in zip(factors, needed, strict=True)
            ]
            ctx.attended = attend(*ctx.factors)
        return _GpuTensor(ctx.attended.detach())

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        ctx.counts.launches["attention backward"] += 1
        wanted = [factor for factor, need in zip(ctx.factors, ctx.needed, strict=True) if need]
        found = iter(torch.autograd.grad(ctx.attended, wanted, _held(gradient)))
        return None, None, *(_GpuTensor(next(found)) if need else None for need in ctx.needed)


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    """Apply a function to the values in an argument or result of an operator, which is a value or nested lists."""
    return type(value)(_each(one, change) for one in value) if type(value) in (list, tuple) else change(value)


def _held(leaf: Any) -> Any:
    """Return the data of a tensor on the pretended GPU, the CPU in place of a device, and anything else unchanged."""
    if isinstance(leaf, _GpuTensor):
        return leaf.held
    return torch.device("cpu") if isinstance(leaf, torch.device) else leaf


def _on_gpu(leaf: Any, known: dict[int, _GpuTensor]) -> Any:
    """Return the tensor on the pretended GPU that holds some data, a new one if no known tensor does."""
    if not isinstance(leaf, Tensor):
        return leaf
    return known[id(leaf)] if id(leaf) in known else _GpuTensor(leaf)


@functools.cache
def _is_composite(func: Any) -> bool:
    """Return whether an operator only calls other operators."""
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
