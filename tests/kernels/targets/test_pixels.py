"""Observations that the kernels draw: the same bytes on every target, and frames that are stacked."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch
from helpers.kernel_envs import rollout

from headrace.data.spaces import Box, Discrete
from headrace.envs.builtin.pixel_catch import PixelCatch
from headrace.envs.builtin.pixel_pendulum import PixelPendulum
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.envs.compiled.single_env import single
from headrace.kernels.language.errors import EnvError
from headrace.kernels.language.ops import array, boolean, cos, exp, f32, floor, i8, i32, sqrt, tan, uniform
from headrace.kernels.language.read import read
from headrace.kernels.targets.cpu.env import CpuEnvs
from headrace.kernels.targets.deviations import deviation
from headrace.kernels.targets.torch.env import TorchEnvs

SHADES = np.array([3.0, 40.5, 250.0], np.float32)


def last_bits(x):
    """A grey from the last bits of a float below 4: a fused product, or a word computed otherwise, is another grey."""
    shifted = x * 1048576.0
    return 255.0 * (shifted - floor(shifted))


def shade(x, contrast):
    """A helper of pixel() alone."""
    return last_bits(0.002 * contrast * x + 0.7)


class Colours(KernelEnv):
    """Two stacked frames of three colours, from every kind of field, of words that a compiler might fuse."""

    observation_space = Box(0, 255, (6, 5, 7), np.uint8)
    action_space = Discrete(3)
    max_steps = 3
    frames = 2

    class Params(NamedTuple):
        contrast: f32 = 333.3
        inverted: boolean = False

    class State(NamedTuple):
        x: f32
        count: i32
        spots: array(i8, 2)

    def reset(s, p, key):
        s.spots[0] = 3
        s.spots[1] = -2
        return Colours.State(uniform(key, 0, 0.0, 1.0), 0, s.spots)

    def step(s, p, action, key):
        s.spots[1] += action
        return Colours.State(uniform(key, 0, 0.0, 1.0), s.count + 1, s.spots), 1.0, False

    def pixel(s, p, row, column):
        slope = 0.3 * row - s.x * column
        red = last_bits(cos(slope) * exp(-s.x * column) + 1.5 / (1.0 + sqrt(slope * slope + s.x)))
        green = SHADES[(row + s.count) % 3] + s.spots[1] * floor(4.0 * s.x)
        blue = shade(s.x, p.contrast) if column > 3 else last_bits(tan(s.x) - s.x * row)
        return red, 255.0 - green if p.inverted else green, blue


class Chequered(KernelEnv):
    """One frame [H, W] of a board that is looked up, with an `if`: not for torch."""

    observation_space = Box(0, 255, (4, 6), np.uint8)
    action_space = Discrete(2)
    max_steps = 4

    class State(NamedTuple):
        board: array(i8, 4, 6)

    def reset(s, p, key):
        for row in range(4):
            for column in range(6):
                s.board[row, column] = uniform(key, row * 6 + column, 0.0, 100.0)
        return Chequered.State(s.board)

    def step(s, p, action, key):
        s.board[action, 1] += 1
        return Chequered.State(s.board), 0.0, False

    def pixel(s, p, row, column):
        if row == 0 and column == 0:
            return -7.5
        return s.board[row, column] * 2.5


WORLDS = [PixelPendulum, PixelCatch, Colours, Chequered]


def drawn(envs, num_steps, seed=3):
    """A rollout from the first step on, with random actions."""
    columns = rollout(envs.ir, num_steps, envs.num_envs)
    envs.reset(columns, seed)
    for t in range(num_steps):
        envs.step(columns, t)
    return columns


@pytest.mark.parametrize("cls", [PixelPendulum, PixelCatch, Colours])
@pytest.mark.parametrize("each", [False, True])
def test_torch_draws_the_same_bytes_of_the_same_states(cls, each):
    """State for state: steps differ by a float32's last bit between targets, and what is drawn of a state does not."""
    ir, params = read(cls), {"contrast": np.linspace(100.0, 500.0, 6), "inverted": True} if each else {}
    params = params if cls is Colours else {}
    ours, theirs = TorchEnvs(ir, 6, params), CpuEnvs(ir, 6, params, threads=1)
    mine, wanted = rollout(ir, 12, 6), rollout(ir, 12, 6)
    ours.reset(mine, 5)
    theirs.reset(wanted, 5)
    assert torch.equal(mine.observation[0], wanted.observation[0])
    for t in range(12):
        theirs.step(wanted, t)
        ours.load_state_dict(theirs.state_dict())
        mine.observation[t].copy_(wanted.observation[t])
        mine.valid[t].copy_(wanted.valid[t])
        ours._observe(mine, t + 1)
        assert torch.equal(mine.observation[t + 1], wanted.observation[t + 1])
    assert wanted.observation.float().std() > 10


