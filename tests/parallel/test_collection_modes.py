"""Double-buffered and asynchronous workers collect what all of them together collect."""

from __future__ import annotations

import functools

import gymnasium
import pytest
import torch
from helpers.gated import Gated, set_up

from headrace.data.rollout import Column
from headrace.envs.gym.inline import InlineEnv
from headrace.envs.workers.env import WorkerEnv
from headrace.parallel.collection_modes import make_collector
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.recurrent import RecurrentActorCritic
from headrace.training.trainer import Trainer

CARTPOLE = functools.partial(gymnasium.make, "CartPole-v1")
DECLARED = {"log_prob": Column(), "value": Column(bootstrap=True)}


@pytest.fixture
def workers():
    """A maker of WorkerEnvs that are closed at the end."""
    made = []

    def make(factory, num_envs, number, **options):
        made.append(WorkerEnv(factory, num_envs, "test", number, **options))
        return made[-1]

    yield make
    for env in made:
        env.close()


def policy_of(env, recurrent=False):
    kind = RecurrentActorCritic if recurrent else ActorCritic
    return kind(env.observation_space, env.action_space, hidden=(8,), seed=1)


@pytest.mark.parametrize("recurrent", [False, True])
@pytest.mark.parametrize("mode", ["double_buffered", "async"])
def test_a_pace_changes_nothing_that_is_collected(workers, mode, recurrent):
    collectors = []
    for env, how in ((workers(CARTPOLE, 5, 3), mode), (InlineEnv(CARTPOLE, 5, "test"), "sync")):
        policy = policy_of(env, recurrent)
        collectors.append(make_collector(how, 0.0, env, policy, 16, DECLARED | policy.columns(), 3))
    for _ in range(3):
        ours, theirs = (collector.collect() for collector in collectors)
        dead = ~theirs.valid[:-1]
        assert dead.any() or collectors[0].steps < 48
        for name in theirs.columns:
            rows = dead if name.startswith("episode") else ...  # written at masked steps alone
            ours_, theirs_ = getattr(ours, name)[rows], getattr(theirs, name)[rows]
            assert torch.equal(ours_, theirs_), name
    assert collectors[0].dropped_steps == 0
    if recurrent:
        assert torch.equal(collectors[0].rnn_state, collectors[1].rnn_state)


def test_who_is_ready_goes_on_and_stragglers_come_later(workers, tmp_path):
    gates = {(0, 1): ("", "open")}
    env = workers(functools.partial(Gated, str(tmp_path), gates), 2, 2, set_up=set_up)
    rollout = env.rollout(4, env.columns())
    env.reset(rollout, 0)
    env.start(rollout, 0, 0)
    env.start(rollout, 0, 1)
    with pytest.raises(ValueError, match="worker 0 is still at a step"):
        env.start(rollout, 1, 0)
    for t in range(1, 4):
        assert env.get() == [1]
        env.start(rollout, t, 1)
    assert env.get() == [1] and env.ready() == [] and env.get(0.001) == []
    assert rollout.observation[:, 1, 0].tolist() == [0, 1, 2, 3, 4]
    assert rollout.observation[:, 0, 0].tolist() == [0, 0, 0, 0, 0]
    (tmp_path / "open").touch()
    assert env.get() == [0] and env.get() == []
    assert rollout.observation[1, 0, 0] == 1
    with pytest.raises(ValueError, match="a rollout that rollout"):
        env.start(object(), 0, 0)


