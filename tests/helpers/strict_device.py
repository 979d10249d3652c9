"""A simulated device for tests of GPU code without a GPU.

Its tensors report the device `meta`, hold their numbers on the CPU, and raise an error when an operation other than a
copy mixes them with CPU tensors, as a GPU's do. One limit: autograd replaces their gradients instead of adding to them
in place, so that parameters whose gradients are views of a buffer are not updated by the optimizer.
"""

from __future__ import annotations

from contextlib import contextmanager

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

META = torch.device("meta")
COPIES = (torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default)


class StrictTensor(torch.Tensor):
    """A tensor on the device. numbers: its values, on the CPU."""

    @staticmethod
    def __new__(cls, numbers):
        return torch.Tensor._make_wrapper_subclass(
            cls, numbers.shape, numbers.stride(), numbers.storage_offset(), dtype=numbers.dtype, device=META
        )

    def __init__(self, numbers):
        self.numbers = numbers

    def __repr__(self):
        return f"StrictTensor({self.numbers!r})"

    def tolist(self):
        """Values as a list, as of a GPU tensor."""
        return self.numbers.tolist()

    @property
    def data(self):
        """Values without autograd history; the setter takes those of another tensor."""
        return self.detach()

    @data.setter
    def data(self, other):
        torch.Tensor.data.__set__(self, other)
        self.numbers = other.numbers

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return compute(func, args, kwargs or {})


def compute(func, args, kwargs):
    """An operation with an argument or a result on the device."""
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    if func not in COPIES:
        for x in tensors:
            if not isinstance(x, StrictTensor) and x.dim() > 0:
                raise RuntimeError(f"{func} mixes tensors of the CPU and of the device: {list(x.shape)} is on the CPU")
    if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default):
        return func(*tree_map(numbers_of, args))
    target = kwargs.get("device")
    stays = target is None or torch.device(target) == META
    named = {name: value for name, value in kwargs.items() if name != "device"}
    result = func(*tree_map(numbers_of, args), **tree_map(numbers_of, named))
    if func is torch.ops.aten.copy_.default or (func._schema.is_mutable and isinstance(result, torch.Tensor)):
        return args[0]
    return tree_map(lambda x: StrictTensor(x) if isinstance(x, torch.Tensor) else x, result) if stays else result


def numbers_of(value):
    return value.numbers if isinstance(value, StrictTensor) else value


class _Strict(TorchDispatchMode):
    """Creates tensors on `meta` where device="meta" is given."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        requested = kwargs.get("device") is not None and torch.device(kwargs["device"]) == META
        present = any(isinstance(x, StrictTensor) for x in tree_leaves((args, kwargs)))
        return compute(func, args, kwargs) if requested or present else func(*args, **kwargs)


class _TorchTensor(TorchFunctionMode):
    """torch.tensor(..., device="meta"), which dispatches no operation."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.tensor and kwargs.get("device") is not None and torch.device(kwargs["device"]) == META:
            return StrictTensor(func(*args, **{name: value for name, value in kwargs.items() if name != "device"}))
        return func(*args, **kwargs)


@contextmanager
def strict_device():
    """Make `device="meta"` the simulated device within this block. Yields it."""
    settings = torch.__future__
    before = settings.get_swap_module_params_on_conversion()
    settings.set_swap_module_params_on_conversion(True)  # in place, as from the CPU to a GPU
    try:
        with _Strict(), _TorchTensor():
            yield META
    finally:
        settings.set_swap_module_params_on_conversion(before)


def to_cpu(tensor):
    """A copy on the CPU."""
    return numbers_of(tensor).detach().clone()
