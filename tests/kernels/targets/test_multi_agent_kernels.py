"""Kernel environments of several agents: their columns, on every target."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from helpers.kernel_envs import rollout

from headrace.data.spaces import Box, Discrete, MultiDiscrete, action_column, env_columns
from headrace.envs.builtin.pursuit import Pursuit
from headrace.envs.compiled.env import CompiledEnv
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.envs.compiled.single_env import single
from headrace.kernels.language.ops import array, f32, i32, uniform
from headrace.kernels.language.read import read
from headrace.kernels.targets.cpu.env import CpuEnvs
from headrace.kernels.targets.deviations import deviation
from headrace.kernels.targets.torch.env import TorchEnvs


class Herd(KernelEnv):
    """Three agents that push one another; their fields in arrays, their actions vectors, `observe` fills `out`."""

    observation_space = Box(-np.inf, np.inf, (4,))
    action_space = Box(-1.0, 1.0, (2,))
    max_steps = 9
    num_agents = 3
    groups: ClassVar = {"leaders": ("agent_0",), "others": ("agent_1", "agent_2")}

    class Params(NamedTuple):
        drag: f32 = 0.5

    class State(NamedTuple):
        x: array(f32, 3)
        steps: i32

    def reset(s, p, key):
        for agent in range(3):
            s.x[agent] = uniform(key, agent, -1.0, 1.0)
        return Herd.State(s.x, 0)

    def step(s, p, action, key):
        middle = (s.x[0] + s.x[1] + s.x[2]) / 3.0
        for agent in range(3):
            s.x[agent] += p.drag * action[agent][0] * abs(action[agent][1]) + 0.1 * (middle - s.x[agent])
        rewards = (s.x[0], s.x[1] - middle, 1)
        return Herd.State(s.x, s.steps + 1), rewards, uniform(key, 0, 0.0, 1.0) < 0.1

    def observe(s, p, agent, out):
        out[0] = s.x[agent]
        out[1] = agent
        out[2] = s.steps
        out[3] = s.x[0] if agent == 2 else s.x[2]


class Duel(KernelEnv):
    """Two agents with several choices each, and an `if`."""

    observation_space = Box(-np.inf, np.inf, (2,))
    action_space = MultiDiscrete([3, 2])
    num_agents = 2
    max_steps = 6

    class State(NamedTuple):
        lead: i32

    def reset(s, p, key):
        return Duel.State(0)

    def step(s, p, action, key):
        lead = s.lead
        for agent in range(2):
            if action[agent][1] == 1:
                lead += action[agent][0] * (1 if agent == 0 else -1)
        return Duel.State(lead), (lead, -lead), abs(lead) > 3

    def observe(s, p, agent):
        return s.lead if agent == 0 else -s.lead, agent


def columns_of(ir, num_steps, num_copies, device="cpu"):
    """A rollout of these environments with random actions."""
    return rollout(ir, num_steps, num_copies * ir.num_agents, device)


def stepped(envs, num_steps, seed=3):
    """A rollout from the first step on."""
    columns = columns_of(envs.ir, num_steps, envs.num_envs)
    envs.reset(columns, seed)
    for t in range(num_steps):
        envs.step(columns, t)
    return columns


def assert_agents_agree(ours, theirs, num_steps, device="cpu"):
    """Step both from the same state again and again: every column agrees within float32."""
    mine = columns_of(ours.ir, num_steps, ours.num_envs, device)
    wanted = columns_of(ours.ir, num_steps, ours.num_envs)
    ours.reset(mine, 5)
    theirs.reset(wanted, 5)
    for t in range(num_steps):
        ours.load_state_dict(theirs.state_dict())
        mine.valid[t].copy_(wanted.valid[t])
        ours.step(mine, t)
        theirs.step(wanted, t)
        for name in ("terminated", "truncated", "episode_length"):
            assert torch.equal(getattr(mine, name)[t].cpu(), getattr(wanted, name)[t]), name
        assert torch.equal(mine.valid[t + 1].cpu(), wanted.valid[t + 1])
        for name in ("reward", "episode_return"):
            torch.testing.assert_close(getattr(mine, name)[t].cpu(), getattr(wanted, name)[t], atol=1e-5, rtol=1e-5)
        seen = mine.observation[t + 1].cpu()
        torch.testing.assert_close(seen, wanted.observation[t + 1], atol=1e-5, rtol=1e-5)
        for (name, x), y in zip(ours.state().items(), theirs.state().values(), strict=True):
            torch.testing.assert_close(x.cpu(), y, atol=1e-5, rtol=1e-5, msg=name)
    assert not wanted.valid.all()


@pytest.mark.parametrize("cls", [Pursuit, Herd])
def test_torch_agrees_with_the_cpu_kernel(cls):
    ir = read(cls)
    assert_agents_agree(TorchEnvs(ir, 8), CpuEnvs(ir, 8, threads=1), 110 if cls is Pursuit else 30)


@pytest.mark.parametrize("cls", [Pursuit, Herd, Duel])
def test_agents_of_a_world_end_together_and_have_their_own_returns(cls):
    envs = CpuEnvs(read(cls), 20, threads=1)
    columns = stepped(envs, 120)
    agents = envs.ir.num_agents
    for name in ("valid", "terminated", "truncated", "episode_length"):
        column = getattr(columns, name).view(-1, agents, 20)
        assert (column == column[:, :1]).all(), name
    assert torch.equal(columns.valid[1:], ~(columns.terminated | columns.truncated))
    for column in range(agents * 20):
        start = 0
        for t in torch.nonzero(~columns.valid[:-1, column]).flatten().tolist():
            earned = columns.reward[start:t, column].sum()
            assert columns.episode_return[t, column] == pytest.approx(float(earned), abs=1e-5)
            assert columns.episode_length[t, column] == t - start
            start = t + 1
        assert start
    returns = columns.episode_return.view(-1, agents, 20)
    assert not torch.equal(returns[:, 0], returns[:, 1])


def test_what_one_gains_the_other_loses():
    columns = stepped(CpuEnvs(read(Pursuit), 50, threads=1), 150)
    pursuer, evader = columns.reward.view(-1, 2, 50).unbind(1)
    assert torch.equal(pursuer, -evader) and pursuer.abs().max() > 0
    seen = columns.observation.view(-1, 2, 50, 7)
    assert torch.equal(seen[:, 0, :, :2], -seen[:, 1, :, :2])  # the way to the other
    assert torch.equal(seen[:, 0, :, 2:4], seen[:, 1, :, 4:6])  # my velocity is the other's other velocity
    assert not seen[:, 0, :, 6].any() and (seen[:, 1, :, 6] == 1).all()


def test_actions_reach_their_agents():
    ir = read(Duel)
    envs = CpuEnvs(ir, 3, threads=1)
    columns = columns_of(ir, 1, 3)
    columns.action[0] = torch.tensor(
        [[1, 1], [2, 1], [2, 0], [0, 1], [2, 1], [1, 1]]
    )  # agent 0 in environments 0 1 2, agent 1
    envs.reset(columns, 0)
    envs.step(columns, 0)
    assert columns.reward[0].tolist() == [1, 0, -1, -1, 0, 1]
    assert columns.observation[1, :, 0].tolist() == [1, 0, -1, -1, 0, 1]


@pytest.mark.parametrize("cls", [Pursuit, Herd, Duel])
def test_bits_do_not_depend_on_the_number_of_worlds_nor_of_threads(cls):
    ir = read(cls)
    many = stepped(CpuEnvs(ir, 2500, threads=1), 12)
    assert torch.equal(stepped(CpuEnvs(ir, 2500, threads=2), 12).observation, many.observation)
    part, columns = CpuEnvs(ir, 3, threads=1, first_env=1023), columns_of(ir, 12, 3)
    shape = (12, ir.num_agents, 2500, *many.action.shape[2:])
    columns.action.copy_(many.action.reshape(shape)[:, :, 1023:1026].reshape(columns.action.shape))
    part.reset(columns, 3)
    for t in range(12):
        part.step(columns, t)
    for name in ("observation", "reward", "valid", "episode_return"):
        whole = getattr(many, name)
        chosen = whole.reshape(len(whole), ir.num_agents, 2500, *whole.shape[2:])[:, :, 1023:1026]
        assert torch.equal(getattr(columns, name).reshape(chosen.shape), chosen), name


def test_saved_worlds_go_on_bit_for_bit():
    ir = read(Pursuit)
    envs, columns = CpuEnvs(ir, 5), columns_of(ir, 40, 5)
    envs.reset(columns, 3)
    for t in range(20):
        envs.step(columns, t)
    saved = envs.state_dict()
    other, again = CpuEnvs(ir, 5), columns_of(ir, 40, 5)
    other.load_state_dict(saved)
    again.valid[20].copy_(columns.valid[20])
    for t in range(20, 40):
        envs.step(columns, t)
        other.step(again, t)
    assert torch.equal(columns.observation[21:], again.observation[21:])
    assert torch.equal(columns.episode_return[20:], again.episode_return[20:])


def test_an_env_says_who_its_agents_are():
    env = CompiledEnv(Herd, 4)
    assert (env.num_envs, env.num_copies, env.num_agents) == (12, 4, 3)
    assert env.agents == ("agent_0", "agent_1", "agent_2")
    assert env.groups == {"leaders": ("agent_0",), "others": ("agent_1", "agent_2")}
    assert CompiledEnv(Pursuit, 2).groups == {"all": ("pursuer", "evader")}
    with pytest.raises(ValueError, match="the rollout has 4 envs, the environment 12"):
        env.reset(rollout(env.ir, 1, 4), 0)


def test_targets_can_be_compared():
    ir = read(Pursuit)
    assert deviation(CpuEnvs(ir, 32), TorchEnvs(ir, 32), 20, seed=1).passed
    assert not deviation(CpuEnvs(ir, 32), TorchEnvs(ir, 32, {"pursuer_speed": 0.051}), 20, seed=1).passed


def test_random_actions_are_those_of_single_steps():
    env = CompiledEnv(Pursuit, 4)
    columns = columns_of(env.ir, 6, 4)
    env.reset(columns, 3)
    env.run_random(columns, 0)
    assert len(columns.action.unique()) == 5
    assert env_columns(env.observation_space).keys() <= columns.columns.keys()
    assert action_column(env.action_space) == columns.columns["action"]


@pytest.mark.parametrize("cls", [Pursuit, Herd, Duel])
def test_plain_python_is_what_the_kernel_does(cls):
    pytest.importorskip("pettingzoo")
    ir = read(cls)
    envs, columns = CpuEnvs(ir, 1, threads=1), columns_of(ir, 40, 1)
    plain = single(cls)
    envs.reset(columns, 5)
    seen, _ = plain.reset(seed=5)
    for t in range(40):
        for agent, name in enumerate(ir.agents):
            np.testing.assert_allclose(seen[name], columns.observation[t, agent], rtol=1e-5, atol=1e-5)
        envs.step(columns, t)
        if not columns.valid[t, 0]:
            assert not plain.agents
            seen, _ = plain.reset()
            continue
        actions = {name: columns.action[t, agent].numpy() for agent, name in enumerate(ir.agents)}
        seen, rewards, terminated, truncated, _ = plain.step(actions)
        for agent, name in enumerate(ir.agents):
            assert rewards[name] == pytest.approx(float(columns.reward[t, agent]), rel=1e-5, abs=1e-5)
            assert terminated[name] == bool(columns.terminated[t, agent])
            assert truncated[name] == bool(columns.truncated[t, agent])


@pytest.mark.parametrize("cls", [Pursuit, Herd])
@pytest.mark.filterwarnings("ignore")
def test_passes_pettingzoos_checks(cls):
    pettingzoo = pytest.importorskip("pettingzoo.test")
    pettingzoo.parallel_api_test(single(cls), num_cycles=60)
    pettingzoo.parallel_seed_test(lambda: single(cls), num_cycles=30)


def test_plain_python_needs_pettingzoo(monkeypatch):
    import sys

    monkeypatch.delitem(sys.modules, "headrace.envs.compiled.single_multi_agent", raising=False)
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    with pytest.raises(ImportError, match=r'pip install "headrace\[pettingzoo\]"'):
        single(Pursuit)


def test_discrete_actions_stay_one_column():
    assert isinstance(read(Pursuit).action_space, Discrete)
    assert columns_of(read(Pursuit), 2, 3).action.shape == (2, 6)