def test_stragglers_are_cut_off_and_their_step_is_the_first_of_the_next_rollout(workers, tmp_path):
    # world 0 is held up at its step 3, the third of the first rollout; world 1 waits until it is there, and is held up
    # itself at its step 5, the first of the second
    gates = {(0, 3): ("there", "open"), (1, 1): ("", "there"), (1, 5): ("", "through")}
    env = workers(functools.partial(Gated, str(tmp_path), gates), 2, 2, set_up=set_up)
    policy = policy_of(env)
    collector = make_collector("async", 0.5, env, policy, 4, DECLARED, 3)

    first = collector.collect()
    assert first.valid[:, 0].tolist() == [True, True, False, False, False] and first.valid[:, 1].all()
    assert first.truncated[:, 0].tolist() == [False, True, False, False] and not first.truncated[:, 1].any()
    assert first.observation[:3, 0, 0].tolist() == [0, 1, 2] and first.observation[:, 1, 0].tolist() == [0, 1, 2, 3, 4]
    with torch.no_grad():  # what follows is what is seen then worth
        torch.testing.assert_close(first.value[2, 0], policy.value(first.observation[2])[0])
    assert collector.dropped_steps == 2
    action, log_prob = first.action[2, 0].clone(), first.log_prob[2, 0].clone()

    (tmp_path / "open").touch()
    with torch.no_grad():
        for parameter in policy.parameters():  # learning
            parameter.add_(0.5)
    second = collector.collect()
    assert second.valid[:, 0].all() and second.observation[:, 0, 0].tolist() == [2, 3, 4, 5, 6]
    assert second.action[0, 0] == action and second.log_prob[0, 0] == log_prob
    assert second.observation[1:, 0, 1].tolist() == second.action[:, 0].tolist()  # each did what was decided for it
    with torch.no_grad():
        evaluation = policy.log_prob_entropy_value(second.observation[1:4, 0], second.action[1:, 0])
    torch.testing.assert_close(second.log_prob[1:, 0], evaluation.log_prob)
    assert not second.valid[:, 1].any() and collector.dropped_steps == 6  # world 1 got nowhere

    (tmp_path / "through").touch()
    held = second.action[0, 1].item()
    seen = []
    while len(seen) < 6:  # world 1 goes on with its step 5, at whatever row it is then
        third = collector.collect()
        rows = third.valid[:-1, 1]
        assert (third.valid[:-1, 1] | ~third.valid[1:, 1]).all()  # masked steps are the last
        seen += third.observation[:-1, 1, 0][rows].tolist()
        if held is not None and rows.any():
            assert third.action[0, 1] == held
            held = None
    assert seen == list(range(4, 4 + len(seen)))


def named_cartpole():
    """CartPole whose observation is a Dict."""
    env = gymnasium.make("CartPole-v1")
    space = gymnasium.spaces.Dict({"cart": env.observation_space})
    return gymnasium.wrappers.TransformObservation(env, lambda seen: {"cart": seen}, space)


def test_stragglers_may_see_dicts(workers):
    env = workers(named_cartpole, 2, 2)
    collector = make_collector("async", 0.5, env, policy_of(env), 8, DECLARED, 3)
    for _ in range(3):
        rollout = collector.collect()
        seen = rollout.observation.cart[rollout.valid]
        assert len(seen) > 0 and (seen.abs().sum(-1) > 0).all()


def test_a_death_at_their_own_pace_is_mended(workers, tmp_path):
    from helpers.faulty import Counter

    factory = functools.partial(Counter, "kill", once=str(tmp_path / "happened"))
    env = workers(factory, 4, 2, on_error="restart")
    collector = make_collector("async", 0.0, env, policy_of(env), 8, DECLARED, 3)
    for _ in range(3):
        rollout = collector.collect()
    assert env.restarts == 2 and rollout.valid.any()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"collection": "double_buffered", "workers": 1}, "'double_buffered' needs 2 workers or more, and there is 1"),
        (
            {"collection": "async", "backend": "inline"},
            "needs environments with one agent, in workers, .* runs with the backend 'inline'",
        ),
        (
            {"collection": "double_buffered", "workers": 2, "drop_slowest": 0.5},
            "drop_slowest=0.5 needs collection='async'",
        ),
        ({"collection": "async", "workers": 2, "drop_slowest": 1.0}, r"0 to below 1, got 1.0"),
    ],
)
def test_what_a_pace_cannot_do_is_said(options, message):
    with pytest.raises(ValueError, match=message):
        Trainer("a2c", CARTPOLE, num_envs=2, num_steps=4, **options)


def test_halves_give_the_same_bits_each_time():
    runs = []
    for _ in range(2):
        trainer = Trainer(
            "a2c", CARTPOLE, num_envs=5, num_steps=8, workers=3, collection="double_buffered", hidden=(8,), seed=2
        )
        runs.append([trainer.iterate() for _ in range(3)])
        trainer.close()
    assert runs[0] == runs[1]


def test_training_at_the_workers_own_pace(tmp_path):
    trainer = Trainer("a2c", CARTPOLE, num_envs=4, num_steps=8, workers=2, collection="async", drop_slowest=0.5)
    assert "4 environments of" in trainer.resources and "in 2 processes" in trainer.resources
    for _ in range(3):
        trainer.iterate()
    assert (
        trainer.steps + trainer.collector.dropped_steps <= 96
        and trainer.result().row()["dropped_steps"] == trainer.collector.dropped_steps
    )
    state = trainer.state_dict()
    trainer.load_state_dict(state)
    trainer.iterate()
    trainer.close()
