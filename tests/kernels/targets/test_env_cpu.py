"""The CPU kernels: bits that do not depend on how the work is cut, endings, parameters, and the machine code."""

import ast
import dataclasses
import re
from functools import partial

import gymnasium
import pytest
import torch
from helpers.kernel_envs import Medley, rollout

from headrace.core import rng
from headrace.envs.builtin.cartpole import CartPole
from headrace.envs.builtin.catch import Catch
from headrace.envs.builtin.grid_world import GridWorld
from headrace.envs.builtin.pendulum import Pendulum
from headrace.envs.compiled.single_env import single
from headrace.kernels.language.errors import EnvError
from headrace.kernels.language.read import read
from headrace.kernels.runtime import cache, machine_code
from headrace.kernels.targets.cpu.env import CpuEnvs
from headrace.kernels.targets.torch.env import TorchEnvs

COLUMNS = ("observation", "valid", "reward", "terminated", "truncated", "episode_return", "episode_length")


def run(envs, num_steps, seed=3, actions=None):
    """A rollout from the first step on, with random actions or those given."""
    columns = rollout(envs.ir, num_steps, envs.num_envs)
    if actions is not None:
        columns.action.copy_(actions)
    envs.reset(columns, seed)
    for t in range(num_steps):
        envs.step(columns, t)
    return columns


def assert_equal(ours, theirs, envs=slice(None)):
    """Every column bit for bit; of `theirs` these environments."""
    for name in COLUMNS:
        assert torch.equal(getattr(ours, name), getattr(theirs, name)[:, envs]), name


@pytest.mark.parametrize("cls", [CartPole, Medley])
def test_bits_do_not_depend_on_threads(cls):
    ir = read(cls)
    alone = run(CpuEnvs(ir, 3000, threads=1), 40)
    assert (~alone.valid).any()
    assert_equal(run(CpuEnvs(ir, 3000, threads=2), 40), alone)


@pytest.mark.parametrize("cls", [CartPole, Medley, GridWorld])
def test_bits_do_not_depend_on_the_number_of_worlds(cls):
    ir = read(cls)
    many = run(CpuEnvs(ir, 3000, threads=1), 40)
    for first, count in ((0, 1), (0, 1000), (1023, 2), (2999, 1)):
        part = CpuEnvs(ir, count, threads=1, first_env=first)
        envs = slice(first, first + count)
        assert_equal(run(part, 40, actions=many.action[:, envs]), many, envs)


def test_measuring_threads_changes_no_bits():
    ir = read(CartPole)
    undecided = CpuEnvs(ir, 5000)
    measured = run(undecided, 40)
    assert undecided.threads in (1, torch.get_num_threads())
    assert_equal(measured, run(CpuEnvs(ir, 5000, threads=1), 40))


def test_slices_of_a_rollout_are_rollouts():
    ir = read(Pendulum)
    whole = rollout(ir, 8, 96)
    expected = run(CpuEnvs(ir, 32, threads=1, first_env=64), 8, actions=whole.action[:, 64:])
    part = whole[:, 64:]
    envs = CpuEnvs(ir, 32, threads=1, first_env=64)
    envs.reset(part, 3)
    for t in range(8):
        envs.step(part, t)
    assert_equal(part, expected)
    assert not whole.observation[:, :64].any()


def test_draws_are_those_of_rng():
    seed, draws = 2**32 - 11, torch.arange(4)
    columns = run(CpuEnvs(read(CartPole), 5, threads=1), 1, seed)
    env = torch.arange(5).view(-1, 1).expand(5, 4)
    zero = torch.zeros_like(env)
    key = (torch.tensor(seed), torch.tensor(int(rng.Purpose.RESET)))
    words = torch.stack(rng.philox(key, (env[:, 0], zero[:, 0], zero[:, 0], zero[:, 0])), dim=1)[:, draws]
    low, high = torch.tensor(-0.05), torch.tensor(0.05)
    assert torch.equal(columns.observation[0], low + (high - low) * rng.to_uniform(words))