@pytest.mark.parametrize("cls", WORLDS)
def test_plain_python_draws_the_same_bytes(cls):
    """Plain Python draws the kernel's own states, after a reset and after each step."""
    ir = read(cls)
    envs, columns = CpuEnvs(ir, 1, threads=1), rollout(ir, 12, 1)
    envs.reset(columns, 5)
    plain = single(cls)
    seen, _ = plain.reset(seed=5)
    for t in range(12):
        assert seen.dtype == np.uint8 and np.array_equal(seen, columns.observation[t, 0].numpy())
        envs.step(columns, t)
        if columns.valid[t, 0]:
            plain.step(columns.action[t, 0].numpy())
            state = {name: value[0].numpy() for name, value in envs.state().items()}
            kept = {n: type(getattr(plain.state, n))(v) if v.ndim == 0 else v for n, v in state.items()}
            plain.state = plain.state._replace(**kept)
            seen = plain._pixels.stacked(plain.state, columns.observation[t, 0].numpy())
        else:
            seen, _ = plain.reset()


def test_bytes_are_rounded_and_kept_within_bounds():
    ir = read(Chequered)
    envs, columns = CpuEnvs(ir, 2, threads=1), rollout(ir, 1, 2)
    envs.reset(columns, 0)
    board = torch.arange(24).view(4, 6).repeat(2, 1, 1) * 5
    envs.set_state({"board": board.to(torch.int8)})
    envs.step(columns, 0)
    action = columns.action[0].long()
    board[torch.arange(2), action, 1] += 1
    wanted = (board * 2.5 + 0.5).floor().clamp(0, 255)
    wanted[:, 0, 0] = 0  # -7.5
    assert torch.equal(columns.observation[1].float(), wanted)


def test_frames_are_stacked_and_begin_alike():
    columns = drawn(CpuEnvs(read(Colours), 5, threads=1), 11)
    seen, begins = columns.observation, ~columns.valid
    for t in range(11):
        fresh = begins[t]
        assert torch.equal(seen[t + 1, ~fresh, :3], seen[t, ~fresh, 3:])
        assert torch.equal(seen[t + 1, fresh, :3], seen[t + 1, fresh, 3:])
        assert not torch.equal(seen[t + 1, :, 3:], seen[t, :, 3:])
    assert torch.equal(seen[0, :, :3], seen[0, :, 3:]) and begins[:-1].sum() == 10


@pytest.mark.parametrize("cls", [PixelPendulum, Colours, Chequered])
def test_bits_do_not_depend_on_threads_nor_on_the_number_of_worlds(cls):
    ir = read(cls)
    alone = drawn(CpuEnvs(ir, 30, threads=1), 6)
    assert torch.equal(drawn(CpuEnvs(ir, 30, threads=2), 6).observation, alone.observation)
    part = CpuEnvs(ir, 4, threads=1, first_env=7)
    some = alone[:, 7:11]
    wanted = some.observation.clone()
    some.observation.zero_()
    part.reset(some, 3)  # a slice of a rollout is a rollout
    for t in range(6):
        part.step(some, t)
    assert torch.equal(some.observation, wanted)


@pytest.mark.parametrize("make", [CpuEnvs, TorchEnvs])
def test_saved_worlds_go_on_with_their_frames(make):
    """The older frames are in the rollout's edge row, which the caller restores."""
    ir = read(PixelPendulum)
    envs = make(ir, 3)
    first, second = rollout(ir, 4, 3), rollout(ir, 4, 3)
    envs.reset(first, 3)
    for t in range(4):
        envs.step(first, t)
    saved, edge = envs.state_dict(), first.observation[-1].clone()
    first.continue_from(first)
    for t in range(4):
        envs.step(first, t)
    other = make(ir, 3)
    other.load_state_dict(saved)
    second.observation[0].copy_(edge)
    second.valid[0].fill_(True)
    second.action.copy_(first.action)
    for t in range(4):
        other.step(second, t)
    assert torch.equal(first.observation, second.observation)


def test_targets_are_told_apart_by_their_bytes():
    ir = read(Colours)
    assert deviation(CpuEnvs(ir, 32), TorchEnvs(ir, 32), 10, seed=1).passed
    wrong = deviation(CpuEnvs(ir, 32), TorchEnvs(ir, 32, {"contrast": 332.0}), 10, seed=1)
    assert wrong.column == "observation" and not wrong.passed


def test_a_branch_is_refused_on_torch_alone():
    with pytest.raises(EnvError, match="has an `if` statement"):
        TorchEnvs(read(Chequered), 2)


def test_plain_python_shows_what_is_seen():
    env = single(PixelPendulum, render_mode="rgb_array")
    seen, _ = env.reset(seed=1)
    pixel_functions = env.render()
    assert pixel_functions.shape == (42, 42, 3) and np.array_equal(pixel_functions[..., 0], seen[1])
