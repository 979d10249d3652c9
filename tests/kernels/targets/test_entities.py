"""Environments with entities: plain Python, SIMD lanes and tensors against a loop, and the refusal of races."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from helpers.entity_envs import Crowd, Gas, Ring, Swarm, Traffic
from helpers.kernel_envs import rollout

from headrace.envs.compiled.single_env import single
from headrace.kernels.language.errors import EnvError
from headrace.kernels.language.ir import ENTITY_BITS, PHASE_BITS
from headrace.kernels.language.ops import argmax_over, argmin_over, max_over, min_over, sum_over, within
from headrace.kernels.language.read import read
from headrace.kernels.targets.cpu.codegen_entities_cpu import EXACT, LANES, faster_across
from headrace.kernels.targets.cpu.codegen_envs_cpu import env_lane_functions
from headrace.kernels.targets.cpu.env import CpuEnvs
from headrace.kernels.targets.random_actions import random_actions
from headrace.kernels.targets.torch.env import TorchEnvs

SEED = 11


def stepped(envs, num_steps, seed=SEED):
    """A rollout of random actions, and the environments."""
    ir, num_envs = envs.ir, envs.num_envs * envs.ir.num_agents
    columns = rollout(ir, num_steps, num_envs)
    envs.reset(columns, seed)
    columns.action.copy_(random_actions(ir.action_space, seed, 0, num_steps, num_envs, "cpu"))
    envs.run(columns, 0, num_steps)
    return columns


def assert_same_bits(ours, theirs):
    """All columns are equal, NaN too."""
    for name in theirs.columns:
        a, b = getattr(ours, name).numpy(), getattr(theirs, name).numpy()
        assert np.array_equal(a, b, equal_nan=a.dtype.kind == "f"), name


def key(purpose, env, episode, step, phase=None, entity=0):
    """The key of a whole environment, or of an entity in a phase."""
    own = 0 if phase is None else (phase + 1 << PHASE_BITS) + (entity << ENTITY_BITS)
    return tuple(np.uint32(word) for word in (SEED, purpose + own, env, episode, step))


@pytest.mark.parametrize("num_envs", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_random_states_step_like_a_loop_in_plain_python(num_envs):
    """Each phase as a loop over the entities of one environment after the other."""
    ir = read(Ring)
    envs = CpuEnvs(ir, num_envs, threads=1, across="entities")
    columns = stepped(envs, 2)
    checked = CpuEnvs(ir, num_envs, threads=1, across="entities")
    other = rollout(ir, 2, num_envs * 3)
    checked.reset(other, SEED)
    other.action.copy_(columns.action)
    checked.step(other, 0)
    before, actions = checked.state(), other.action[1].view(3, num_envs)
    plain, alive = single(Ring), other.valid[1, :num_envs].tolist()
    plain.reset(seed=1)
    for env in range(num_envs):
        if not alive[env]:
            continue
        fields = {name: values[env].numpy() for name, values in before.items()}
        state = type(plain.state)(*(np.array(x) if x.ndim else np.float32(x) for x in fields.values()))
        for number, phase in enumerate((Ring.look, Ring.act, Ring.pay)):
            for i in reversed(range(5)):  # any order will do
                action = np.int32(actions[i, env]) if i < 3 else np.int32(0)
                given = {1: (action, key(1, env, 0, 1, number, i))}.get(number, ())
                phase(state, (), np.int32(i), *given)
        new, rewards, _ = Ring.step(state, (), key(1, env, 0, 1))
        close = partial(np.allclose, rtol=1e-5, atol=1e-6)  # NumPy takes an integer times a float in double precision
        assert close(rewards[:3], columns.reward[1].view(3, num_envs)[:, env])
        seen = [[float(x) for x in Ring.observe(new, (), np.int32(a))] for a in range(3)]
        assert close(seen, columns.observation[2].reshape(3, num_envs, 3)[:, env])
    assert 0 < sum(alive) < num_envs


@pytest.mark.parametrize("cls", [Swarm, Ring, Traffic])
def test_plain_python_and_tensors_agree(cls):
    ir, num_steps = read(cls), 7
    if cls is not Swarm:
        with pytest.raises(EnvError, match="`if` statement"):
            TorchEnvs(ir, 1)
        return
    columns = stepped(TorchEnvs(ir, 2), num_steps)
    plain = single(cls)
    plain.reset(seed=SEED)
    for t in range(num_steps):
        if not columns.valid[t, 0]:
            plain.reset()
        else:
            actions = {name: columns.action[t, a * 2].numpy() for a, name in enumerate(ir.agents)}
            seen, rewards, ended, _, _ = plain.step(actions)
            assert ended["agent_0"] == bool(columns.terminated[t, 0])
            assert np.allclose(list(rewards.values()), columns.reward[t].view(-1, 2)[:, 0], atol=1e-5)
        seen = [plain.observation(a) for a in range(ir.num_agents)]
        assert np.allclose(seen, columns.observation[t + 1].unflatten(0, (-1, 2))[:, 0], rtol=1e-5, atol=1e-5)
    assert not columns.valid.all()


@pytest.mark.slow
@pytest.mark.parametrize("cls", [Swarm, Ring, Traffic])
def test_lanes_and_threads_do_not_change_a_bit(cls):
    ir = read(cls)
    wanted = stepped(CpuEnvs(ir, 9, lanes=1, threads=1), 8)
    assert not wanted.valid.all()
    for lanes in LANES[1:]:
        assert_same_bits(stepped(CpuEnvs(ir, 9, lanes=lanes, threads=1), 8), wanted)
    assert_same_bits(stepped(CpuEnvs(ir, 9, threads=2), 8), wanted)


@pytest.mark.slow
@pytest.mark.parametrize("cls", [Swarm, Ring, Traffic])
def test_lanes_across_environments_have_the_bits_of_one_lane(cls):
    """Two times 16 of 41 environments are stepped together, while none of them is masked."""
    ir, params = read(cls), {"reach": np.linspace(0.1, 0.3, 41)} if cls is Swarm else {}
    assert env_lane_functions(ir, EXACT)
    one = CpuEnvs(ir, 41, params, lanes=1, threads=1, across="entities")
    wanted = stepped(one, 8)
    assert not wanted.valid.all()
    for threads in (1, 2):
        other = CpuEnvs(ir, 41, params, threads=threads, across="environments")
        assert_same_bits(stepped(other, 8), wanted)
        for name, values in one.state().items():
            assert torch.equal(other.state()[name], values), name


@pytest.mark.slow
def test_the_cpu_agrees_with_plain_python_and_tensors():
    ir = read(Swarm)
    assert torch.allclose(
        stepped(CpuEnvs(ir, 3, threads=1), 9).observation, stepped(TorchEnvs(ir, 3), 9).observation, atol=1e-4
    )


@pytest.mark.slow
@pytest.mark.parametrize("reach", [0.03, 0.7, 3.0])
def test_a_grid_finds_whom_a_loop_finds(reach):
    """A small radius is searched by a grid, a large one by a loop over all, with the same bits for any lanes. An entity
    at NaN is near none."""
    found = []
    for lanes in (None, 4, 1):
        envs = CpuEnvs(read(Gas), 2, {"reach": reach}, threads=1, lanes=lanes)
        columns = rollout(envs.ir, 1, 2)
        envs.reset(columns, SEED)
        envs.arrays["x"][1, [7, 300]] = torch.tensor([np.nan, 1.0])
        envs.arrays["y"][1, [8, 300]] = torch.tensor([np.nan, 9.0])
        envs.step(columns, 0)
        found.append(columns)
        x, y = (envs.state()[name].numpy() for name in ("x", "y"))
        dx, dy = x[:, None] - x[:, :, None], y[:, None] - y[:, :, None]
        near = (dx * dx + dy * dy < np.float32(reach) * np.float32(reach)) & ~np.eye(500, dtype=bool)
        assert np.array_equal(envs.state()["near"].numpy(), near.sum(2))
        assert np.allclose(envs.state()["pull"].numpy(), np.where(near, dx, 0.0).sum(2), atol=2e-4)
        assert near.any() and not near[1, [7, 8]].any()
    for other in found[1:]:
        assert_same_bits(other, found[0])


@pytest.mark.slow
def test_a_grid_serves_a_phase_with_actions_draws_and_reductions():
    """Bits are the same in lanes, one entity at a time, and on two threads. The first state is plain Python's."""
    ir = read(Crowd)
    wanted = stepped(CpuEnvs(ir, 3, threads=1), 5)
    for options in ({"lanes": 1, "threads": 1}, {"lanes": 8, "threads": 1}, {"threads": 2}):
        assert_same_bits(stepped(CpuEnvs(ir, 3, **options), 5), wanted)
    plain = single(Crowd)
    plain.reset(seed=SEED)
    _, rewards, _, _, _ = plain.step({name: wanted.action[0, a * 3].numpy() for a, name in enumerate(ir.agents)})
    assert np.allclose(list(rewards.values()), wanted.reward[0].view(3, 3)[:, 0], atol=1e-4)
    assert max(rewards.values()) > 100


