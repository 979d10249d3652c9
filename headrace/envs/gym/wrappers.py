"""Wrappers chosen by settings: a time limit, stacked frames, scaled rewards, action masks."""

from __future__ import annotations

from dataclasses import dataclass

import gymnasium
from gymnasium.wrappers import FilterObservation, TimeLimit, TransformReward

from headrace.core.user_names import member
from headrace.envs.base import MultiAgentEnv
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.envs.gym.columns import as_number
from headrace.envs.gym.frames import StackedFrames
from headrace.envs.gym.info_mask import InfoMask
from headrace.envs.gym.wrapping import Wrapping, members_left, time_limit_of

AGENTS_WRAPPED = ("frame_stack", "time_limit", "reward_scale")  # what AgentsWrapped is for


def wrapped(env: gymnasium.Env, wrapping: Wrapping) -> gymnasium.Env:
    """Wrap an environment, also PettingZoo's, in the requested wrappers.

    Raises ValueError for a time_limit that is longer than the environment's own, which a wrapper cannot lengthen.
    """
    if not wrapping.asked():
        return env
    if not isinstance(env, gymnasium.Env):
        if wrapping.ignore:
            raise ValueError(f"ignore={wrapping.ignore} is for environments of one agent: wrap {env} before")
        from headrace.envs.gym.pettingzoo_wrappers import AgentsWrapped, WithState

        if wrapping.info_mask:
            raise ValueError(f"info_mask is for environments of one agent: {env} may have the mask in its observations")
        if wrapping.asked(*AGENTS_WRAPPED):
            env = AgentsWrapped(env, wrapping)
        return WithState(env) if wrapping.with_state and hasattr(env, "state_space") else env
    own = time_limit_of(env)
    if wrapping.time_limit is not None and wrapping.time_limit != own:
        if own is not None and own < wrapping.time_limit:
            raise ValueError(
                f"{env} ends its episodes after {own} steps, and time_limit={wrapping.time_limit} cannot lengthen "
                "them: make it with a longer limit"
            )
        env = TimeLimit(env, wrapping.time_limit)
    if wrapping.ignore:
        env = FilterObservation(env, members_left(env.observation_space, wrapping.ignore, env))
    if wrapping.frame_stack > 1:
        env = StackedFrames(env, wrapping.frame_stack)
    env = InfoMask(env) if wrapping.info_mask else env
    return env if wrapping.reward_scale == 1.0 else ScaledReward(env, wrapping.reward_scale)


@dataclass(frozen=True)
class NamedWrapper:
    """A wrapper by its name, file.py:Class or package.module:function, which each process imports for itself."""

    name: str

    def __call__(self, env: gymnasium.Env) -> gymnasium.Env:
        """Wrap an environment. Raises TypeError if the result is not an environment."""
        wrapped_env = member(self.name, "wrapper")(env)
        if not isinstance(wrapped_env, gymnasium.Env | MultiAgentEnv):
            raise TypeError(f"the wrapper {self.name} gave {wrapped_env!r} where an environment was expected")
        return wrapped_env  # type: ignore[return-value]


class ScaledReward(TransformReward):
    """Multiplies rewards by a number. InlineEnv divides reported returns by it again."""

    def __init__(self, env: gymnasium.Env, scale: float) -> None:
        super().__init__(env, lambda reward: as_number(reward, "reward") * scale)
        self.headrace_reward_scale = scale


def limited(cls: type[KernelEnv], time_limit: int) -> type[KernelEnv]:
    """A subclass whose episodes are truncated after time_limit steps. It is compiled and cached separately."""
    return type(cls.__name__, (cls,), {"max_steps": time_limit, "__module__": cls.__module__, "__doc__": cls.__doc__})
