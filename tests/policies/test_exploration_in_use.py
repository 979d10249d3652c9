"""Uses of a policy that do not explore as its training does: predict(), evaluations, a loaded run."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import headrace as hr
from headrace.agent_groups.group_policy import GroupedPolicy
from headrace.data.spaces import Box, Discrete
from headrace.evaluation.evaluator import evaluate
from headrace.policies.actor_q import ActorQ
from headrace.policies.q_network import QNetwork

SEEN = Box(-1, 1, (3,))
IMAGES = Box(0, 255, (1, 36, 36), np.uint8)
ACTIONS = Box(np.array([-2, 0], np.float32), np.array([4, 1], np.float32))
WITHOUT_DISTRIBUTION = {
    "TD3": lambda: ActorQ(SEEN, ACTIONS, (16,), deterministic=True),
    "noise that remembers": lambda: ActorQ(SEEN, ACTIONS, (16,), deterministic=True, noise_autocorrelation=0.9),
    "recurrent TD3": lambda: ActorQ(SEEN, ACTIONS, (16,), deterministic=True, recurrent="gru", rnn_size=8),
    "DQN": lambda: QNetwork(SEEN, Discrete(5, start=-1)),
    "dueling": lambda: QNetwork(SEEN, Discrete(5), dueling=True),
    "recurrent DQN": lambda: QNetwork(SEEN, Discrete(5), recurrent="lstm", rnn_size=8),
}
SAMPLING = {
    "SAC": lambda: ActorQ(SEEN, ACTIONS, (16,)),
    "TQC": lambda: ActorQ(SEEN, ACTIONS, (16,), quantiles=5),
    "CrossQ": lambda: ActorQ(SEEN, ACTIONS, (16,), batch_renorm=10),
    "recurrent SAC": lambda: ActorQ(SEEN, ACTIONS, (16,), recurrent="gru", rnn_size=8),
    "images": lambda: ActorQ(IMAGES, ACTIONS, (16,)),
}


def exploring(make):
    """A policy whose training has just begun: all that it does is explore."""
    policy = make()
    policy.exploration.fill_(1.0)
    if isinstance(policy, ActorQ):
        policy.random.fill_(1.0)
    return policy


def observations(policy, rows=6):
    return np.stack([policy.observation_space.sample() for _ in range(rows)])


@pytest.mark.parametrize("kind", WITHOUT_DISTRIBUTION)
def test_a_policy_without_distribution_has_one_action(kind):
    policy = exploring(WITHOUT_DISTRIBUTION[kind])
    policy.observation_space.seed(1)
    seen = observations(policy)
    best = policy.predict(seen)[0]
    for _ in range(5):
        np.testing.assert_array_equal(policy.predict(seen, deterministic=False)[0], best)
        np.testing.assert_array_equal(policy.predict(seen[0], deterministic=False)[0], best[0])
    draws = torch.rand(6, policy.num_draws)
    with torch.no_grad():
        acted = policy.act(torch.from_numpy(seen), policy.initial_state(6), draws).action
    assert not np.array_equal(acted.numpy(), best)  # collecting explores


@pytest.mark.parametrize("kind", SAMPLING)
def test_a_distribution_is_sampled_also_while_the_training_acts_at_random(kind):
    policy, trained = exploring(SAMPLING[kind]), SAMPLING[kind]()
    policy.observation_space.seed(1)
    for seen in (observations(policy), observations(policy)[0]):
        of = [torch.Generator().manual_seed(3) for _ in range(2)]
        found, expected = (
            x.predict(seen, deterministic=False, generator=of[k])[0] for k, x in enumerate((policy, trained))
        )
        np.testing.assert_array_equal(found, expected)
    assert policy.random.item() == 1.0  # the training goes on as it was


def test_groups_and_evaluations_do_not_explore():
    best = []
    for explores in (False, True):
        policy = ActorQ(
            Box(np.array([-1, -1, -8], np.float32), np.array([1, 1, 8], np.float32)),
            Box(-2, 2, (1,)),
            (8,),
            deterministic=True,
        )
        policy.exploration.fill_(float(explores)), policy.random.fill_(float(explores))
        best.append(evaluate(policy, "Pendulum-v1", 2, deterministic=False, most_steps=20).returns)
        group = GroupedPolicy({"all": policy}, {"all": ["one", "other"]})
        with torch.no_grad():
            outputs = group.act_without_exploration(torch.ones(4, 3), None, torch.rand(4, 2))
        assert len(set(outputs.action.flatten().tolist())) == 1
    assert best[0] == pytest.approx(best[1])


@pytest.mark.parametrize("algorithm", ["td3", "ddpg", "sac"])
def test_a_run_that_was_stopped_while_it_acted_at_random_is_loaded_without_that(algorithm, tmp_path):
    settings = {"total_steps": 400, "num_envs": 4, "num_steps": 25, "learning_starts": 10_000, "progress": "none"}
    run = hr.train(algorithm, "Pendulum-v1", log_folder=str(tmp_path), **settings)
    policy, seen = hr.load(run.path), np.ones((64, 3), np.float32)
    actions = policy.predict(seen, deterministic=False)[0]
    assert policy.random.item() == 1.0
    spread = np.ptp(actions)
    assert spread > 0.1 if algorithm == "sac" else spread == 0
    assert (np.abs(actions) < 2).all()