def test_plain_python_finds_those_within_a_radius():
    x, y = np.array([0.0, 1.0, 3.0], np.float32), np.array([0.0, 0.0, 4.0], np.float32)
    assert (within(x, 1, 1.5), within(x, y, 0, 1.0), within(x, y, 2, 5.5)) == ([0], [], [0, 1])


def test_reductions_take_sixteen_parts_and_then_halves():
    values = np.random.default_rng(0).normal(size=77).astype(np.float32) * 1e4
    parts = np.zeros(16, np.float32)
    for k, value in enumerate(values):
        parts[k % 16] += value
    for half in (8, 4, 2, 1):
        parts = np.array([parts[k] + parts[k + half] for k in range(half)], np.float32)
    assert sum_over(values) == parts[0]
    values[[3, 50]] = np.nan
    assert (min_over(values), max_over(values)) == (np.nanmin(values), np.nanmax(values))
    assert (argmin_over(values), argmax_over(values)) == (np.nanargmin(values), np.nanargmax(values))


# Mistakes: what a phase does, and what the error says of it

FIELDS = "x: array(f32, 4)\n        v: array(f32, 4)\n        few: array(f32, 3)\n        mean: f32"
SOURCE = """\
from typing import NamedTuple
from headrace import Box, Discrete, KernelEnv
from headrace.kernels.language.ops import array, f32, sum_over, within


def shove(s, j):
    s.x[j] = 1.0


def look(s, j):
    return s.x[j]


class Bad(KernelEnv):
    observation_space = Box(-1.0, 1.0, (1,))
    action_space = Discrete(2)
    num_entities = 4

    class State(NamedTuple):
        {fields}

    def reset(s, p, key):
        return s

    def move(s, p, i, action, key):
        {body}

    phases = (move,)

    def step(s, p, action, key):
        return s, 0.0, False

    def observe(s, p):
        return (s.mean,)
"""


