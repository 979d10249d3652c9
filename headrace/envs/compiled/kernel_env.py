"""KernelEnv: an environment that a user writes in plain scalar Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

from gymnasium.spaces import Space


class KernelEnv:
    """One environment as static functions of scalars. Headrace compiles it; nothing here runs in training.

    A subclass gives

        observation_space, action_space     Gymnasium spaces: a float32 Box observation, a Dict of vectors, whose
                                            entries observe() gives in the order of FlatDict, or images Box(0, 255, ...,
                                            uint8); Discrete, MultiDiscrete or Box actions
        max_steps                           steps until an episode is truncated; None for never
        class State(NamedTuple)             f32, i32, i8, u8, boolean or array(dtype, *shape) fields
        class Params(NamedTuple)            optional constants with defaults, for all environments or for each
        reset(s, p, key) -> State           s: the state to overwrite (array fields are changed in place)
        step(s, p, action, key) -> (State, reward, terminated)
        observe(s, p) -> (x, y, ...)        or observe(s, p, out), which fills out[...] (float32, observation's shape)
        action_mask(s, p) -> (bool, ...)    optional: which choices of the action are allowed (of a MultiDiscrete those
                                            of all components); or action_mask(s, p, out), which fills out[...] with
                                            0 and 1
        pixel(s, p, row, column) -> gray    instead of observe, where observations are images [H, W] or [C, H, W]: one
                                            number from 0 to 255, or a tuple of one for each channel of a frame
        frames                              images stacked in an observation as channels, the newest last
        num_agents                          of several agents: observe(s, p, agent) or observe(s, p, agent, out), and
                                            so action_mask; action[agent] in step, which returns a tuple of rewards
        mover                               a field of State, i32, where agents take turns: the agent whose action the
                                            next step reads, for self-play
        agents, groups                      optional: their names; name -> agents that share a policy
        num_entities, phases, reset_phases  optional, for many alike parts: functions for one entity
        render(s, p)                        optional: an RGB image uint8 [H, W, 3], for videos
        from_original(env) -> State         optional, for `headrace check MyEnv --against Id`: reads the state of Id
        to_original(env, state)             and sets it. Not needed where env.state holds the fields in order

    all plain functions without `self`, which call the functions of `kernels.language.ops` (sin, uniform, clip ...).
    `key` is for random numbers: uniform(key, 0, low, high), where each draw needs its own index. The same source runs
    uncompiled under a debugger, as SIMD code on the CPU, as one CUDA thread per environment, and, where it has no `if`
    or loop statement, on batched torch tensors.
    """

    observation_space: ClassVar[Space]
    action_space: ClassVar[Space]
    max_steps: ClassVar[int | None] = None
    frames: ClassVar[int] = 1
    num_agents: ClassVar[int] = 1
    agents: ClassVar[tuple[str, ...] | None] = None
    groups: ClassVar[Mapping[str, tuple[str, ...]] | None] = None
    num_entities: ClassVar[int | None] = None
    phases: ClassVar[tuple[Callable[..., None], ...]] = ()
    reset_phases: ClassVar[tuple[Callable[..., None], ...]] = ()
    render_fps: ClassVar[int] = 30  # images a second, where it has a render(s, p)
    gymnasium_id: ClassVar[str | None] = None  # the reference that this is a port of, used for evaluation and videos

    class Params(NamedTuple):
        """No parameters, unless a subclass has some."""

    State: ClassVar[type[Any]]
