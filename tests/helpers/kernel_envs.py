"""Environments for tests of the backends, and functions that step one and compare it with another."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from headrace.data.rollout import Rollout
from headrace.data.spaces import Box, Discrete, MultiDiscrete, action_column, env_columns
from headrace.envs.builtin.acrobot import Acrobot
from headrace.envs.builtin.cartpole import CartPole
from headrace.envs.builtin.mountain_car import MountainCar
from headrace.envs.builtin.mountain_car_continuous import MountainCarContinuous
from headrace.envs.builtin.pendulum import Pendulum
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.kernels.language.ir import EnvIR
from headrace.kernels.language.ops import (
    array,
    bits,
    boolean,
    clip,
    f32,
    i8,
    i32,
    log,
    normal,
    randint,
    select,
    sqrt,
    u32,
    uniform,
)

GAIN = np.array([0.5, -1.0, 2.0], np.float32)


def damped(x, factor):
    """A helper, followed."""
    return x * factor if abs(x) > 0.5 else x


class Medley(KernelEnv):
    """Every kind of field, parameter and draw, no branch: runs on all targets."""

    observation_space = Box(-np.inf, np.inf, (9,))
    action_space = MultiDiscrete([3, 2])
    max_steps = 7

    class Params(NamedTuple):
        drift: f32 = 0.25
        lanes: i32 = 3
        mirrored: boolean = False

    class State(NamedTuple):
        x: f32
        y: f32
        count: i32
        small: i8
        flag: boolean
        code: u32
        cells: array(i8, 2, 2)
        line: array(f32, 3)

    def reset(s, p, key):
        s.cells[:, :] = 0 if p.mirrored else 1
        s.cells[1, 0] = randint(key, 5, 4)
        s.line[0] = uniform(key, 6, 0.0, p.drift)
        s.line[1] = normal(key, 7, 1.0, 2.0)
        s.line[2] = 0.0
        return Medley.State(
            normal(key, 0, 0.0, 1.0),
            uniform(key, 1, -1.0, 1.0),
            0,
            randint(key, 2, 100),
            False,
            bits(key, 3),
            s.cells,
            s.line,
        )

    def step(s, p, action, key):
        push = GAIN[action[0]] + p.drift * (2.0 if action[1] == 1 else 1.0)
        x = damped(s.x + push, 0.5) + uniform(key, 0, -0.1, 0.1)
        count = min(s.count + p.lanes, 40) % 17 - 3 // 2
        old = s.cells[0, 1]
        s.cells[0, 1] = s.cells[1, 0]
        s.cells[1, 0] = old + 1
        s.line[2] += normal(key, 1, 0.0, 0.5)
        code = (s.code * 2654435761) ^ (s.code >> 7)
        flag = not s.flag and (x > 0.0 or s.count > 3)
        over = select(randint(key, 2, 11) == 0, True, False)
        reward = log(1.0 + abs(x)) + sqrt(abs(s.y)) - max(x, s.y, 0.0) // 2 + x**2 % 3.0
        # the two swap places: neither may be overwritten before both are read
        return Medley.State(s.y, x, count, clip(s.small - 3, -5, 100), flag, code, s.cells, s.line), reward, over

    def observe(s, p):
        total = s.cells[0, 0] + s.cells[0, 1] * 10 + s.cells[1, 0] * 100 + s.cells[1, 1] * 1000
        return s.x, s.y, s.count, s.small, s.flag, s.code % 1000, total, s.line[1], s.line[2]


BRANCH_FREE = [CartPole, Pendulum, Acrobot, MountainCar, MountainCarContinuous]


def rollout(ir: EnvIR, num_steps: int, num_envs: int, device: str = "cpu") -> Rollout:
    """A rollout with the columns an environment reads and writes, and random actions."""
    columns = env_columns(ir.observation_space) | {"action": action_column(ir.action_space)}
    made = Rollout(num_steps, num_envs, columns, device)
    generator = torch.Generator().manual_seed(0)
    shape = made.action.shape
    if isinstance(ir.action_space, Discrete):
        made.action.copy_(torch.randint(0, int(ir.action_space.n), shape, generator=generator))
    elif isinstance(ir.action_space, MultiDiscrete):
        for k, size in enumerate(ir.action_space.nvec.tolist()):
            made.action[..., k].copy_(torch.randint(0, size, shape[:2], generator=generator))
    else:
        made.action.copy_(3.0 * torch.randn(shape, generator=generator))
    return made


def assert_steps_agree(envs, reference, num_steps, seed, atol=1e-5, device="cpu"):
    """Step both from the same state again and again; every column and the whole state agree within float32."""
    ours = rollout(envs.ir, num_steps, envs.num_envs, device)
    theirs = rollout(envs.ir, num_steps, envs.num_envs)
    envs.reset(ours, seed)
    reference.reset(theirs, seed)
    _assert_rows_agree(envs, reference, ours.observation[0], theirs.observation[0], atol)
    ends = 0
    for t in range(num_steps):
        envs.load_state_dict(reference.state_dict())
        ours.valid[t].copy_(theirs.valid[t])
        envs.step(ours, t)
        reference.step(theirs, t)
        for name in ("terminated", "truncated", "episode_length"):
            assert torch.equal(getattr(ours, name)[t].cpu(), getattr(theirs, name)[t]), name
        assert torch.equal(ours.valid[t + 1].cpu(), theirs.valid[t + 1])
        _assert_close(ours.reward[t], theirs.reward[t], atol)
        _assert_close(ours.episode_return[t], theirs.episode_return[t], atol)
        _assert_rows_agree(envs, reference, ours.observation[t + 1], theirs.observation[t + 1], atol)
        ends += int((~theirs.valid[t + 1]).sum())
    return ends


def _assert_rows_agree(envs, reference, observation, wanted, atol):
    _assert_close(observation, wanted, atol)
    for (name, ours), theirs in zip(envs.state().items(), reference.state().values(), strict=True):
        assert ours.dtype == theirs.dtype or theirs.dtype == torch.uint16, name
        _assert_close(ours, theirs, atol)


def _assert_close(ours, theirs, atol):
    torch.testing.assert_close(ours.cpu().double(), theirs.double(), atol=atol, rtol=1e-5)
