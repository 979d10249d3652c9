"""Mere repetitions are written out, so that LLVM vectorises over environments; other loops stay loops."""

from __future__ import annotations

import ast
from typing import NamedTuple

import numpy as np
import pytest
import torch

from headrace.data.rollout import Rollout
from headrace.data.spaces import Box, Discrete, action_column, env_columns
from headrace.envs.compiled.env import CompiledEnv
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.envs.compiled.single_env import single
from headrace.kernels.language.ops import f32
from headrace.kernels.language.read import read


def decay(times):
    """A environment that is multiplied down `times` times a step."""

    class Decay(KernelEnv):
        observation_space = Box(-np.inf, np.inf, (1,))
        action_space = Discrete(2)
        max_steps = 10

        class State(NamedTuple):
            x: f32

        def reset(s, p, key):
            return Decay.State(1.0)

        def step(s, p, action, key):
            x = s.x
            for _ in range(times):
                y = 0.5 * x
                x = y + 0.125 * action
            return Decay.State(x), x, False

        def observe(s, p):
            return (s.x,)

    return Decay


def index_read(times):
    class Count(decay(times)):  # type: ignore[misc]
        def step(s, p, action, key):
            x = s.x
            for i in range(times):
                x = 0.5 * x + i
            return Count.State(x), x, False

    return Count


def loops(cls):
    step = next(function for function in read(cls).functions if function.node.name == "env_step")
    return sum(isinstance(node, ast.For) for node in ast.walk(step.node))


@pytest.mark.parametrize("cls, left", [(decay(3), 0), (decay(100_000), 1), (index_read(3), 1)])
def test_which_loops_are_left(cls, left):
    assert loops(cls) == left


def test_no_repetition_is_nothing():
    assert loops(decay(0)) == 0


@pytest.mark.parametrize("backend", ["cpu", "torch"])
def test_written_out_is_the_same_as_looped(backend):
    cls = decay(3)
    env, plain = CompiledEnv(cls, 4, backend), single(cls)
    rollout = Rollout(5, 4, env_columns(env.observation_space) | {"action": action_column(env.action_space)})
    env.reset(rollout, 0)
    plain.reset(seed=0)
    rollout.action.copy_(torch.tensor([1, 0, 1, 1, 0]).view(5, 1).expand(5, 4))
    for t in range(5):
        env.step(rollout, t)
        observation, *_ = plain.step(int(rollout.action[t, 0]))
        torch.testing.assert_close(rollout.observation[t + 1], torch.from_numpy(observation).expand(4, 1))
