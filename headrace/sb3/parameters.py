"""get_parameters() and set_parameters() of a model: the tensors of its policy and of its optimizers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch

from headrace.algorithms.adam import Adam
from headrace.algorithms.base import Algorithm
from headrace.algorithms.off_policy import OffPolicy
from headrace.core.text import shown
from headrace.core.types import Json

EXPLORATION = {"exploration", "random"}  # buffers of a policy that belong to its training, see policies.base.Policy

OPTIMIZERS = {  # of algorithms -> Stable-Baselines3's names
    **{"policy": "policy.optimizer", "actor": "actor.optimizer", "critics": "critic.optimizer"},
    "temperature": "ent_coef_optimizer",
}


def explore_from(algorithm: Algorithm, progress: float) -> None:
    """Set the exploration to that of a fraction of the training, 0 .. 1."""
    if isinstance(algorithm, OffPolicy):
        if hasattr(algorithm, "progress"):  # of epsilon-greedy exploration
            algorithm.progress = progress
        algorithm.explore()


def present(device: Any) -> Any:
    """The device, or the CPU if there is no such GPU, as in Stable-Baselines3. A line says so."""
    if str(device).startswith("cuda") and not torch.cuda.is_available():
        print(f"device {device} is not there: the CPU is used", file=sys.stderr)
        return "cpu"
    return device


def optimizers(algorithm: Any) -> list[Adam]:
    """The optimizers of an algorithm."""
    return [*algorithm.optimizers.values()] if hasattr(algorithm, "optimizers") else [algorithm.optimizer]


def optimizer_of(algorithm: str, kwargs: Mapping[str, Any]) -> Json:
    """Adam's eps and betas from optimizer_class and optimizer_kwargs. Raises ValueError for another optimizer."""
    kind, own = kwargs.get("optimizer_class"), dict(kwargs.get("optimizer_kwargs") or {})
    name = getattr(kind, "__name__", str(kind))
    if algorithm == "a2c" and name == "RMSpropTFLike":  # of A2C by default, too
        print("optimizer_class=RMSpropTFLike: the optimizer of A2C is Adam here", file=sys.stderr)
        return {}
    if name not in ("Adam", "None") or (own.keys() - {"eps", "betas"}):
        text = shown(own, 60)
        raise ValueError(
            f"optimizer_class={name!r}, optimizer_kwargs={text}: the optimizer is Adam, by its eps and betas"
        )
    betas = dict(zip(("beta1", "beta2"), own.pop("betas", ()), strict=False))
    return betas if algorithm == "qrdqn" else {**betas, **own}  # its eps is in of_sums()


def of_sums(given: Mapping[str, Any], settings: Json) -> Json:
    """Epsilon and gradient limit for QRDQN: gradients are sums over quantiles in sb3-contrib, and means here.

    Without optimizer_class its Adam has an epsilon of 0.01 / batch_size.
    """
    kwargs, number = given["policy_kwargs"] or {}, settings["quantiles"]
    own = (kwargs.get("optimizer_kwargs") or {}) if "optimizer_class" in kwargs else {"eps": 0.01 / given["batch_size"]}
    return {"adam_eps": own.get("eps", 1e-8) / number, "max_grad_norm": settings["max_grad_norm"] / number}


def without_replay(algorithm: Algorithm) -> dict[str, Any]:
    """The state of an algorithm from which another one continues with an empty replay buffer."""
    replay, here = getattr(algorithm, "replay", None), hasattr(algorithm, "replay")
    if here:
        algorithm.replay = None  # type: ignore[attr-defined]
    try:
        return algorithm.state_dict()
    finally:
        if here:
            algorithm.replay = replay  # type: ignore[attr-defined]


def get_parameters(algorithm: Algorithm) -> dict[str, dict[str, Any]]:
    """Copies of the policy's tensors, and of the optimizers', under Stable-Baselines3's names."""
    parts = _parts(algorithm, without_replay(algorithm))
    return parts | {"policy": {name: x for name, x in parts["policy"].items() if name not in EXPLORATION}}


def set_parameters(algorithm: Algorithm, given: Mapping[str, Mapping[str, Any]], exact_match: bool) -> None:
    """Load the tensors of get_parameters(). exact_match: False allows a part of them.

    Raises ValueError for other parts than get_parameters() has and, with exact_match, for missing parts; RuntimeError,
    as PyTorch's load_state_dict(), for missing and unknown tensors and other shapes. Nothing is loaded then.
    """
    state = without_replay(algorithm)
    parts = _parts(algorithm, state)
    if given.keys() - parts.keys() or (exact_match and given.keys() != parts.keys()):
        names = ", ".join(parts), ", ".join(given)
        raise ValueError(f"expected {names[0]}, got {names[1]}; exact_match=False takes a part")
    for part, tensors in given.items():
        own, tensors = parts[part], {name: x for name, x in tensors.items() if name not in EXPLORATION}
        missing = own.keys() - tensors.keys() - EXPLORATION
        if missing and exact_match:
            raise RuntimeError(f"{part} lacks {', '.join(sorted(missing))}; exact_match=False takes a part")
        for name, tensor in tensors.items():
            here, there = ([*torch.as_tensor(x[name]).shape] if name in x else "none" for x in (own, tensors))
            if here != there:
                raise RuntimeError(f"{part} has other tensors than this model: {name} is {there}, and {here} here")
            own[name] = torch.as_tensor(tensor)
    algorithm.load_state_dict(state)


def _parts(algorithm: Any, state: Json) -> dict[str, dict[str, Any]]:
    """The policy's tensors and the optimizers' of a state, which they share, under Stable-Baselines3's names."""
    own = state.get("optimizers") or {"policy": state["optimizer"]}
    left_out = () if getattr(algorithm.config, "learn_temperature", True) else ("temperature",)
    return {"policy": state["policy"], **{OPTIMIZERS[name]: x for name, x in own.items() if name not in left_out}}
