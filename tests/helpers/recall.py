"""A small environment for tests: a cue is shown once, and must be repeated some steps later. It needs a recurrent
state."""

from __future__ import annotations

from typing import NamedTuple

from headrace.data.spaces import Box, Discrete
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.kernels.language.ops import f32, i32, randint

WAIT = 4  # steps after the cue, in which nothing is seen


class Recall(KernelEnv):
    """Observation: (cue -1 or 1, then 0; 1 in the last step). The last action earns 1 if it is the cue's, else -1."""

    observation_space = Box(-1, 1, (2,))
    action_space = Discrete(2)
    max_steps = None

    class State(NamedTuple):
        cue: i32
        time: i32

    def reset(s, p, key):
        return Recall.State(randint(key, 0, 2), 0)

    def step(s, p, action, key):
        over = s.time == WAIT
        reward = (1.0 if action == s.cue else -1.0) if over else 0.0
        return Recall.State(s.cue, s.time + 1), reward, over

    def observe(s, p):
        return f32(s.cue * 2 - 1) if s.time == 0 else 0.0, 1.0 if s.time == WAIT else 0.0