@pytest.fixture
def bad_env(tmp_path):
    def make(body, fields=FIELDS, **changes):
        text = SOURCE.format(body=body, fields=fields)
        for old, new in changes.items():
            text = text.replace({"takes": "(s, p, i, action, key)", "phases": "phases = (move,)"}[old], new)
        path = tmp_path / f"bad_{abs(hash(text))}.py"
        path.write_text(text)
        scope = {"__name__": path.stem, "__file__": str(path)}
        exec(compile(text, str(path), "exec"), scope)
        return scope["Bad"], text

    return make


@pytest.mark.parametrize(
    "body, says",
    [
        ("s.x[i + 1] = 0.0", "changes `s.x` at another place than [i]"),
        ("s.x[0] = 0.0", "changes `s.x` at another place than [i]"),
        ("s.x[:] = 0.0", "changes `s.x` at another place than [i]"),
        ("shove(s, i)", "changes `s.x` at another place than [i]"),
        ("s.x[i] = s.x[3 - i]", "changes s.x[i] and reads s.x of other entities"),
        ("s.x[i] = look(s, i)", "changes s.x[i] and reads s.x of other entities"),
        ("s.x[i] = sum_over(s.x)", "changes s.x[i] and reads s.x of other entities"),
        ("s.few[i] = 0.0", "has no entry for each entity"),
        ("x = s.x; x[0] = 1.0", "s.x gets another name in a phase"),
        ("t = s; t.x[0] = 1.0", "the state gets another name in a phase"),
        ("i = 0; s.x[i] = 1.0", "assigns to i"),
        ("s.mean = 1.0", "is assigned to"),
        ("return s", "returns a value"),
        ("for j in within(s.x, s.v, i, 1.0): s.x[i] += s.v[j]", "changes s.x[i] and reads s.x of other entities"),
        ("for j in within(s.x, s.few, i, 1.0): pass", "`s.few` in within() is not a field with one f32"),
        ("for j in within(s.x, s.v, 2, 1.0): pass", "within() of entity `2`"),
        ("s.x[i] = sum_over(s.few)", "is not of a field with one number for each entity"),
    ],
)
def test_races_are_refused_with_their_line(bad_env, body, says):
    cls, text = bad_env(body)
    with pytest.raises(EnvError) as caught:
        read(cls)
    assert says in str(caught.value), caught.value
    line = text.splitlines()[caught.value.line - 1]
    assert line.strip() == body, line


def test_what_is_no_race_is_read(bad_env):
    cls, _ = bad_env("s.v[i] = s.x[3 - i] + look(s, 0) + sum_over(s.x)")
    assert [phase.takes for phase in read(cls).phases] == [("action", "key")]


@pytest.mark.parametrize(
    "changes, says",
    [
        ({"takes": "(s, p, i, key, action)"}, "move takes (s, p, i, key, action)"),
        ({"takes": "(s, p, i, a)"}, "move takes (s, p, i, a)"),
        ({"phases": "phases = [move]"}, "phases is [<function"),
        ({"phases": "reset_phases = (move,)\n    phases = (move,)"}, "a reset has none"),
        ({"phases": ""}, "Bad has num_entities and no phases"),
        ({"fields": "x: array(f32, 5)\n        mean: f32"}, "no field of State is an array with a first size of 4"),
    ],
)
def test_declarations_that_do_not_fit_are_refused(bad_env, changes, says):
    cls, _ = bad_env("s.x[i] = 0.0", **changes)
    with pytest.raises(EnvError) as caught:
        read(cls)
    assert says in str(caught.value), caught.value


def test_lanes_are_a_power_of_two_across_entities_or_environments():
    chosen = [faster_across(read(cls), num_envs) for cls, num_envs in ((Ring, 16), (Ring, 15), (Swarm, 16))]
    assert chosen == ["environments", "entities", "entities"]
    with pytest.raises(ValueError, match="across is 'agents': give 'entities' or 'environments', or None"):
        CpuEnvs(read(Ring), 1, across="agents")
    with pytest.raises(ValueError, match="lanes is 3: give 1, 2, 4, 8 or 16"):
        CpuEnvs(read(Ring), 1, lanes=3)
