"""Collecting with policies of Headrace: bit for bit what deciding and stepping by turns gives, and when all steps are
one call."""

from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from helpers.corridor import Corridor

from headrace import envs
from headrace.bindings.collecting import compiled_collecting
from headrace.core import fused
from headrace.core.stopping import Stopped
from headrace.data.rollout import Column
from headrace.envs.compiled.env import CompiledEnv
from headrace.envs.gym.inline import InlineEnv
from headrace.parallel.collector import InlineCollector, steps
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.networks import MLP

COLUMNS = {"log_prob": Column(), "value": Column(bootstrap=True)}
NAMES = ("observation", "valid", "action", "log_prob", "value", "reward", "terminated", "truncated")
NAMES += ("episode_return", "episode_length")


def collector(name, num_envs, num_steps=40, env=None, **options):
    env = env or envs.make(name, num_envs, backend="cpu", threads=1)
    policy = ActorCritic(env.observation_space, env.action_space, (16, 8), seed=3, **options)
    flat = torch.cat([p.detach().flatten() for p in policy.parameters()])
    places = flat.split([p.numel() for p in policy.parameters()])
    for parameter, place in zip(policy.parameters(), places, strict=True):
        parameter.data = place.view(parameter.shape)
    return InlineCollector(env, policy, num_steps, COLUMNS, seed=5)


def by_turns(source):
    """collect() without the kernel for all steps, but with those for each."""
    kernels = fused._kernels["collector.steps"]
    taken = kernels[:]
    kernels.clear()
    try:
        return source.collect()
    finally:
        kernels.extend(taken)


@pytest.mark.parametrize("num_envs", [1, 8, 16, 100, 200])
@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_bits_are_those_of_deciding_and_stepping_by_turns(name, num_envs):
    together, turns = collector(name, num_envs), collector(name, num_envs)
    for _ in range(3):
        mine, theirs = together.collect(), by_turns(turns)
        for column in NAMES:
            assert torch.equal(getattr(mine, column), getattr(theirs, column)), column
    assert not mine.valid.all() or name == "Pendulum-v1"


def test_normalisers_that_move_are_followed():
    options = {"normalize_observation": True, "normalize_return": True}
    together, turns = collector("CartPole-v1", 70, **options), collector("CartPole-v1", 70, **options)
    for _ in range(3):
        mine, theirs = together.collect(), by_turns(turns)
        for column in NAMES:
            assert torch.equal(getattr(mine, column), getattr(theirs, column)), column
        for source in (together, turns):
            source.policy.update_statistics(source.rollout, source.rollout.value[:-1] * 3 + 1)
            with torch.no_grad():
                source.policy.actor_out.weight.mul_(1.5)


