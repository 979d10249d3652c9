"""The collector: what it fills, and that it goes on where it stopped."""

import copy

import torch
from helpers.corridor import LIMIT, Corridor

from headrace.core.timer import Timer
from headrace.data.rollout import Column
from headrace.envs.builtin.cartpole import CartPole
from headrace.envs.compiled.env import CompiledEnv
from headrace.parallel.collector import InlineCollector
from headrace.policies.actor_critic import ActorCritic

COLUMNS = {"log_prob": Column(), "value": Column(bootstrap=True)}


def collector(steps=20, seed=0, timer=None):
    env = Corridor(64)
    policy = ActorCritic(env.observation_space, env.action_space, (8,), seed=2)
    return InlineCollector(env, policy, steps, COLUMNS, seed, timer)


def everything(rollout):
    return {name: getattr(rollout, name).clone() for name in rollout.columns}


def test_what_is_collected_replays():
    source = collector()
    rollout = source.collect()
    with torch.no_grad():
        replay = source.policy.evaluate_rollout(rollout)
        edge = source.policy.value(rollout.observation[-1])
    torch.testing.assert_close(replay.log_prob, rollout.log_prob, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(replay.value, rollout.value[:-1], rtol=1e-6, atol=1e-6)
    assert torch.equal(edge, rollout.value[-1])
    assert set(rollout.action.unique().tolist()) == {0, 1}


def test_endings_leave_a_dead_row_with_the_episodes_figures():
    rollout = collector(60).collect()
    ended = rollout.terminated | rollout.truncated
    assert rollout.truncated.any() and rollout.terminated.any()
    assert torch.equal(ended[:-1], ~rollout.valid[1:-1])
    assert rollout.episode_length[~rollout.valid[:-1]].max() == LIMIT
    assert not rollout.reward[~rollout.valid[:-1]].any()


def test_two_rollouts_equal_one_of_twice_the_length():
    whole = everything(collector(20).collect())
    halves = collector(10)
    first, second = everything(halves.collect()), everything(halves.collect())
    for name in ("observation", "action", "reward", "valid"):
        assert torch.equal(torch.cat((first[name][:10], second[name][:10])), whole[name][:20]), name


def test_the_seed_decides_the_actions():
    first, again, other = (everything(collector(seed=seed).collect()) for seed in (0, 0, 1))
    assert torch.equal(first["action"], again["action"])
    assert not torch.equal(first["action"], other["action"])


def test_going_on_from_a_state_is_bit_equal():
    source = collector()
    source.collect()
    state = copy.deepcopy(source.state_dict())
    expected = everything(source.collect())
    other = collector()
    other.load_state_dict(state)
    for name, column in everything(other.collect()).items():
        assert torch.equal(column, expected[name]), name


def test_time_is_booked_by_part():
    timer = Timer()
    collector(timer=timer).collect()
    assert set(timer.seconds) == {"inference", "env"} and min(timer.seconds.values()) > 0


def test_collectors_of_parts_collect_what_one_of_the_whole_collects():
    def collected(num_envs, first_env):
        env = CompiledEnv(CartPole, num_envs, "cpu", first_env=first_env)
        policy = ActorCritic(env.observation_space, env.action_space, (8,), seed=2)
        source = InlineCollector(env, policy, 30, COLUMNS, seed=4)
        source.collect()
        return everything(source.collect())

    whole, parts = collected(128, 0), [collected(64, 0), collected(64, 64)]
    for name, column in whole.items():
        assert torch.equal(column, torch.cat([part[name] for part in parts], 1)), name