@pytest.mark.parametrize("seed", [-1, 2**32])
def test_seeds_that_would_draw_what_others_draw_are_refused(seed):
    columns = run(CpuEnvs(read(CartPole), 5, threads=1), 1)
    for reset in (
        partial(CpuEnvs(read(CartPole), 5, threads=1).reset, columns),
        partial(TorchEnvs(read(CartPole), 5).reset, columns),
        lambda seed: rng.uniform(seed, rng.Purpose.ACTION, 0, 1, 1, 1, "cpu"),
        lambda seed: rng.generator(seed, rng.Purpose.WEIGHTS),
    ):
        with pytest.raises(ValueError, match=rf"from 0 to 2\^32 - 1 = 4294967295, got {seed}"):
            reset(seed)
    with pytest.raises((ValueError, gymnasium.error.Error), match=f"{seed}"):
        single(CartPole).reset(seed=seed)


@pytest.mark.parametrize("cls", [CartPole, Catch])  # without branches, and with
def test_endings(cls):
    columns = run(CpuEnvs(read(cls), 50, threads=1), 120)
    ended = columns.terminated | columns.truncated
    assert ended.sum() > 100
    assert torch.equal(columns.valid[1:], ~ended)  # the row after an ending is dead, the one after that live
    dead = ~columns.valid[:-1]
    assert not (columns.terminated & dead).any() and not columns.reward[dead].any()
    assert not columns.episode_length[~dead].any() and not columns.episode_return[~dead].any()
    for env in range(50):
        start = 0
        for t in torch.nonzero(dead[:, env]).flatten().tolist():
            assert columns.episode_length[t, env] == t - start
            assert columns.episode_return[t, env] == columns.reward[start:t, env].sum()
            start = t + 1
    fresh = columns.observation[1:][dead]
    assert len(torch.unique(fresh, dim=0)) > (len(fresh) / 2 if cls is CartPole else 1)


def test_truncation_at_the_limit():
    columns = run(CpuEnvs(read(Pendulum), 3, threads=1), 203)
    assert columns.truncated.sum() == 3 and columns.truncated[199].all() and not columns.terminated.any()
    assert not columns.valid[200].any() and (columns.episode_length[200] == 200).all()


def test_actions_of_a_box_are_clipped():
    ir = read(Pendulum)
    actions = torch.tensor([[-5.0], [5.0], [-2.0], [2.0]]).expand(20, 4, 1)
    columns = run(CpuEnvs(ir, 4, threads=1), 1, actions=actions[:1])
    envs = CpuEnvs(ir, 4, threads=1)
    columns = rollout(ir, 1, 4)
    envs.reset(columns, 0)
    envs.set_state({"angle": torch.ones(4), "spin": torch.zeros(4)})
    columns.action.copy_(actions[:1])
    envs.step(columns, 0)
    assert torch.equal(columns.reward[0, :2], columns.reward[0, 2:]) and columns.reward[0, 0] == columns.reward[0, 1]
    assert torch.equal(columns.observation[1, :2], columns.observation[1, 2:])
    assert not torch.equal(columns.observation[1, 0], columns.observation[1, 1])
    assert torch.equal(columns.action, actions[:1])  # the column keeps what the policy said


@pytest.mark.parametrize(("cls", "name", "low", "high"), [(CartPole, "gravity", 5.0, 15.0), (Medley, "lanes", 1, 5)])
def test_parameters_one_per_world(cls, name, low, high):
    ir = read(cls)
    values = torch.linspace(low, high, 5).to(torch.float32 if cls is CartPole else torch.int32)
    each = run(CpuEnvs(ir, 5, {name: values}, threads=1), 30)
    for env, value in enumerate(values.tolist()):
        alone = CpuEnvs(ir, 1, {name: value}, threads=1, first_env=env)
        assert_equal(run(alone, 30, actions=each.action[:, env : env + 1]), each, slice(env, env + 1))
    assert not torch.equal(each.observation, run(CpuEnvs(ir, 5, threads=1), 30).observation)


