"""Worlds of the CPU seen from another device: the same numbers, and no tensor meets one of the CPU but in a copy."""

from __future__ import annotations

import functools

import gymnasium
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from helpers.faulty import Counter
from helpers.strict_device import strict_device, to_cpu

from headrace.checks.batch import recorded
from headrace.checks.random_rollout import same
from headrace.core import fused
from headrace.data.rollout import Rollout, tree_map
from headrace.envs import make
from headrace.envs.gym.inline import InlineEnv
from headrace.envs.wrappers.device_env import DeviceEnv
from headrace.parallel.collector import InlineCollector
from headrace.parallel.stagger import Stagger
from headrace.policies.actor_critic import ActorCritic
from headrace.training.trainer import Trainer


class Places(gymnasium.Env):
    """A Dict observation with an image; episodes of 4 steps."""

    observation_space = Dict({"place": Box(-9, 9, (3,)), "picture": Box(0, 255, (2, 2), "uint8"), "kind": Discrete(9)})
    action_space = Box(-1, 1, (2,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._seen(), {}

    def step(self, action):
        self.steps += 1
        return self._seen(float(action.sum())), float(action[0]), False, self.steps == 4, {}

    def _seen(self, shift=0.0):
        drawn = self.np_random.integers(9, size=3)
        return {"place": (drawn - shift).astype("f"), "picture": drawn[:2].repeat(2).reshape(2, 2), "kind": drawn[2]}


def written(env, steps=3, rollouts=4, cut=False):
    """All columns of some rollouts by drawn actions, as they are after each. cut: episodes end between them too."""
    rollout = Rollout(steps, env.num_envs, env.columns(), env.device)
    generator, kept = torch.Generator().manual_seed(0), []
    env.reset(rollout, 5)
    for number in range(rollouts):
        if number:
            rollout.valid[-1, number % env.num_envs] &= not cut
            rollout.continue_from(rollout)
        drawn = torch.randn(rollout.action.shape, generator=generator)
        drawn = drawn if rollout.action.dtype.is_floating_point else drawn > 0
        rollout.action.copy_(drawn.to(rollout.action.dtype))
        for t in range(steps):
            env.step(rollout, t)
        kept.append({name: tree_map(to_cpu, getattr(rollout, name)) for name in rollout.columns})
    return kept


def assert_equal(ours, theirs):
    for one, other in zip(ours, theirs, strict=True):
        for name, column in other.items():
            rows = ~other["valid"][:-1] if name.startswith("episode") else ...  # written at masked steps alone
            tree_map(lambda a, b, rows=rows, name=name: _same(a[rows], b[rows], name), one[name], column)


def _same(a, b, name):
    assert torch.equal(a, b), name


@pytest.mark.parametrize("factory", [Places, functools.partial(Counter, "")])
@pytest.mark.parametrize("cut", [False, True])
def test_it_gives_what_the_env_gives(factory, cut):
    with strict_device() as device:
        there = written(DeviceEnv(InlineEnv(factory, 3, "test"), device), cut=cut)
    assert_equal(there, written(InlineEnv(factory, 3, "test"), cut=cut))


def test_compiled_worlds_and_workers_too():
    def on(env):
        with strict_device() as device:
            seen = written(DeviceEnv(env, device))
        env.close()
        return seen

    assert_equal(on(make("CartPole-v1", 3)), written(make("CartPole-v1", 3)))
    counter = functools.partial(Counter, "")
    assert_equal(on(make(counter, 3, workers=1)), written(InlineEnv(counter, 3, "test")))


@pytest.mark.parametrize("options", [{"backend": "inline"}, {"backend": "vector"}, {"workers": 1}])
def test_make_gives_one_where_the_device_is_another(options):
    with strict_device() as device:
        env = make("CartPole-v1", 2, device=device, **options)
        assert isinstance(env, DeviceEnv) and env.device == device and env.backend in ("inline", "vector", "workers")
        rollout = Rollout(2, 2, env.columns(), device)
        env.reset(rollout, 0)
        env.step(rollout, 0)
        env.close()
    assert to_cpu(rollout.valid)[:2].all() and to_cpu(rollout.observation)[1].any()


def test_restarts_are_counted_and_go_on(tmp_path):
    failing = InlineEnv(functools.partial(Counter, "step", once=str(tmp_path / "once")), 3, "test", restart=True)
    with strict_device() as device:
        env = DeviceEnv(failing, device)
        seen = written(env)
    assert env.restarts == 1 and seen[0]["truncated"].tolist() == [[False] * 3] * 2 + [[True, False, False]]


def test_a_state_that_is_loaded_begins_anew_and_the_device_knows():
    with strict_device() as device:
        env = DeviceEnv(InlineEnv(functools.partial(Counter, ""), 2, "test"), device)
        rollout = Rollout(4, 2, env.columns(), device)
        env.reset(rollout, 0)
        env.step(rollout, 0)
        env.load_state_dict(env.state_dict())
        env.step(rollout, 1)
        env.step(rollout, 2)
    assert to_cpu(rollout.valid).tolist() == [[True] * 2, [False] * 2, [True] * 2, [True] * 2, [False] * 2]
    assert to_cpu(rollout.observation)[:4, 0, 0].tolist() == [0, 1, 0, 1]


def test_a_collector_with_its_policy_there_collects_the_same():
    def collected(env, device):
        policy = ActorCritic(env.observation_space, env.action_space, hidden=(8,), seed=1).to(device)
        collector = InlineCollector(env, policy, 4, {}, seed=3)
        stagger = Stagger(collector.rollout, 12)
        kept = []
        for _ in range(4):
            stagger.before(collector.steps)
            rollout = collector.collect()
            stagger.after()
            kept.append({name: tree_map(to_cpu, getattr(rollout, name)) for name in rollout.columns})
        return kept

    def inline():
        return InlineEnv(functools.partial(gymnasium.make, "CartPole-v1"), 4, "test")

    with strict_device() as device:
        there = collected(DeviceEnv(inline(), device), device)
    assert_equal(there, collected(inline(), "cpu"))


@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
def test_a_training_there_meets_no_tensor_of_the_cpu(algorithm):
    cartpole = functools.partial(gymnasium.make, "CartPole-v1")
    settings = {"num_envs": 3, "num_steps": 8, "hidden": (8,), "seed": 1, "scale": False}
    with fused.plain_only(), strict_device() as device:
        there = Trainer(algorithm, cartpole, device=str(device), **settings)
        there.iterate()
        collected = to_cpu(there.collector.rollout.observation)
        there.iterate()
    with fused.plain_only():
        plain = Trainer(algorithm, cartpole, **settings)
        plain.iterate()
    assert isinstance(there.env, DeviceEnv) and there.steps >= 40
    assert torch.equal(collected, plain.collector.rollout.observation)


def test_groups_of_agents_keep_their_columns():
    world = pytest.importorskip("mpe2.simple_speaker_listener_v4")
    factory = functools.partial(world.parallel_env, max_cycles=5)
    plain = make(factory, 2)
    with strict_device() as device:
        env = DeviceEnv(make(factory, 2), device)
        there, _ = recorded(env, 16, float("inf"), seed=3)
    assert env.groups == plain.groups and env.num_agents == 2 and env.num_envs == 4
    here_too, _ = recorded(plain, 16, float("inf"), seed=3)
    assert same(there, here_too)


def test_an_env_that_is_there_already_is_refused():
    with strict_device() as device:
        inner = DeviceEnv(InlineEnv(functools.partial(Counter, ""), 2, "test"), device)
        with pytest.raises(ValueError, match="test runs on meta already: DeviceEnv is for environments of the CPU"):
            DeviceEnv(inner, device)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("workers", [False, True])
def test_on_a_gpu_it_gives_what_the_env_gives(workers):
    counter = functools.partial(Counter, "")
    env = make(counter, 3, workers=1) if workers else InlineEnv(counter, 3, "test")
    seen = [{n: tree_map(torch.Tensor.cpu, c) for n, c in part.items()} for part in written(DeviceEnv(env, "cuda"))]
    env.close()
    assert_equal(seen, written(InlineEnv(counter, 3, "test")))


def test_the_cpu_itself_will_do():
    assert_equal(written(DeviceEnv(make("CartPole-v1", 3), "cpu")), written(make("CartPole-v1", 3)))
