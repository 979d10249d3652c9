"""Flip bits until they are those of a goal. Andrychowicz et al. 2017, arXiv:1707.01495, section 3.1."""

from __future__ import annotations

from typing import NamedTuple

from headrace.data.spaces import Box, Dict, Discrete
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.kernels.language.ops import array, i8, i32, randint

BITS = 30
VECTOR = Box(0.0, 1.0, (BITS,))


class BitFlip(KernelEnv):
    """Flip one of 30 bits in each step. The reward is 0 when all bits equal the goal's, which ends the episode, and -1
    before.

    Bits and goal are random at first. Only hindsight finds a reward among 2^30 states. An episode with a return above
    -30 is solved. `bits`: number of bits in use; the others stay 0, and flipping them has no effect.
    """

    observation_space = Dict({"observation": VECTOR, "achieved_goal": VECTOR, "desired_goal": VECTOR})
    action_space = Discrete(BITS)
    max_steps = BITS

    class Params(NamedTuple):
        bits: i32 = BITS  # in use

    class State(NamedTuple):
        now: array(i8, BITS)
        goal: array(i8, BITS)

    def reset(s, p, key):
        for bit in range(BITS):
            s.now[bit] = randint(key, 2 * bit, 2) if bit < p.bits else 0
            s.goal[bit] = randint(key, 2 * bit + 1, 2) if bit < p.bits else 0
        return BitFlip.State(s.now, s.goal)

    def step(s, p, action, key):
        s.now[action] = 1 - s.now[action] if action < p.bits else 0
        wrong = 0
        for bit in range(BITS):
            wrong += 1 if s.now[bit] != s.goal[bit] else 0
        return BitFlip.State(s.now, s.goal), 0.0 if wrong == 0 else -1.0, wrong == 0

    def observe(s, p, out):
        for bit in range(BITS):
            out[bit] = s.now[bit]
            out[BITS + bit] = s.now[bit]
            out[2 * BITS + bit] = s.goal[bit]

    def compute_reward(achieved, desired):
        return (achieved == desired).all(-1).float() - 1

    def compute_terminated(achieved, desired):
        return (achieved == desired).all(-1)