@pytest.mark.parametrize("cls", [CartPole, Medley, GridWorld])
def test_state_dict_goes_on_bit_for_bit(cls):
    ir = read(cls)
    envs = CpuEnvs(ir, 20, threads=1)
    whole = run(envs, 60)
    first, second = CpuEnvs(ir, 20, threads=1), CpuEnvs(ir, 20, threads=1)
    half = rollout(ir, 30, 20)
    half.action.copy_(whole.action[:30])
    first.reset(half, 3)
    for t in range(30):
        first.step(half, t)
    second.load_state_dict(first.state_dict())
    half.continue_from(half)
    half.action.copy_(whole.action[30:])
    for t in range(30):
        second.step(half, t)
    assert torch.equal(half.observation, whole.observation[30:]) and torch.equal(half.reward, whole.reward[30:])
    for name, value in second.state().items():
        assert torch.equal(value, envs.state()[name])


def test_set_state_is_read_back():
    ir = read(Medley)
    envs = CpuEnvs(ir, 7, threads=1)
    envs.reset(rollout(ir, 1, 7), 0)
    fields = envs.state()
    fields["code"] = torch.arange(7) + 2**32 - 7
    fields["x"] = torch.arange(7.0)
    fields["flag"] = torch.arange(7) % 2 == 0
    envs.set_state(fields)
    for name, value in envs.state().items():
        assert torch.equal(value, fields[name]), name


@pytest.mark.parametrize("cls", [CartPole, Medley])
def test_machine_code_has_no_doubles(cls, tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "folder", lambda: tmp_path)  # compiled here and now: Numba shows no code it has loaded
    envs = CpuEnvs(dataclasses.replace(read(cls), name=f"{cls.__name__}Read"), 4, threads=1)
    run(envs, 2)
    module = cache.load(envs.ir.name, envs._text)
    for kernel in (module.reset, module.step):
        (types,) = kernel.overloads
        text = str(machine_code.optimized(kernel, types))
        assert not re.findall(r"^.*\bdouble\b.*$", text, re.MULTILINE)
        assert "float" in text
    if cls is CartPole:
        assert re.search(r"fmul contract <\d+ x float>", text)  # and is SIMD


def test_a_message_of_numba_names_the_users_line():
    ir = read(CartPole)
    step = ir.functions[-2]
    node = ast.parse(ast.unparse(step.node)).body[0]
    line = step.node.body[3].lineno
    node.body[3] = ast.parse("mass = s + F32(1.0)").body[0]
    for made, written in zip(ast.walk(node), ast.walk(step.node), strict=False):
        if isinstance(made, ast.stmt):
            made.lineno = written.lineno
    broken = dataclasses.replace(ir, functions=(ir.functions[0], dataclasses.replace(step, node=node), ir.functions[2]))
    with pytest.raises(EnvError, match=r"Numba says: .*add") as caught:
        CpuEnvs(broken, 1, threads=1).reset(rollout(ir, 1, 1), 0)
    assert (caught.value.file, caught.value.line) == (step.file, line)
    assert len(str(caught.value)) < 600


def test_wrong_arguments():
    ir = read(CartPole)
    with pytest.raises(ValueError, match="no parameter 'weight': it has cart_mass, force"):
        CpuEnvs(ir, 3, {"weight": 1.0})
    with pytest.raises(ValueError, match=r"'gravity' has shape \(2,\): give one number, or 3"):
        CpuEnvs(ir, 3, {"gravity": [1.0, 2.0]})
    with pytest.raises(ValueError, match="threads is 0"):
        CpuEnvs(ir, 3, threads=0)
    with pytest.raises(ValueError, match="rollout has 4 envs, the environment 3"):
        CpuEnvs(ir, 3).reset(rollout(ir, 1, 4), 0)
    odd = rollout(ir, 2, 3)
    odd.observation = torch.zeros(3, 3, 4)
    with pytest.raises(ValueError, match="column observation has strides"):
        CpuEnvs(ir, 3).reset(odd, 0)
    other = CpuEnvs(ir, 4).state_dict()
    with pytest.raises(ValueError, match=r"floats is \[5, 4\], not \[5, 3\]"):
        CpuEnvs(ir, 3).load_state_dict(other)


def test_float32_is_kept_in_arrays_of_the_state():
    envs = CpuEnvs(read(Medley), 2, threads=1)
    assert {name: array.dtype for name, array in envs.arrays.items()} == {"cells": torch.int8, "line": torch.float32}
