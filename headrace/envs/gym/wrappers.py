"""Wrappers chosen by settings: a time limit, stacked frames, scaled rewards, action masks."""

from __future__ import annotations

from dataclasses import dataclass

import gymnasium
from gymnasium.spaces import Dict
from gymnasium.wrappers import FilterObservation, TimeLimit, TransformReward

from headrace.core.user_names import member
from headrace.envs.base import MultiAgentEnv
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.envs.gym.columns import as_number
from headrace.envs.gym.frames import StackedFrames
from headrace.envs.gym.info_mask import InfoMask
from headrace.envs.gym.wrapping import Wrapping


def wrapped(env: gymnasium.Env, wrapping: Wrapping) -> gymnasium.Env:
    """An environment in the wrappers that were requested; PettingZoo's as well.

    Raises ValueError for a time_limit that is longer than the environment's own, which a wrapper cannot lengthen.
    """
    if not wrapping.asked():
        return env
    if not isinstance(env, gymnasium.Env):
        if wrapping.ignore:
            raise ValueError(f"ignore={wrapping.ignore} is for environments of one agent: wrap {env} before")
        from headrace.envs.gym.pettingzoo_wrappers import AgentsWrapped

        if wrapping.info_mask:
            raise ValueError(f"info_mask is for environments of one agent: {env} may have the mask in its observations")

        return AgentsWrapped(env, wrapping)
    own = getattr(env.spec, "max_episode_steps", None)
    if wrapping.time_limit is not None and wrapping.time_limit != own:
        if own is not None and own < wrapping.time_limit:
            raise ValueError(
                f"{env} ends its episodes after {own} steps, and time_limit={wrapping.time_limit} cannot lengthen "
                "them: make it with a longer limit"
            )
        env = TimeLimit(env, wrapping.time_limit)
    if wrapping.ignore:
        env = _without(env, wrapping.ignore)
    if wrapping.frame_stack > 1:
        env = StackedFrames(env, wrapping.frame_stack)
    env = InfoMask(env) if wrapping.info_mask else env
    return env if wrapping.reward_scale == 1.0 else ScaledReward(env, wrapping.reward_scale)


def _without(env: gymnasium.Env, names: tuple[str, ...]) -> gymnasium.Env:
    """An environment whose observations lack some members. Raises ValueError for those that they do not have."""
    space = env.observation_space
    members = list(space.spaces) if isinstance(space, Dict) else []
    if missing := [name for name in names if name not in members]:
        has = f"members {', '.join(members)}" if members else f"no members: they are {space}"
        advice = "" if members else "; wrappers come first: leave ignore out, or registered ones (--no-registered)"
        raise ValueError(f"ignore has {', '.join(missing)}, and the observations of {env} have {has}{advice}")
    if not (rest := [name for name in members if name not in names]):
        raise ValueError(f"ignore has all members of the observations of {env}: {', '.join(members)}")
    return FilterObservation(env, rest)


@dataclass(frozen=True)
class NamedWrapper:
    """A wrapper by its name, file.py:Class or package.module:function, which each process imports for itself."""

    name: str

    def __call__(self, env: gymnasium.Env) -> gymnasium.Env:
        """The environment in it. Raises TypeError where that gives no environment."""
        wrapped_env = member(self.name, "wrapper")(env)
        if not isinstance(wrapped_env, gymnasium.Env | MultiAgentEnv):
            raise TypeError(f"the wrapper {self.name} gave {wrapped_env!r} where an environment was expected")
        return wrapped_env  # type: ignore[return-value]


class ScaledReward(TransformReward):
    """Rewards multiplied by a number. InlineEnv divides the returns it reports by it again."""

    def __init__(self, env: gymnasium.Env, scale: float) -> None:
        super().__init__(env, lambda reward: as_number(reward, "reward") * scale)
        self.headrace_reward_scale = scale


def limited(cls: type[KernelEnv], time_limit: int) -> type[KernelEnv]:
    """A subclass whose episodes are truncated after time_limit steps. It is compiled and cached separately."""
    return type(cls.__name__, (cls,), {"max_steps": time_limit, "__module__": cls.__module__, "__doc__": cls.__doc__})
