"""EnvPool's environments in asynchronous collection: on a fake pool, and on EnvPool where it is installed."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch
from gymnasium.vector import SyncVectorEnv
from helpers.fake_envpool import TASK, fake_envpool

import headrace as hr
from headrace import envs
from headrace.data.rollout import Column, Rollout
from headrace.envs.vector.envpool import EnvPoolSource
from headrace.envs.vector.envpool_async import EnvPoolEnv
from headrace.parallel.collection_modes import make_collector
from headrace.policies.actor_critic import ActorCritic

DECLARED = {"log_prob": Column(), "value": Column(bootstrap=True)}
NAME = "envpool/" + TASK


@pytest.fixture
def pools(monkeypatch):
    """The fake pools that are made."""
    fake = fake_envpool()
    monkeypatch.setattr("headrace.envs.vector.envpool._envpool", lambda: fake)
    return fake.pools


def begun(env, steps=24, actions=3, seed=7):
    """A rollout in which all actions are decided, and episodes have begun."""
    rollout = Rollout(steps, env.num_envs, env.columns())
    drawn = torch.randint(actions, (steps, env.num_envs), generator=torch.Generator().manual_seed(1))
    rollout.action.copy_(drawn)
    env.reset(rollout, seed)
    return rollout


def each_at_its_own_pace(env, rollout, timeout=None):
    at = [0] * env.num_envs
    for world in range(env.num_envs):
        env.start(rollout, 0, world)
    while min(at) < rollout.num_steps:
        for world in env.get(timeout):
            at[world] += 1
            if at[world] < rollout.num_steps:
                env.start(rollout, at[world], world)
    assert env.get() == [] and env.ready() == []


def together(env, rollout):
    for t in range(rollout.num_steps):
        env.step(rollout, t)


def assert_same(ours, theirs):
    dead = ~theirs.valid[:-1]
    assert dead.any()
    for name in theirs.columns:
        rows = dead if name.startswith("episode") else ...  # written at masked steps alone
        # a Dict observation has one member, count
        a, b = (getattr(column, "count", column) for column in (getattr(ours, name), getattr(theirs, name)))
        assert torch.equal(a[rows], b[rows]), name


@pytest.mark.parametrize(
    ("batch_size", "options", "clip", "timeout"),
    [
        (1, {}, None, None),
        (2, {"slow": (0, 3)}, (-1, 1), None),
        (3, {"named": True}, None, None),
        (4, {}, (0, 12), 60.0),
        (5, {}, None, None),
    ],
)
def test_each_world_does_what_it_does_among_all(pools, batch_size, options, clip, timeout):
    ours = EnvPoolEnv(EnvPoolSource(TASK, 5, batch_size, **options), clip)
    theirs = EnvPoolEnv(EnvPoolSource(TASK, 5, **options), clip)
    if batch_size == 5:
        ours.make_async()
    rollouts = begun(ours), begun(theirs)
    for again in range(3):
        each_at_its_own_pace(ours, rollouts[0], timeout)
        together(theirs, rollouts[1])
        assert_same(*rollouts)
        for env, rollout in zip((ours, theirs), rollouts, strict=True):
            if again == 0:
                rollout.valid[-1, 1] = False  # cut off between two rollouts
            else:
                env.load_state_dict({})
            rollout.continue_from(rollout)
    assert len(pools) == 2 and len(pools[0].who) == 5 + batch_size - 1
    assert clip is None or rollouts[0].reward.max() == clip[1]
    together(ours, rollouts[0])  # as one may at any time
    together(theirs, rollouts[1])
    assert_same(*rollouts)


@pytest.mark.parametrize("pace", ["double_buffered", "async"])
def test_a_pace_changes_nothing_that_is_collected(pools, pace):
    collectors = []
    for how in (pace, "sync"):
        env = envs.make(NAME, 5)
        policy = ActorCritic(env.observation_space, env.action_space, hidden=(8,), seed=1)
        collectors.append(make_collector(how, 0.0, env, policy, 16, DECLARED, 3))
    for _ in range(3):
        ours, theirs = (collector.collect() for collector in collectors)
        dead = ~theirs.valid[:-1]
        for name in theirs.columns:
            rows = dead if name.startswith("episode") else ...
            torch.testing.assert_close(getattr(ours, name)[rows], getattr(theirs, name)[rows])
    assert [pool.batch_size for pool in pools] == [2, 5]


def test_what_is_started_is_sent_at_once(pools):
    env = envs.make(NAME, 6, batch_size=3)
    rollout = begun(env)
    for world in (4, 2, 5, 0):
        env.start(rollout, 0, world)
    (pool,) = pools
    assert pool.sends == 0
    assert len(env.get()) == 3 and pool.sends == 1
    before = len(pool.resets)
    assert len(env.get()) == 1 and pool.resets[before:] == [6, 7], "one is under way, so two that are spare fill up"
    assert env.get() == []


def test_stragglers_lose_no_step_and_repeat_none(pools):
    source = EnvPoolSource(TASK, 4, 2, slow=(0,))
    env = EnvPoolEnv(source)
    policy = ActorCritic(env.observation_space, env.action_space, hidden=(8,), seed=1)
    collector = make_collector("async", 0.25, env, policy, 8, DECLARED, 3)
    seen = [[] for _ in range(4)]
    for _ in range(12):
        rollout = collector.collect()
        for world in range(4):
            rows = rollout.valid[:-1, world]
            seen[world] += rollout.observation[:-1, world, 1:3][rows].int().tolist()
            acted = rows[:-1] & rows[1:]  # the next row tells what was done
            did, told = rollout.action[:-1, world], rollout.observation[1:-1, world, 3]
            assert torch.equal(did[acted].float(), told[acted])
    assert collector.dropped_steps > 0
    for world, steps in enumerate(seen):
        who = int(rollout.observation[0, world, 0])
        expected = [[e, step] for e in range(1, 40) for step in range(3 + (who + e) % 4)]
        assert len(steps) > 8 and steps == expected[: len(steps)]


def test_it_can_be_reset_and_closed_while_worlds_are_under_way(pools):
    env = envs.make(NAME, 4, batch_size=2)
    rollout = begun(env)
    first = rollout.observation[0].clone()
    for world in range(3):
        env.start(rollout, 0, world)
    assert len(env.get()) == 2
    env.step(rollout, 3)  # waits for the third before all step
    assert env.get() == []
    env.start(rollout, 4, 1)
    env.reset(rollout, 7)
    assert torch.equal(rollout.observation[0], first) and rollout.valid[0].all()
    assert env.get() == [] and [pool.closed for pool in pools] == [True, False]
    env.start(rollout, 0, 1)
    env.load_state_dict({})
    env.start(rollout, 1, 1)
    assert env.get() == [1] and not rollout.valid[1, 1] and rollout.valid[2, 1]
    env.start(rollout, 2, 0)
    env.close()
    env.close()
    assert env.get() == [] and all(pool.closed for pool in pools)


def test_who_may_not_wait_is_told_later(pools):
    gate = threading.Event()
    gate.set()
    env = envs.make(NAME, 4, batch_size=2, gate=gate)
    rollout = begun(env)
    gate.clear()
    for world in range(3):
        env.start(rollout, 0, world)
    assert env.get(0.001) == [] and env.ready() == []
    env.start(rollout, 0, 3)
    assert env.ready() == []
    gate.set()
    told = [*env.get(), *env.get()]
    assert sorted(told) == [0, 1, 2, 3] and env.ready() == []
    gate.clear()
    env.start(rollout, 1, 2)
    assert env.ready() == []
    gate.set()
    env.close()  # waits for the thread


def test_training_at_their_own_pace(pools):
    options = {"num_envs": 8, "num_steps": 8, "collection": "async", "drop_slowest": 0.25}
    trainer = hr.Trainer("a2c", NAME, **options)
    assert type(trainer.env) is EnvPoolEnv and pools[-1].batch_size == 4
    assert trainer.settings()["workers"] is None, "a resumed run makes the same"
    for _ in range(3):
        metrics = trainer.iterate().metrics
    assert np.isfinite(list(metrics.values())).all() and trainer.episodes.count > 0
    state = trainer.state_dict()
    trainer.load_state_dict(state)
    assert trainer.env.get() == []
    trainer.iterate()
    again = hr.Trainer("a2c", NAME, **options)
    again.load_state_dict(state)
    again.iterate()
    trainer.close()
    again.close()
    ready = hr.Trainer("a2c", envs.make(NAME, 8, batch_size=3), num_steps=8, collection="async")
    ready.iterate()
    assert pools[-1].batch_size == 3


def test_what_does_not_go_is_said(pools):
    def several(num_envs):
        return SyncVectorEnv([envs.factory("CartPole-v1")] * num_envs)

    asynchronous = {"num_steps": 4, "collection": "async"}
    with pytest.raises(ValueError, match=r"of EnvPool or MuJoCo, or actors: .* runs with the backend 'vector' on cpu"):
        hr.Trainer("a2c", several, num_envs=2, **asynchronous)
    with pytest.raises(ValueError, match="'async' needs 2 environments or more, and there is 1"):
        hr.Trainer("a2c", NAME, num_envs=1, **asynchronous)
    with pytest.raises(ValueError, match="'async' does not work with agent_info"):
        hr.Trainer("a2c", NAME, num_envs=2, agent_info=torch.zeros(2, 1), **asynchronous)
    with pytest.raises(ValueError, match="batch_size must be between 1 and num_envs = 4, got 0"):
        envs.make(NAME, 4, batch_size=0)
    env = envs.make(NAME, 4)
    rollout = begun(env)
    with pytest.raises(ValueError, match=r"step together: call make_async\(\) and reset\(\)"):
        env.start(rollout, 0, 1)
    env.make_async()
    rollout = begun(env)
    env.start(rollout, 0, 1)
    with pytest.raises(ValueError, match="environment 1 is still at a step"):
        env.start(rollout, 0, 1)
    with pytest.raises(ValueError, match="being stepped in another rollout"):
        env.start(Rollout(4, 4, env.columns()), 0, 2)


# ---- EnvPool itself


@pytest.mark.parametrize(("batch_size", "timeout"), [(1, None), (3, 0.001)])
def test_envpool_does_at_its_own_pace_what_it_does_together(batch_size, timeout):
    pytest.importorskip("envpool")
    ours, theirs = (envs.make("envpool/CartPole-v1", 4, batch_size=size) for size in (batch_size, None))
    rollouts = begun(ours, 60, 2), begun(theirs, 60, 2)
    for _ in range(2):
        each_at_its_own_pace(ours, rollouts[0], timeout)
        together(theirs, rollouts[1])
        assert_same(*rollouts)
        for env, rollout in zip((ours, theirs), rollouts, strict=True):
            env.load_state_dict({})
            rollout.continue_from(rollout)
    ours.start(rollouts[0], 0, 2)
    ours.ready()
    ours.close()


@pytest.mark.parametrize("drop_slowest", [0.0, 0.5])
def test_envpool_trains_at_its_own_pace(drop_slowest):
    pytest.importorskip("envpool")
    options = {"num_envs": 4, "num_steps": 16, "epochs": 1, "collection": "async", "drop_slowest": drop_slowest}
    trainer = hr.Trainer("ppo", "envpool/CartPole-v1", **options)
    for _ in range(3):
        trainer.iterate()
    trainer.load_state_dict(trainer.state_dict())
    trainer.iterate()
    live_and_dead = 4 * 64 - trainer.collector.dropped_steps
    assert 0 < trainer.steps <= live_and_dead and (trainer.collector.dropped_steps == 0 or drop_slowest)
    trainer.close()


@pytest.mark.parametrize("apart", [False, True])
def test_infos_of_endings_are_in_the_masked_rows_after_them(pools, apart):
    env = envs.make(NAME, 5)
    if apart:
        env.make_async()
    rollout = Rollout(24, 5, env.columns() | {"info": {"env_id": Column()}})
    rollout.action.zero_()
    env.reset(rollout, 7)
    (each_at_its_own_pace if apart else together)(env, rollout)
    ended = ~rollout.valid[:-1] & (rollout.episode_length > 0)
    assert ended.sum() > 10
    assert torch.equal(rollout.info.env_id[ended], torch.arange(5.0).expand(24, 5)[ended])
    assert rollout.info.env_id[0].tolist() == [0] * 5
    unknown = Rollout(24, 5, env.columns() | {"info": {"score": Column()}})
    unknown.action.zero_()
    env.reset(unknown, 7)
    with pytest.raises(ValueError, match="log_info names score, and the info of an episode's last step has 'env_id'"):
        (each_at_its_own_pace if apart else together)(env, unknown)
