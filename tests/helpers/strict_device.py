"""A device that computes, and is strict: for tests of what runs on a GPU, without one.

Its tensors say that they are on `meta`, keep their numbers on the CPU, and refuse to meet a tensor of the CPU in any
operation but a copy, as a GPU's do. One thing they cannot do: autograd replaces their gradients rather than add to them
in place, so that weights whose gradients are views of a buffer run all of learning, and stay as they are.
"""

from __future__ import annotations

from contextlib import contextmanager

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

META = torch.device("meta")
COPIES = (torch.ops.aten.copy_.default, torch.ops.aten._to_copy.default)


class There(torch.Tensor):
    """A tensor on the device. numbers: what it holds, on the CPU."""

    @staticmethod
    def __new__(cls, numbers):
        return torch.Tensor._make_wrapper_subclass(
            cls, numbers.shape, numbers.stride(), numbers.storage_offset(), dtype=numbers.dtype, device=META
        )

    def __init__(self, numbers):
        self.numbers = numbers

    def __repr__(self):
        return f"There({self.numbers!r})"

    def tolist(self):
        """Its numbers, as a GPU's tensor gives them."""
        return self.numbers.tolist()

    @property
    def data(self):
        """What it holds, without its history; set, it holds another's numbers."""
        return self.detach()

    @data.setter
    def data(self, other):
        torch.Tensor.data.__set__(self, other)
        self.numbers = other.numbers

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return compute(func, args, kwargs or {})


def compute(func, args, kwargs):
    """An operation of which a tensor is there, or whose result is to be."""
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    if func not in COPIES:
        for x in tensors:
            if not isinstance(x, There) and x.dim() > 0:
                raise RuntimeError(f"{func} was given tensors of the CPU and of the device: {list(x.shape)} is here")
    if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.equal.default):
        return func(*tree_map(numbers_of, args))
    target = kwargs.get("device")
    stays = target is None or torch.device(target) == META
    named = {name: value for name, value in kwargs.items() if name != "device"}
    result = func(*tree_map(numbers_of, args), **tree_map(numbers_of, named))
    if func is torch.ops.aten.copy_.default or (func._schema.is_mutable and isinstance(result, torch.Tensor)):
        return args[0]
    return tree_map(lambda x: There(x) if isinstance(x, torch.Tensor) else x, result) if stays else result


def numbers_of(value):
    return value.numbers if isinstance(value, There) else value


class _Strict(TorchDispatchMode):
    """Makes tensors that are asked for on `meta`."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        asked = kwargs.get("device") is not None and torch.device(kwargs["device"]) == META
        there = any(isinstance(x, There) for x in tree_leaves((args, kwargs)))
        return compute(func, args, kwargs) if asked or there else func(*args, **kwargs)


class _Made(TorchFunctionMode):
    """torch.tensor(..., device="meta"), which dispatches no operation."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.tensor and kwargs.get("device") is not None and torch.device(kwargs["device"]) == META:
            return There(func(*args, **{name: value for name, value in kwargs.items() if name != "device"}))
        return func(*args, **kwargs)


@contextmanager
def strict_device():
    """Inside, `device="meta"` is a device that computes and is strict. Gives it."""
    settings = torch.__future__
    before = settings.get_swap_module_params_on_conversion()
    settings.set_swap_module_params_on_conversion(True)  # in place, as from the CPU to a GPU
    try:
        with _Strict(), _Made():
            yield META
    finally:
        settings.set_swap_module_params_on_conversion(before)


def here(tensor):
    """A copy on the CPU, to look at."""
    return numbers_of(tensor).detach().clone()
