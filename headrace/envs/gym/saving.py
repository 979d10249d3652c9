"""Save Gymnasium environments whose class has state_dict() and load_state_dict(state).

    class Walk(gymnasium.Env):
        def state_dict(self):
            return {"position": self.position}
        def load_state_dict(self, state):
            self.position = state["position"]

`np_random` and the Gymnasium wrappers listed below are saved here. Any other wrapper needs the two methods, too, which
may save nothing. An environment in a wrapper without them cannot be saved.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import wrappers
from torch import Tensor

from headrace.core.text import shown
from headrace.core.types import StateDict
from headrace.envs.gym.columns import NUMBERS
from headrace.envs.gym.frames import StackedFrames
from headrace.envs.gym.own_rewards import OwnRewards
from headrace.envs.gym.wrappers import ScaledReward

# wrappers with known state -> the attributes that change
CHANGING: dict[type, tuple[str, ...]] = {
    wrappers.TimeLimit: ("_elapsed_steps",),
    wrappers.OrderEnforcing: ("_has_reset",),
    wrappers.FrameStackObservation: ("obs_queue", "padding_value"),
    StackedFrames: ("frames",),
    wrappers.TimeAwareObservation: ("timesteps",),
    OwnRewards: ("_sum", "_steps"),
    wrappers.RecordEpisodeStatistics: ("episode_count", "episode_returns", "episode_lengths"),
    wrappers.NormalizeObservation: (),  # its statistics are saved for all environments: see envs.gym.learned
    wrappers.NormalizeReward: ("discounted_reward",),  # and so are its
    **dict.fromkeys((wrappers.PassiveEnvChecker, wrappers.ClipAction, wrappers.RescaleAction), ()),
    **dict.fromkeys((ScaledReward, wrappers.ClipReward, wrappers.DtypeObservation, wrappers.FilterObservation), ()),
    **dict.fromkeys((wrappers.FlattenObservation, wrappers.GrayscaleObservation, wrappers.RescaleObservation), ()),
    **dict.fromkeys((wrappers.ReshapeObservation, wrappers.ResizeObservation), ()),
}
METHODS = ("state_dict", "load_state_dict")


def savable(env: object) -> bool:
    """Tell whether an environment with all of its wrappers can be saved."""
    return isinstance(env, gymnasium.Env) and all(
        type(layer) in CHANGING or all(callable(getattr(type(layer), name, None)) for name in METHODS)
        for layer in _layers(env)
    )


def state_of(env: gymnasium.Env) -> StateDict:
    """A copy of the state of a savable() environment. Raises TypeError for values that a checkpoint cannot hold."""
    generator = getattr(env.unwrapped, "_np_random", None)
    return {
        "layers": [_copy(_own_state(layer), f"the state of {type(layer).__name__}") for layer in _layers(env)],
        "np_random": generator.bit_generator.state if isinstance(generator, np.random.Generator) else None,
    }


def restore(env: gymnasium.Env, state: StateDict) -> None:
    """Continue from state_of(). Raises ValueError for another environment, or different wrappers."""
    layers = list(_layers(env))
    if not savable(env) or len(layers) != len(state["layers"]):
        names = ", ".join(type(layer).__name__ for layer in layers)
        raise ValueError(
            f"the saved state is of an environment in {len(state['layers'])} layers that can be restored, and this one "
            f"is made of {names}: make it as it was made for the run that is resumed"
        )
    for layer, saved in zip(layers, state["layers"], strict=True):
        if type(layer) in CHANGING:
            for name, value in saved.items():
                before = getattr(layer, name)
                setattr(layer, name, deque(value, before.maxlen) if isinstance(before, deque) else value)
        else:
            layer.load_state_dict(_copy(saved, ""))
    if state["np_random"] is not None:
        env.unwrapped.np_random.bit_generator.state = state["np_random"]


def _layers(env: Any) -> Iterator[Any]:
    """The wrappers of an environment from outside in, and the environment itself."""
    while isinstance(env, gymnasium.Wrapper):
        yield env
        env = env.env
    yield env


def _own_state(layer: Any) -> Any:
    known = CHANGING.get(type(layer))
    return layer.state_dict() if known is None else {name: getattr(layer, name) for name in known}


def _copy(value: Any, where: str) -> Any:
    """Copy a tree. Raises TypeError for values that a checkpoint cannot hold. where: its name, for the message."""
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in NUMBERS:
        return value.copy()
    if isinstance(value, Tensor):
        return value.detach().clone()
    if value is None or isinstance(value, str | int | float):
        return value
    if isinstance(value, dict):
        return {key: _copy(member, f"{where}, {shown(key)}") for key, member in value.items()}
    if isinstance(value, tuple | list | deque):
        members = [_copy(member, f"{where}, {at}") for at, member in enumerate(value)]
        return tuple(members) if isinstance(value, tuple) else members
    raise TypeError(
        f"{where}, is a {type(value).__name__}: state_dict() may return numbers, strings, None, arrays and tensors of "
        "numbers, and dicts, lists and tuples of these"
    )
