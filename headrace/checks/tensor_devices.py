"""Are all tensors where they should be? A policy or an env that says so at each call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from headrace.data.rollout import Group, Rollout

CHECKED = (  # what collecting and learning call; all else is forwarded as it is
    *("reset", "step", "run", "run_random"),
    *(
        "act",
        "log_prob_entropy_value",
        "value",
        "evaluate_rollout",
        "inputs",
        "rows",
        "initial_state",
        "update_statistics",
    ),
)


class CheckDevice:
    """A policy or an env in which every tensor that goes in or comes out is looked at: for tests and for the search of
    a tensor that is on the wrong device.

        collector = Collector(CheckDevice(env), CheckDevice(policy), num_steps, columns, seed)

    All arguments go on to it as they are (seed, memory, noise, whatever comes), attributes are read and set there.
    device: the one expected; where None, that of the env, or of the policy's parameters.
    Raises RuntimeError that names the call, the tensor, its device and the one expected.
    """

    def __init__(self, inside: Any, device: torch.device | str | None = None) -> None:
        expected = torch.empty(0, device=_device_of(inside) if device is None else device).device
        self.__dict__.update(_inside=inside, _expected=expected)
        if isinstance(inside, torch.nn.Module):
            self._look(type(inside).__name__, {"parameter": dict(inside.named_parameters())})
            self._look(type(inside).__name__, {"buffer": dict(inside.named_buffers())})

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.__dict__["_inside"], name)
        return self._checked(name, found) if name in CHECKED and callable(found) else found

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._inside, name, value)

    def __repr__(self) -> str:
        return f"CheckDevice({self._inside!r}, {str(self._expected)!r})"

    def _checked(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """A method that looks at what it is given and at what it gives."""
        call = f"{type(self._inside).__name__}.{name}()"

        @wraps(method)
        def checked(*arguments: Any, **named: Any) -> Any:
            given = inspect.signature(method).bind(*arguments, **named).arguments
            self._look(call, given)
            result = method(*arguments, **named)
            self._look(call, {"result": result})
            return result

        return checked

    def _look(self, call: str, values: Mapping[str, Any]) -> None:
        for path, tensor in _tensors(values):
            if tensor.device != self._expected:
                raise RuntimeError(
                    f"{call}: {path} is on {tensor.device}, expected on {self._expected}. Make it there "
                    f"(device={str(self._expected)!r}), or move it once, before the loop"
                )


def _device_of(inside: Any) -> torch.device:
    """Where an env says it is, or where a policy's parameters are."""
    if isinstance(inside, torch.nn.Module):
        return next(inside.parameters()).device
    device: torch.device = inside.device
    return device


def _tensors(value: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """All tensors in a value, however deep, and how one comes to them: "rollout.observation.place"."""
    if isinstance(value, Tensor):
        yield path, value
        return
    for name, member in _members(value):
        yield from _tensors(member, f"{path}{name}" if path else name.removeprefix("."))


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Rollout):
        yield from ((f".{name}", getattr(value, name)) for name in value.columns)
    elif isinstance(value, Group | Mapping):
        yield from ((f".{name}", member) for name, member in (value if isinstance(value, Group) else value.items()))
    elif hasattr(value, "_fields"):
        yield from ((f".{name}", getattr(value, name)) for name in value._fields)
    elif isinstance(value, list | tuple):
        yield from ((f"[{place}]", member) for place, member in enumerate(value))