class TwoActions(gymnasium.Env):
    """Continuous actions of two numbers; observations follow from them, episodes end after 7 steps."""

    observation_space = gymnasium.spaces.Box(-9, 9, (3,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.np_random.normal(size=3).astype(np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.float32([*action, self.steps]), float(action.sum()), self.steps == 7, False, {}


@pytest.mark.parametrize("num_envs", [1, 3, 70])
@pytest.mark.parametrize("make", [lambda: gymnasium.make("CartPole-v1"), TwoActions])
def test_other_environments_have_a_call_per_step_with_the_same_bits(make, num_envs):
    def source():
        env = InlineEnv(make, num_envs, "an environment")
        return collector("", num_envs, 30, env, normalize_observation=True, normalize_return=True)

    calls, turns = source(), source()
    with torch.no_grad():
        assert fused.kernel_of(steps, calls, 0) is compiled_collecting.steps
    for _ in range(3):
        mine, theirs = calls.collect(), by_turns(turns)
        for column in NAMES:
            assert torch.equal(getattr(mine, column), getattr(theirs, column)), column
        assert set(calls.timer.seconds) == {"inference", "env"}
        for each in (calls, turns):  # what may move, and what is learned
            each.policy.update_statistics(each.rollout, each.rollout.value[:-1] * 3 + 1)
            each.policy.encoder.normalizer.scale = each.policy.encoder.normalizer.scale.clone()
            with torch.no_grad():
                each.policy.actor_out.weight.mul_(1.5)
    calls.rollout.value = calls.rollout.value.clone()  # what lies elsewhere is written there
    calls.rollout.value.zero_()
    calls.collect()
    assert calls.rollout.value.all()


def test_a_call_per_step_can_be_stopped_and_is_not_for_every_collector():
    class Other(InlineCollector):
        def act(self, t, random):
            super().act(t, random)

    source = collector("", 2, 8, InlineEnv(TwoActions, 2, "an environment"))
    asked = iter([False, False, True])
    source.stop = lambda: next(asked)
    with pytest.raises(Stopped):
        source.collect()
    assert source.rollout.log_prob[1].all() and not source.rollout.log_prob[2].any()
    other = Other(source.env, source.policy, 8, COLUMNS, 0)
    with torch.no_grad():
        assert fused.kernel_of(steps, other, 0) is None


def test_bits_do_not_depend_on_threads(monkeypatch):
    monkeypatch.setattr(compiled_collecting, "WORTH_HELP", 0)
    monkeypatch.setattr("headrace.bindings.compiled.loss_program.WORTH_HELP", 0)
    found = []
    for threads in ("1", "2", "3"):
        monkeypatch.setenv("HEADRACE_THREADS", threads)
        rollout = collector("CartPole-v1", 1100, 10).collect()
        found.append([getattr(rollout, column).clone() for column in NAMES])
    for other in found[1:]:
        assert all(map(torch.equal, found[0], other))


def test_worlds_with_memory_of_many_entries_and_parameters_of_their_own():
    def make():
        source = collector("Catch", 70, 30)
        force = torch.linspace(5, 15, 1500).numpy()
        worlds = CompiledEnv(
            envs.sources.find("headrace.envs.builtin.cartpole:CartPole"), 1500, params={"force": force}
        )
        return source, InlineCollector(worlds, collector("CartPole-v1", 1).policy, 12, COLUMNS, seed=1)

    for mine, theirs in zip(make(), make(), strict=True):
        one, other = mine.collect(), by_turns(theirs)
        for column in NAMES:
            assert torch.equal(getattr(one, column), getattr(other, column)), column


def test_going_on_from_a_state_is_bit_equal():
    source, other = collector("CartPole-v1", 8), collector("CartPole-v1", 8)
    source.collect()
    state = source.state_dict()
    state["env"] = {name: getattr(value, "clone", lambda v=value: v)() for name, value in state["env"].items()}
    expected = source.collect()
    other.load_state_dict(state)
    found = other.collect()
    assert all(torch.equal(getattr(expected, column), getattr(found, column)) for column in NAMES)


def test_rehearsing_leaves_no_trace():
    rehearsed, other = collector("CartPole-v1", 8), collector("CartPole-v1", 8)
    rehearsed.warm_up()
    mine, theirs = rehearsed.collect(), other.collect()
    assert all(torch.equal(getattr(mine, column), getattr(theirs, column)) for column in NAMES)


def test_time_is_booked_by_part():
    source = collector("CartPole-v1", 64)
    source.collect()
    assert set(source.timer.seconds) <= {"inference", "env", "collecting"}
    assert min(source.timer.seconds.values()) > 0


def in_one_call(source):
    """Tell whether all steps are one call; None where no program collects."""
    with torch.no_grad():
        if fused.kernel_of(steps, source, 0) is not compiled_collecting.steps:
            return None
    return type(compiled_collecting._acts.last(source.rollout)) is compiled_collecting._Steps


def test_what_it_does_not_know_goes_by_turns(monkeypatch):
    source = collector("CartPole-v1", 8)
    assert in_one_call(source)
    with fused.plain_only():
        assert in_one_call(source) is None
    source.env = SimpleNamespace(backend="cpu", num_envs=8, first_env=0, device=source.env.device)
    assert not in_one_call(source)
    corridor = Corridor(64)
    assert not in_one_call(
        InlineCollector(corridor, ActorCritic(corridor.observation_space, corridor.action_space), 4, COLUMNS, 0)
    )
    wrapped = collector("CartPole-v1", 8)
    wrapped.env.step = lambda rollout, t: None
    assert not in_one_call(wrapped)
    scattered = collector("CartPole-v1", 8)
    scattered.policy.actor_out.weight.data = scattered.policy.actor_out.weight.data.clone()
    assert in_one_call(scattered)
    monkeypatch.setattr(ActorCritic, "forward", lambda self, observation: None)
    assert in_one_call(collector("CartPole-v1", 8)) is None


def test_what_changes_after_a_rollout_is_seen(monkeypatch):
    source = collector("CartPole-v1", 8)
    source.collect()
    assert in_one_call(source)
    hook = source.policy.critic_out.register_forward_hook(lambda *call: None)
    assert in_one_call(source) is None
    hook.remove()
    assert in_one_call(source)
    with monkeypatch.context() as patch:
        patch.setattr(ActorCritic, "value", lambda policy, observation, rnn_state=None: observation[:, 0])
        rollout = source.collect()
        assert torch.equal(rollout.value[-1], rollout.observation[-1][:, 0])
    with monkeypatch.context() as patch:
        patch.setattr(MLP, "forward", lambda mlp, features: features)
        assert in_one_call(source) is None
    assert in_one_call(source)
    source.rollout.value = source.rollout.value.double()
    assert not in_one_call(source)
