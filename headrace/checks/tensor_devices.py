"""CheckDevice: a policy or an env that checks the device of every tensor at each call."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch

from headrace.data.rollout import NestedValue, named_tensors
from headrace.envs.base import Env
from headrace.policies.base import Policy

P = ParamSpec("P")
R = TypeVar("R")

ENV_METHODS = ("reset", "step", "run", "run_random")
ACTING = ("act", "value", "initial_state", "bootstrap_value")
POLICY_METHODS = (*ACTING, "log_prob_entropy_value", "evaluate_rollout", "inputs", "rows", "update_statistics")


class CheckDevice:
    """Wraps a policy or an env, and checks the device of every tensor argument and result. Use it in tests, and to find
    a tensor on the wrong device.

        collector = InlineCollector(CheckDevice(env), CheckDevice(policy), num_steps, columns, seed)

    Calls, attribute reads and attribute writes are forwarded to `inside`.
    device: the expected device; None for the device of the env, or of the policy's parameters.
    Raises RuntimeError, naming the call, the tensor, its device and the expected device.
    """

    def __init__(self, inside: Env | Policy, device: torch.device | str | None = None) -> None:
        if device is None:
            device = next(inside.parameters()).device if isinstance(inside, torch.nn.Module) else inside.device
        self.__dict__.update(_inside=inside, _expected=torch.empty(0, device=device).device)
        if isinstance(inside, torch.nn.Module):
            self._check(type(inside).__name__, {"parameter": dict(inside.named_parameters())})
            self._check(type(inside).__name__, {"buffer": dict(inside.named_buffers())})

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.__dict__["_inside"], name)
        return self._checked(name, found) if name in (*ENV_METHODS, *POLICY_METHODS) and callable(found) else found

    def __setattr__(self, name: str, value: NestedValue) -> None:
        setattr(self._inside, name, value)

    def __repr__(self) -> str:
        return f"CheckDevice({self._inside!r}, {str(self._expected)!r})"

    def _checked(self, name: str, method: Callable[P, R]) -> Callable[P, R]:
        """Wrap a method such that its arguments and its result are checked."""
        call = f"{type(self._inside).__name__}.{name}()"

        @wraps(method)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            self._check(call, inspect.signature(method).bind(*args, **kwargs).arguments)
            result = method(*args, **kwargs)
            self._check(call, {"result": result})
            return result

        return checked

    def _check(self, call: str, values: Mapping[str, Any]) -> None:
        for path, tensor in named_tensors(values):
            if tensor.device != self._expected:
                raise RuntimeError(
                    f"{call}: {path} is on {tensor.device}, expected on {self._expected}. Create it there "
                    f"(device={str(self._expected)!r}), or move it once, before the loop"
                )
