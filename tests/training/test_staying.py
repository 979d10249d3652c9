"""Objects that several parts of a training hold are not replaced in one of them alone: a line says so, or all
follow."""

import copy
import dataclasses
from contextlib import closing

import pytest
import torch
from helpers.learned import made

import headrace as hr
from headrace.agent_groups.group_algorithm import Grouped
from headrace.algorithms.adam import Adam
from headrace.algorithms.base import ALGORITHMS

ON_POLICY = ("ppo", "a2c", "reinforce", "trpo", "pqn", "appo", "impala")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_policy_of_an_algorithm_stays(name):
    algorithm, rollout = made(name)
    policy = algorithm.policy
    with pytest.raises(AttributeError, match=r"policy of this \w+ cannot be replaced: .*load_state_dict"):
        algorithm.policy = copy.deepcopy(policy)
    algorithm.policy = policy  # the same one
    algorithm.update(rollout, 0.0)
    assert algorithm.policy is policy


@pytest.mark.parametrize("name", [name for name in ALGORITHMS if name not in ON_POLICY])
def test_what_learns_is_what_is_saved(name):
    algorithm, rollout = made(name)
    for part in ("networks", "optimizers", "buffers", "optimizer", "temperature", "log_temperature"):
        if vars(algorithm).get(part, {}) != {}:  # behaviour cloning has no buffers
            before = getattr(algorithm, part)
            other = before._replace() if part == "networks" else {**before, "": 0} if type(before) is dict else object()
            with pytest.raises(AttributeError, match=f"{part} of this .* cannot be replaced"):
                setattr(algorithm, part, other)
            assert getattr(algorithm, part) is before
    algorithm.update(rollout, 0.0)


@pytest.mark.parametrize("name", ["sac", "td3", "dqn"])
def test_a_replaced_member_of_the_optimizers_is_refused(name):
    algorithm, rollout = made(name)
    key = next(iter(algorithm.optimizers))
    algorithm.optimizers[key] = Adam([torch.nn.Parameter(torch.zeros(2))], 1e-3)
    with pytest.raises(ValueError, match="put it back"):
        algorithm.update(rollout, 0.0)


def test_a_replaced_optimizer_of_ppo_is_followed():
    algorithm, rollout = made("ppo")
    algorithm.optimizer = new = Adam(algorithm.policy.parameters(), 3e-4)
    algorithm.update(rollout, 0.0)
    assert new.steps > 0 and torch.equal(algorithm.state_dict()["optimizer"]["mean"], new.mean)
    algorithm.optimizer = torch.optim.Adam(algorithm.policy.parameters())
    with pytest.raises(TypeError, match="optimizer must be an Adam of headrace"):
        algorithm.update(rollout, 0.0)


def test_settings_that_nobody_would_read_are_refused():
    algorithm, rollout = made("ppo", schedule="constant")
    config = algorithm.config
    with pytest.raises(AttributeError, match=r"made with num_steps=8, 16 is too late: make a new Trainer"):
        algorithm.config = dataclasses.replace(config, num_steps=16)
    with pytest.raises(AttributeError, match=r"learning_rate"):
        algorithm.config = dataclasses.replace(config, learning_rate=1.0)
    algorithm.config = dataclasses.replace(config, clip=1e-6)
    before = [x.detach().clone() for x in algorithm.policy.actor.parameters()]
    assert algorithm.update(rollout, 0.0)["clip_fraction"] > 0
    assert not all(map(torch.equal, before, algorithm.policy.actor.parameters()))


def test_a_trainer_and_its_collector_keep_their_parts():
    settings = {"num_envs": 2, "num_steps": 4, "total_steps": 100, "hidden": (8,), "registered": False, "scale": False}
    with closing(hr.Trainer("ppo", "CartPole-v1", progress="none", **settings)) as trainer:
        trainer.iterate()
        for part in ("policy", "algorithm", "collector", "plan"):
            with pytest.raises(AttributeError, match=f"{part} of this Trainer cannot be replaced"):
                setattr(trainer, part, object())
        for part in ("policy", "rollout"):
            with pytest.raises(AttributeError, match=f"{part} of this InlineCollector cannot be replaced"):
                setattr(trainer.collector, part, object())
        trainer.iterate()
        assert trainer.collector.policy is trainer.policy is trainer.algorithm.policy


def test_groups_of_agents_keep_their_policies():
    algorithms = {name: made("ppo", seed)[0] for seed, name in enumerate("ab")}
    grouped = Grouped(algorithms, {"a": ("one",), "b": ("two", "three")})
    for part in ("policy", "algorithms"):
        with pytest.raises(AttributeError, match=f"{part} of this Grouped cannot be replaced"):
            setattr(grouped, part, object())
    with pytest.raises(AttributeError, match="policy of this PPO cannot be replaced"):
        algorithms["a"].policy = copy.deepcopy(algorithms["b"].policy)
