"""Constants, sizes of containers and settings, which a trace reads besides tensors and floats. Settings are noted
when they are read: a program does not depend on the others. Settings of torch's count as well."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import is_dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import nn

from headrace.core.value_text import describe
from headrace.kernels.rows.tracing.captured import Find

CONSTANT = (bool, int, float, str, bytes, type(None), torch.dtype, torch.device)


class Size(NamedTuple):
    """Size of a container, in its place: class, count of parts, and keys of a dict or names of attributes, in order."""

    kind: type
    number: int
    keys: tuple[object, ...] = ()

    @classmethod
    def of(cls, value: Any) -> Size:
        """The size of a list, tuple or dict, or of an object's attributes."""
        if isinstance(value, list | tuple):
            return cls(type(value), len(value))
        members = value if isinstance(value, dict) else vars(value)
        return cls(type(value), len(members), tuple(members))

    def holds(self, found: object) -> bool:
        """True if a container has this size."""
        if type(found) is not self.kind:
            return False
        if isinstance(found, list | tuple):
            return len(found) == self.number
        return tuple(found if isinstance(found, dict) else vars(found)) == self.keys

    def __str__(self) -> str:
        keys = [repr(key) if isinstance(key, CONSTANT) else str(describe(key).lines) for key in self.keys]
        return f"{self.kind.__module__}.{self.kind.__qualname__} {self.number} {keys}"


class Held(NamedTuple):
    """A value that the trace reads besides inputs.

    name: as a user would say it. value: what it was; of a container a Size.
    setting: the attribute of a dataclass that it is, or is in: nothing depends on one that the trace did not read.
    """

    name: str
    find: Find
    value: object
    setting: str | None = None


class Same(NamedTuple):
    """Two places with one tensor."""

    name: str
    one: Find
    other: Find
    first: str  # the name of the first place


def is_same(found: object, value: object) -> bool:
    """Tell whether a constant is unchanged: a plain one has the same value, another one is the same object."""
    if isinstance(value, Size):
        return value.holds(found)
    return found is value or (type(found) is type(value) and isinstance(value, CONSTANT) and found == value)


def parts_of(value: Any) -> list[tuple[object, Any, Find]]:
    """Members of a container, or attributes of an object: the name of each, its value, and a function that gets it."""
    if isinstance(value, dict):
        return [(key, part, itemgetter(key)) for key, part in value.items()]
    if isinstance(value, list | tuple):
        labels = getattr(value, "_fields", range(len(value)))
        return [(label, part, itemgetter(i)) for i, (label, part) in enumerate(zip(labels, value, strict=True))]
    return [(name, part, lambda x, name=name: getattr(x, name)) for name, part in vars(value).items()]  # type: ignore[misc]


def are_settings(value: object) -> bool:
    """Tell whether a value is a dataclass whose attributes are noted when they are read."""
    kind = type(value)
    if not is_dataclass(value) or type(kind) is not type or isinstance(value, dict | list | tuple):
        return False
    own = {name for base in kind.__mro__[:-1] for name in vars(base)}
    return own.isdisjoint(("__init_subclass__", "__getattribute__", "__slots__"))


def note_reads(value: Any, name: str, read: set[str]) -> None:
    """Let a dataclass note its attributes in `read` when they are read: its own name, a dot, and the attribute's."""
    kind, attributes = type(value), frozenset(vars(value))

    class Noting(kind):  # type: ignore[misc, valid-type]
        __class__ = property(lambda _: kind)  # as isinstance(), dataclasses.replace() and == see it

        def __getattribute__(self, attribute: str) -> Any:
            if attribute in attributes or attribute == "__dict__":
                read.update(f"{name}.{own}" for own in (attributes if attribute == "__dict__" else (attribute,)))
            return super().__getattribute__(attribute)

    object.__setattr__(value, "__class__", Noting)  # also of a frozen one


def state() -> tuple[object, ...]:
    """Settings of torch's and of Python's that a trace depends on."""
    return (
        torch.get_default_dtype(),
        torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu"),
        torch.is_inference_mode_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        __debug__,
    )


def structure(label: str, module: nn.Module) -> Iterator[str]:
    """The modules in one, as text: where one is in two places, and which tensors are not there."""
    numbers: dict[nn.Module, int] = {}
    for path, part in module.named_modules(remove_duplicate=False):
        number = numbers.setdefault(part, len(numbers))
        missing = [name for kind in (part._parameters, part._buffers) for name, value in kind.items() if value is None]
        kind = f"{type(part).__module__}.{type(part).__qualname__}"
        yield f"{label}.{path}: {number} {kind} {part.training} {missing}"
