"""Finds operations that a CUDA graph cannot record, on any device, before a capture is tried.

A graph replays kernels; the host code does not run again. So a captured function must not read a number from the
device, copy one to it, have shapes that depend on data, or keep a tensor that the next iteration reads.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Self

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

WAITING = ("item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__", "nonzero", "pin_memory")
MADE_ON_HOST = ("tensor", "as_tensor", "asarray", "from_numpy", "new_tensor")
READS = (torch.Tag.data_dependent_output,)
SHAPES = (torch.Tag.dynamic_output_shape,)
# checked by their indices: only a boolean index makes a shape that depends on data
INDEXING = ("index", "index_put", "index_put_")
_OURS = (__file__, os.path.join(torch.__path__[0], ""))


class NotCapturable(RuntimeError):
    """A function waits for the device, or copies numbers to it; the message says where and what to do."""


class Capturable(ExitStack):
    """Raise NotCapturable, with file and line, for an operation within this block that a graph cannot record.

    left_behind() gives the bytes of tensors made within the block that are still alive after it.
    """

    def __enter__(self) -> Self:
        self._made: list[tuple[StorageWeakRef, int]] = []
        self.enter_context(_Operations(self._made))
        self.enter_context(_Calls())
        return self

    def left_behind(self) -> int:
        """Bytes of storage allocated inside the block and not yet free: of a whole iteration it must be 0."""
        alive = {reference.cdata: size for reference, size in self._made if not reference.expired()}
        return sum(alive.values())


class _Operations(TorchDispatchMode):
    """Checks operations as torch dispatches them, including those of the backward pass."""

    def __init__(self, made: list[tuple[StorageWeakRef, int]]) -> None:
        super().__init__()
        self.made = made

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        _check(operation, args, kwargs)
        result = operation(*args, **kwargs)
        if not operation.is_view:
            for tensor in result if isinstance(result, tuple | list) else (result,):
                if isinstance(tensor, Tensor) and not any(tensor is given for given in args):
                    storage = tensor.untyped_storage()
                    self.made.append((StorageWeakRef(storage), storage.nbytes()))
        return result


class _Calls(TorchFunctionMode):
    """Checks calls of torch's functions: on the CPU, some functions that wait for a GPU dispatch no operation."""

    def __torch_function__(self, function: Callable, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        if name in WAITING:
            _refuse(f"{name}() waits for the device", "keep the number in a tensor")
        if name in MADE_ON_HOST and not isinstance(args[-1] if args else None, Tensor):
            _refuse(f"{name}() makes a tensor on the host", "make it once, before, or with torch.full or torch.arange")
        if isinstance(kwargs.get("generator"), torch.Generator) and kwargs["generator"].device.type == "cpu":
            _refuse(f"{name}() draws from a generator of the CPU", "use headrace.core.rng, whose counter is a tensor")
        if name in ("to", "copy_") and _moves(name, args, kwargs):
            _refuse(f"{name}() copies between devices", "make the tensor where it is used")
        if name == "__getitem__" and any(isinstance(index, list) for index in _indices(args[1])):
            _refuse("a list as an index is copied to the device", "make a tensor of it once, before")
        return function(*args, **kwargs)


def _check(operation: OpOverload, args: tuple, kwargs: dict) -> None:
    name = operation.overloadpacket.__name__
    if any(tag in operation.tags for tag in READS):
        _refuse(f"{name} waits for a number of the device", "keep it in a tensor")
    if name in INDEXING:
        masks = [index for index in args[1] if isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8)]
        one_number = name != "index" and args[2].numel() == 1
        if masks and not one_number:
            _refuse("indexing by a mask has a shape that depends on data", "use torch.where, or weights of 0 and 1")
    elif any(tag in operation.tags for tag in SHAPES):
        _refuse(f"{name} has a shape that depends on data", "use torch.where, or weights of 0 and 1")
    devices = {x.device for x in args if isinstance(x, Tensor)}
    target = kwargs.get("device")
    if name in ("copy_", "_to_copy") and len(devices | ({torch.device(target)} if target is not None else set())) > 1:
        _refuse(f"{name} copies between devices", "make the tensor where it is used")


def _moves(name: str, args: tuple, kwargs: dict) -> bool:
    """Tell whether to() or copy_() goes from one kind of device to another."""
    wanted = [*args[1:], *kwargs.values()]
    devices = [torch.device(x) for x in wanted if isinstance(x, str | torch.device)]
    devices += [x.device for x in wanted if isinstance(x, Tensor)]
    return any(device.type != args[0].device.type for device in devices)


def _indices(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def _refuse(wrong: str, instead: str) -> None:
    frames = [f for f in traceback.extract_stack() if not f.filename.startswith(_OURS)]
    where = f"{frames[-1].filename}:{frames[-1].lineno}: " if frames else ""
    raise NotCapturable(f"{where}{wrong}, which a CUDA graph cannot record: {instead}")
