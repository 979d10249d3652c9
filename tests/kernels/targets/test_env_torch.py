"""The torch backend against the CPU kernel, and what it refuses."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from helpers.kernel_envs import BRANCH_FREE, Medley, assert_steps_agree, rollout
from torch.utils._python_dispatch import TorchDispatchMode

from headrace.data.spaces import Box, Discrete
from headrace.envs.builtin.cartpole import CartPole
from headrace.envs.builtin.catch import Catch
from headrace.envs.builtin.grid_world import GridWorld
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.kernels.language.errors import EnvError
from headrace.kernels.language.ops import array, f32, i32, uniform
from headrace.kernels.language.read import read
from headrace.kernels.targets.cpu.env import CpuEnvs
from headrace.kernels.targets.torch.env import TorchEnvs

WAITS = {  # operators that wait for the device, or copy to it from memory of the host
    torch.ops.aten._local_scalar_dense.default,
    torch.ops.aten.nonzero.default,
    torch.ops.aten.masked_select.default,
    torch.ops.aten.equal.default,
    torch.ops.aten.lift_fresh.default,
    torch.ops.aten._to_copy.default,
}


class NoWaiting(TorchDispatchMode):
    """Fails on operators that would wait for a device."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        moves = function is torch.ops.aten._to_copy.default and not (kwargs or {}).get("device")
        assert function not in WAITS or moves, f"{function} waits for the device"
        return function(*args, **kwargs or {})


@pytest.mark.parametrize("cls", [*BRANCH_FREE, Catch, Medley])
def test_steps_agree_with_the_cpu_kernel(cls):
    ir = read(cls)
    ends = assert_steps_agree(TorchEnvs(ir, 32), CpuEnvs(ir, 32, threads=1), 60, seed=7)
    assert ends > 0 or cls not in (CartPole, Catch, Medley)


def test_resets_are_bit_equal_where_states_are_draws():
    ir = read(CartPole)
    envs, reference = TorchEnvs(ir, 300), CpuEnvs(ir, 300, threads=1)
    ours, theirs = rollout(ir, 1, 300), rollout(ir, 1, 300)
    envs.reset(ours, 2**32 - 3)
    reference.reset(theirs, 2**32 - 3)
    assert torch.equal(ours.observation[0], theirs.observation[0])
    ir = read(Medley)
    envs, reference = TorchEnvs(ir, 300), CpuEnvs(ir, 300, threads=1)
    envs.reset(rollout(ir, 1, 300), 3)
    reference.reset(rollout(ir, 1, 300), 3)
    for ours, theirs in zip(envs.state().values(), reference.state().values(), strict=True):
        assert torch.equal(ours.double(), theirs.double())


def test_part_of_a_larger_set_draws_as_its_worlds():
    ir = read(CartPole)
    whole, part = rollout(ir, 1, 8), rollout(ir, 1, 3)
    TorchEnvs(ir, 8).reset(whole, 1)
    TorchEnvs(ir, 3, first_env=5).reset(part, 1)
    assert torch.equal(whole.observation[0, 5:], part.observation[0])


@pytest.mark.parametrize("cls", [CartPole, Medley])
def test_never_waits_for_the_device(cls):
    ir = read(cls)
    envs, columns = TorchEnvs(ir, 16), rollout(ir, 3, 16)
    with NoWaiting():
        envs.reset(columns, 3)
        for t in range(3):
            envs.step(columns, t)
    with pytest.raises(AssertionError, match="waits"), NoWaiting():
        columns.reward[0, 0].item()


@pytest.mark.parametrize("drift", [0.5, np.linspace(0.0, 1.0, 16)])
def test_parameters_of_all_or_of_each_world(drift):
    ir, params = read(Medley), {"drift": drift, "lanes": 5, "mirrored": True}
    envs = TorchEnvs(ir, 16, params)
    assert_steps_agree(envs, CpuEnvs(ir, 16, params, threads=1), 20, seed=1)
    assert (envs.state()["cells"][:, 0, 0] == 0).all()


def test_goes_on_from_a_saved_state():
    ir = read(Medley)
    envs, columns = TorchEnvs(ir, 8), rollout(ir, 20, 8)
    envs.reset(columns, 3)
    for t in range(10):
        envs.step(columns, t)
    saved = envs.state_dict()
    for t in range(10, 20):
        envs.step(columns, t)
    wanted = columns.observation.clone()
    other = TorchEnvs(ir, 8)
    other.load_state_dict(saved)
    for t in range(10, 20):
        other.step(columns, t)
    assert torch.equal(columns.observation, wanted)
    with pytest.raises(ValueError, match=r"other environments: floats is \[3, 8\], not \[3, 9\]"):
        TorchEnvs(ir, 9).load_state_dict(saved)


def test_states_can_be_set():
    ir = read(Medley)
    envs, other = TorchEnvs(ir, 8), TorchEnvs(ir, 8)
    envs.reset(rollout(ir, 1, 8), 3)
    other.set_state(envs.state())
    for ours, theirs in zip(envs.state().values(), other.state().values(), strict=True):
        assert torch.equal(ours, theirs)


class Indexed(KernelEnv):
    """Indexes by a value of its state."""

    observation_space = Box(-1.0, 1.0, (1,))
    action_space = Discrete(2)

    class State(NamedTuple):
        place: i32
        cells: array(f32, 4)

    def reset(s, p, key):
        s.cells[:] = 0.0
        return Indexed.State(0, s.cells)

    def step(s, p, action, key):
        s.cells[s.place] = uniform(key, 0, 0.0, 1.0)
        return Indexed.State((s.place + 1) % 4, s.cells), 0.0, False

    def observe(s, p):
        return (s.cells[s.place],)


@pytest.mark.parametrize(
    "cls, wrong, text",
    [
        (GridWorld, "has an `if` statement", "if s.board[row, column] == WALL:"),
        (Indexed, "indexes by a value that may differ", "s.cells[s.place] = uniform"),
    ],
)
def test_branches_are_refused_with_their_line(cls, wrong, text):
    with pytest.raises(EnvError, match=wrong) as refused:
        TorchEnvs(read(cls), 4)
    file, line = refused.value.file, refused.value.line
    assert file == inspect.getsourcefile(cls) and text in Path(file).read_text().splitlines()[line - 1]
    assert 'backend="cpu"' in str(refused.value)


def test_a_rollout_of_another_size_is_refused():
    ir = read(CartPole)
    with pytest.raises(ValueError, match="the rollout has 5 envs, the environment 4"):
        TorchEnvs(ir, 4).reset(rollout(ir, 1, 5), 0)
