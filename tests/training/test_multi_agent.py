"""Training with several agents in an environment: which policy learns from which rows, and what is logged."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

pytest.importorskip("pettingzoo")
from helpers.relay import Relay

import headrace as hr
from headrace import envs
from headrace.agent_groups.group_algorithm import Grouped, seed_of
from headrace.agent_groups.group_policy import GroupedPolicy
from headrace.algorithms.ppo import PPO, PPOConfig
from headrace.data.rollout import Group
from headrace.data.spaces import action_column, observation_column
from headrace.envs.wrappers.device_env import DeviceEnv
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.recurrent import RecurrentActorCritic
from headrace.training.trainer import Trainer

HEN = (Box(-1, 300, (3,)), Box(-1, 1, (2,)))
FARM = {"fox_0": 3, "fox_1": 5, "hen_0": 4}
SMALL = {"num_envs": 2, "num_steps": 8, "hidden": (300,)}  # too wide for the kernels: nothing is compiled


def farm():
    return Relay(FARM, spaces={"hen_0": HEN})


def policies(kind=ActorCritic, **options):
    fox = kind(Box(0, 1000, (2,)), Discrete(3), hidden=(4,), seed=1, **options)
    return {"fox": fox, "hen": kind(*HEN, hidden=(4,), seed=2, **options)}


GROUPS = {"fox": ("fox_0", "fox_1"), "hen": ("hen_0",)}


def seen(worlds):
    """Observations of the farm's agents in so many environments."""
    draws = torch.Generator().manual_seed(0)
    fox, hen = (torch.rand(n * worlds, k, generator=draws) for n, k in ((2, 2), (1, 3)))
    return Group({"fox": fox, "hen": hen})


@torch.no_grad()
def test_each_group_decides_by_its_own_policy():
    policy, observation = GroupedPolicy(policies(), GROUPS), seen(4)
    noise = torch.rand(12, policy.num_draws, generator=torch.Generator().manual_seed(1))
    decision = policy.act(observation, None, noise)
    fox = policy["fox"].act(observation.fox, None, noise[:8, :1])
    hen = policy["hen_0"].act(observation.hen, None, noise[8:, :2])
    assert torch.equal(decision.action.fox, fox.action) and torch.equal(decision.action.hen, hen.action)
    assert torch.equal(decision.log_prob, torch.cat((fox.log_prob, hen.log_prob)))
    assert torch.equal(decision.value, torch.cat((fox.value, hen.value)))
    assert torch.equal(policy.value(observation), decision.value)
    with pytest.raises(KeyError, match="no group and no agent 'cow'"):
        policy["cow"]


@torch.no_grad()
def test_groups_of_equal_spaces_share_columns():
    spaces = Box(-1, 1, (2,)), Discrete(3)
    one, two = (ActorCritic(*spaces, hidden=(4,), seed=seed) for seed in (1, 2))
    policy = GroupedPolicy({"a": one, "b": two}, {"a": ("x", "y"), "b": ("z",)})
    assert not policy.nested and policy.observation_space == spaces[0]
    observation = torch.rand(6, 2, generator=torch.Generator().manual_seed(0))
    decision = policy.act(observation, None, None)
    assert torch.equal(decision.value, torch.cat((one.value(observation[:4]), two.value(observation[4:]))))
    assert decision.action.shape == (6,)


@torch.no_grad()
def test_memories_lie_side_by_side():
    members = {
        "fox": RecurrentActorCritic(Box(0, 1000, (2,)), Discrete(3), "gru", rnn_size=3, hidden=(4,)),
        "hen": RecurrentActorCritic(*HEN, "lstm", rnn_size=5, hidden=(4,)),
    }
    policy, observation = GroupedPolicy(members, GROUPS), seen(2)
    rnn_state = policy.initial_state(6)
    assert rnn_state.shape == (6, 20)
    after = policy.act(observation, rnn_state, None).rnn_state
    fox = members["fox"].act(observation.fox, members["fox"].initial_state(4), None).rnn_state
    assert torch.equal(after[:4, :6], fox) and not after[:4, 6:].any() and after[4:].any()


def test_a_grouped_policy_is_saved_as_json_and_acts_by_agent():
    policy = GroupedPolicy(policies(), GROUPS)
    again = GroupedPolicy.from_config(json.loads(json.dumps(policy.config())))
    again.load_state_dict(policy.state_dict())
    observations = {"fox_1": np.array([1, 2], np.float32), "hen_0": np.zeros(3, np.float32)}
    actions = again.predict(observations)[0]
    assert list(actions) == ["fox_1", "hen_0"] and actions["fox_1"] == policy.predict(observations)[0]["fox_1"]
    assert HEN[1].contains(actions["hen_0"])
    with pytest.raises(ValueError, match="policies are for fox, hen, and the groups are hen, fox"):
        GroupedPolicy(policies(), dict(reversed(GROUPS.items())))


