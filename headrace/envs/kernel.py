"""KernelEnv: an environment as a user writes it, in plain scalar Python."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

from gymnasium.spaces import Space


class KernelEnv:
    """One world as static functions of scalars. Headrace compiles it; nothing here runs in training.

    A subclass gives

        observation_space, action_space     Gymnasium spaces: a float32 Box observation; Discrete, MultiDiscrete or
                                            Box actions
        max_steps                           steps until an episode is truncated; None for never
        class State(NamedTuple)             f32, i32, i8, u8, boolean or array(dtype, *shape) fields
        class Params(NamedTuple)            optional constants with defaults: one for all worlds, or one per world
        reset(s, p, key) -> State           s: the state to overwrite (array fields are changed in place)
        step(s, p, action, key) -> (State, reward, terminated)
        observe(s, p) -> (x, y, ...)        or observe(s, p, out), which fills out[...] (float32, observation's shape)
        render(s, p)                        optional: an RGB image uint8 [H, W, 3], for people

    all plain functions without `self`, in the words of `headrace.kernels.words` (sin, uniform, clip ...). `key` is the
    randomness: uniform(key, 0, low, high), draw numbers are yours to count. The same source runs un-compiled under a
    debugger, as SIMD code on the CPU, as a CUDA thread per world, and, where it has no `if` or loop statement, on
    batched torch tensors.
    """

    observation_space: ClassVar[Space]
    action_space: ClassVar[Space]
    max_steps: ClassVar[int | None] = None
    render_fps: ClassVar[int] = 30  # pictures a second, where it has a render(s, p)
    gymnasium_id: ClassVar[str | None] = None  # the original this world is a port of: evaluated and rendered there

    class Params(NamedTuple):
        """No parameters, unless a subclass names some."""

    State: ClassVar[type[Any]]