def test_each_group_learns_what_its_part_alone_would_teach():
    trainer = Trainer("ppo", farm, **SMALL, registered=False)
    assert isinstance(trainer.algorithm, Grouped) and list(trainer.algorithm.algorithms) == ["fox", "hen"]
    rollout = trainer.collector.collect()
    alone = PPO(
        ActorCritic(*HEN, hidden=(300,), normalize_observation=True, normalize_return=True, seed=seed_of(0, 1)),
        PPOConfig(num_steps=8, hidden=(300,)),
        seed_of(0, 1),
    )
    spaces = {"observation": observation_column(HEN[0]), "action": action_column(HEN[1])}
    part = hr.Rollout(8, 2, {**rollout.columns, **spaces})
    part.observation.copy_(rollout.observation.hen)
    part.action.copy_(rollout.action.hen)
    for name in set(rollout.columns) - {"observation", "action"}:
        getattr(part, name).copy_(getattr(rollout, name)[:, 4:])
    metrics, expected = trainer.algorithm.update(rollout, 0.0), alone.update(part, 0.0)
    assert {name.partition("/")[0] for name in metrics} == {"fox", "hen"}
    for name, value in expected.items():
        assert torch.equal(metrics[f"hen/{name}"], value)
    for mine, its in zip(trainer.policy["hen"].parameters(), alone.policy.parameters(), strict=True):
        assert torch.equal(mine, its)
    trainer.close()


def test_returns_are_told_by_group():
    trainer = Trainer("a2c", farm, num_envs=2, num_steps=8)
    trainer.iterate()
    row = trainer.result().row()
    assert row["return/fox"] == (1 + 2 + 3 + 15) / 2 and row["return/hen"] == 10  # rewards are 1, 2, 3 ...
    assert row["episodes"] == 6 and row["return"] == pytest.approx((2 * 21 + 20) / 6)
    trainer.close()


@pytest.mark.parametrize(
    ("algorithm", "options"),
    [
        ("ppo", {"recurrent": "gru", "rnn_size": 4, "sequence_length": 2}),
        ("impala", {}),
        ("appo", {"recurrent": "lstm", "rnn_size": 4, "sequence_length": 2}),
        ("reinforce", {}),
        ("trpo", {}),
    ],
)
def test_other_algorithms_learn_in_groups_too(algorithm, options):
    trainer = Trainer(algorithm, farm, num_envs=2, num_steps=8, hidden=(300,), **options)
    before = trainer.state_dict()
    first = [trainer.iterate().metrics for _ in range(2)]
    trainer.load_state_dict(before)  # weights, not worlds: these cannot be saved
    assert all(np.isfinite(list(metrics.values())).all() for metrics in first)
    assert any(name.startswith("fox/") for name in first[0])
    trainer.close()


def test_off_policy_algorithms_learn_in_groups():
    trainer = Trainer(
        "dqn",
        lambda: Relay(dict.fromkeys(("a", "b"), 4)),
        group_by="agents",
        num_envs=2,
        buffer_size=500,
        learning_starts=8,
        batch_size=8,
    )
    assert "a: replay" in trainer.resources and "b: replay" in trainer.resources
    for _ in range(4):
        metrics = trainer.iterate().metrics
    assert metrics["a/n_updates"] > 0 and metrics["b/loss"] >= 0
    trainer.close()


def test_from_another_device_they_are_the_same_groups():
    there = Trainer("a2c", DeviceEnv(envs.make(farm, 2), "cpu"), num_steps=8)
    here = Trainer("a2c", envs.make(farm, 2), num_steps=8)
    assert isinstance(there.algorithm, Grouped)
    assert there.iterate() == here.iterate()
    assert torch.equal(there.collector.rollout.observation.hen, here.collector.rollout.observation.hen)


def test_one_group_is_learned_by_the_algorithm_itself():
    trainer = Trainer("ppo", lambda: Relay(dict.fromkeys(("a", "b"), 4)), **SMALL)
    assert type(trainer.algorithm) is PPO and trainer.env.num_envs == 4
    trainer.iterate()
    assert trainer.steps == trainer.collector.rollout.valid_steps()
    shown = trainer.result().row()
    assert "return/all" not in shown and {f"return/{agent}" for agent in trainer.env.agents} <= shown.keys()
    trainer.close()


def test_agents_of_a_world_may_be_told_who_they_are():
    pair = Relay(dict.fromkeys(("a", "b"), 4))
    trainer = Trainer("ppo", lambda: pair, **{**SMALL, "num_envs": 1}, agent_info=np.array([0, 1]))
    trainer.iterate()
    assert trainer.collector.rollout.observation.agent_info[3].tolist() == [0, 1]
    trainer.close()
    with pytest.raises(TypeError, match="groups of agents have different observations"):
        Trainer("ppo", farm, **SMALL, agent_info=np.zeros(6))


def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match=r"dqn supports Discrete actions, and those of .* are Box.*: use ppo"):
        Trainer("dqn", farm, num_envs=2)
    with pytest.raises(ValueError, match=r"policies are for hen, fox, and in .* groups are fox, hen"):
        env = envs.make(farm, 1)
        members = {name: PPO(policy) for name, policy in reversed(policies().items())}
        Trainer(Grouped(members, dict(reversed(GROUPS.items()))), env)


def test_a_run_is_saved_loaded_resumed_and_evaluated(tmp_path):
    short = {"log_folder": str(tmp_path), "progress": "none", "eval_freq": 20, "eval_episodes": 2}
    run = hr.train("a2c", farm, num_envs=2, num_steps=8, total_steps=60, **short)
    result = run.evaluate(2)
    assert result.by_agent == {"fox_0": (6.0, 6.0), "fox_1": (15.0, 15.0), "hen_0": (10.0, 10.0)}
    assert result.by_group == {"fox": 10.5, "hen": 10.0} and result.lengths == (5, 5)
    assert result.mean == pytest.approx(31 / 3) and "(fox 10.5, hen 10)" in str(result)
    policy = hr.load(run.path)
    assert policy.groups == GROUPS and run.metrics["eval_return"] == pytest.approx(31 / 3)
    assert hr.evaluate(policy, farm, 3, workers=2).by_agent["hen_0"] == (10.0,) * 3
    resumed = hr.train(resume=run.path, env=farm, total_steps=100)
    assert resumed.steps >= 100


def test_in_worker_processes_the_rollouts_are_the_same():
    def collected(**options):
        trainer = Trainer("a2c", farm, num_envs=3, num_steps=8, **options)
        trainer.iterate()
        rollout = trainer.collector.collect()
        copy = hr.Rollout(8, 9, rollout.columns)
        for name in rollout.columns:
            getattr(copy, name).copy_(getattr(rollout, name))
        trainer.close()
        return copy

    here, there = collected(), collected(workers=2)
    for name in ("valid", "reward", "terminated", "truncated", "value"):
        assert torch.equal(getattr(here, name), getattr(there, name)), name
    for group in GROUPS:
        assert torch.equal(getattr(here.observation, group), getattr(there.observation, group))
        assert torch.equal(getattr(here.action, group), getattr(there.action, group))


def test_pettingzoo_worlds_train_from_one_command(tmp_path, monkeypatch, capsys):
    pytest.importorskip("mpe2")
    from headrace.cli import eval as evaluation
    from headrace.cli import train

    monkeypatch.chdir(tmp_path)
    sizes = ["--num-envs", "2", "--num-steps", "8", "--total-steps", "60", "--final-episodes", "2"]
    train.main(["a2c", "mpe2.simple_tag_v3:parallel_env", *sizes, "--time-limit", "6", "--progress", "plain"])
    told = capsys.readouterr().out
    assert "mean length 6" in told and "adversary" in told
    evaluation.main(["runs/a2c/simple_tag_v3_1", "--episodes", "2", "--json"])
    result = json.loads(capsys.readouterr().out)
    assert list(result["return_by_agent"]) == ["adversary_0", "adversary_1", "adversary_2", "agent_0"]
    assert result["length"]["mean"] == 6


@pytest.mark.slow
def test_agents_learn_to_spread():
    """Random actions return -24 to each agent; see docs/multi-agent.md for what is learned."""
    pytest.importorskip("mpe2")
    trainer = Trainer("ppo", "mpe2.simple_spread_v3:parallel_env", total_steps=250_000, seed=1000)
    while not trainer.reason_to_stop():
        trainer.iterate()
    trainer.close()
    assert trainer.episodes.mean_return() > -20.5


def test_the_policy_of_several_agents_says_what_predict_takes():
    trainer = hr.Trainer("ppo", "Tag", num_envs=2, hidden=(4,))
    with pytest.raises(TypeError, match=r"takes a dict of observations by agent, got array.*policy\['taggers'\]"):
        trainer.policy.predict(np.zeros(4, np.float32))
    trainer.close()


def test_a_policy_with_more_actions_than_the_environment_has_is_refused():
    policy = ActorCritic(hr.make("CartPole-v1", 1).observation_space, hr.Discrete(3))
    with pytest.raises(ValueError, match=r"the action_space Discrete\(3\), and that of CartPole-v1 is Discrete\(2\)"):
        hr.Trainer(PPO(policy, PPOConfig()), "CartPole-v1", num_envs=4)
