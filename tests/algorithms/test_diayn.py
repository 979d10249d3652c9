"""DIAYN: the bonus and the discriminator's loss against float64, refusals, resuming, and skills that can be
distinguished."""

from __future__ import annotations

import dataclasses
import math
from contextlib import closing
from typing import NamedTuple

import pytest
import torch
from torch.nn import functional

import headrace as hr
from headrace.algorithms.a2c import A2C
from headrace.algorithms.intrinsic.diayn import METRICS, Discriminator, ReplayDIAYN, discriminator_loss
from headrace.algorithms.ppo import PPO
from headrace.algorithms.sac import SACConfig
from headrace.cli.main import main
from headrace.core.fused import plain_only
from headrace.data.replay import Batch
from headrace.data.rollout import Group, Rollout
from headrace.data.spaces import Box, Dict, Discrete, action_column, env_columns
from headrace.kernels.language.ops import clip, f32

SPACE = Dict({"observation": Box(-1, 1, (3,)), "agent_info": Discrete(4)})
REPLAY = ("dqn", "td3", "discrete_sac")
CONFIG = SACConfig(learning_rate=3e-3, intrinsic="diayn", intrinsic_hidden=(8,), intrinsic_coef=0.5, skills=4)


class Plane(hr.KernelEnv):
    """A point that actions move in a square, without a reward."""

    observation_space = Box(-1.0, 1.0, (2,))
    action_space = Box(-1.0, 1.0, (2,))
    max_steps = 20

    class State(NamedTuple):
        x: f32
        y: f32

    def reset(s, p, key):
        return Plane.State(0.0, 0.0)

    def step(s, p, action, key):
        x, y = clip(s.x + 0.1 * action[0], -1.0, 1.0), clip(s.y + 0.1 * action[1], -1.0, 1.0)
        return Plane.State(x, y), 1.0, False

    def observe(s, p):
        return s.x, s.y


def made_up(steps=3, rows=40):
    source = torch.Generator().manual_seed(0)

    def seen():
        skill = torch.randint(4, (steps, rows), generator=source, dtype=torch.int32)
        return Group({"observation": torch.randn(steps, rows, 3, generator=source), "agent_info": skill})

    weight = (torch.rand(steps, rows, generator=source) > 0.2).float()
    scalar = torch.rand(steps, rows, generator=source)
    return Batch(seen(), torch.zeros(steps, rows, 1), scalar, 0.9 * scalar, seen(), weight, torch.zeros(steps, rows))


def log_q(network, observation):
    """log q(z | s) of each skill in float64, by the weights alone."""
    (w0, b0), (w1, b1) = ([p.detach().double() for p in part.parameters()] for part in (network.layers, network.out))
    x = (observation.double() - network.normalizer.center) * network.normalizer.scale
    return functional.log_softmax((x @ w0.t() + b0).relu() @ w1.t() + b1, -1)


def spread(network):
    """Other weights of the last layer than those near 0."""
    torch.nn.init.normal_(network.out.weight, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("coef", [None, 2.0])
def test_the_reward_is_the_log_ratio_to_uniform_skills(coef):
    diayn, batches = ReplayDIAYN(SPACE, CONFIG, 0, "cpu"), made_up()
    spread(diayn.network)
    after = batches.next_observation
    chosen = log_q(diayn.network, after.observation).gather(-1, after.agent_info.long().unsqueeze(-1))[..., 0]
    config = SACConfig(intrinsic="diayn", intrinsic_coef=0.5, extrinsic_coef=coef)
    rewarded, metrics = diayn.rewarded(batches, config)
    wanted = 0.5 * (chosen - math.log(1 / 4)) + (coef or 0.0) * batches.reward
    torch.testing.assert_close(rewarded.reward.double(), wanted, rtol=1e-4, atol=1e-5)
    valid = batches.weight > 0
    assert metrics["intrinsic_reward"].item() == pytest.approx((chosen[valid] + math.log(4)).mean().item(), rel=1e-4)


def test_the_loss_is_the_cross_entropy_of_rows_that_count():
    network, batches = Discriminator(SPACE, (8,), 0), made_up()
    spread(network)
    seen, skill = batches.observation.observation[0], batches.observation.agent_info[0].long()
    weight = batches.weight[0] / batches.weight[0].sum()
    batch = {"next": seen, "skill": functional.one_hot(skill, 4).float(), "weight": weight}
    loss, metrics = discriminator_loss(network, batch, None)
    wanted = log_q(network, seen)
    valid = weight > 0
    entropy = functional.nll_loss(wanted[valid], skill[valid]).item()
    assert loss.item() == pytest.approx(entropy, rel=1e-5) and metrics[METRICS[0]].item() == loss.item()
    right = (wanted.argmax(1) == skill)[valid].double().mean().item()
    assert metrics[METRICS[1]].item() == pytest.approx(right, abs=1e-6)


def test_the_discriminator_learns_and_is_followed():
    diayn, batches = ReplayDIAYN(SPACE, CONFIG, 0, "cpu"), made_up()
    skill = batches.next_observation.agent_info
    seen = functional.one_hot(skill.long(), 4).float()[..., :3]  # which tells it
    batches = batches._replace(next_observation=Group({"observation": seen, "agent_info": skill}))
    first = diayn.rewarded(batches, CONFIG)[1]["discriminator_loss"]
    for _ in range(300):
        metrics = diayn.rewarded(batches, CONFIG)[1]
    assert metrics["discriminator_loss"] < 0.7 * first and metrics["skill_accuracy"] > 0.95
    diayn.network.out = type(diayn.network.out)(8, 5, 1.0, torch.Generator())
    with pytest.raises(ValueError, match="other sizes now"):
        diayn.rewarded(batches, CONFIG)


def test_what_it_needs_and_does_not_go_with_is_said():
    with pytest.raises(ValueError, match="leave it out, and give skills"):
        hr.Trainer("dqn", "CartPole-v1", intrinsic="diayn", n_steps=1, agent_info=hr.Discrete(3), progress="none")
    with pytest.raises(ValueError, match="intrinsic='diayn' goes without n_steps=3"):
        SACConfig(intrinsic="diayn", n_steps=3)
    with pytest.raises(ValueError, match="needs agent_info"):
        Discriminator(Box(-1, 1, (3,)), (8,), 0)
    with pytest.raises(ValueError, match="skills must be 1 or more, got 0"):
        SACConfig(skills=0)


def test_runs_resume_with_the_same_bits_and_are_evaluated_without_giving_skills_again(capsys):
    settings = {"num_envs": 4, "num_steps": 4, "hidden": (8,), "batch_size": 16, "learning_starts": 64, "skills": 3}
    settings |= {"buffer_size": 2_000, "progress": "none", "intrinsic": "diayn", "intrinsic_hidden": (8,)}
    straight = hr.train("sac", "Pendulum-v1", total_steps=512, **settings)
    short = hr.train("sac", "Pendulum-v1", total_steps=256, **settings)
    longer = hr.train(resume=short.path, total_steps=512, progress="none")
    assert straight.policy.observation_space["agent_info"] == Discrete(3)
    mine, theirs = (state_of(run) for run in (straight, longer))
    for part in ("network", "optimizer"):
        for name, value in mine[part].items():
            assert torch.equal(value, theirs[part][name]), name
    main(["eval", str(longer.path), "--episodes", "2"])
    assert "2 episodes" in capsys.readouterr().out
    main(["play", str(longer.path), "--episodes", "2", "--max-steps", "3", "--output", str(longer.path / "play.gif")])
    assert "episode 2: return" in capsys.readouterr().out


def test_a_run_of_ppo_resumes_with_the_same_bits():
    settings = {"num_envs": 4, "num_steps": 16, "hidden": (8,), "minibatch_size": 32, "skills": 3, "progress": "none"}
    settings |= {"intrinsic": "diayn", "intrinsic_hidden": (8,), "schedule": "constant"}
    straight = hr.train("ppo", "Pendulum-v1", total_steps=512, **settings)
    short = hr.train("ppo", "Pendulum-v1", total_steps=256, **settings)
    longer = hr.train(resume=short.path, total_steps=512, progress="none")
    mine, theirs = (state_of(run) for run in (straight, longer))
    for part in ("network", "optimizer"):
        for name, value in mine[part].items():
            assert torch.equal(value, theirs[part][name]), name


def state_of(run):
    with hr.Training(resume=run.path, total_steps=10_000, progress="none") as training:
        return training.trainer.algorithm.state_dict()["intrinsic"]


@pytest.mark.parametrize("coef", [None, 0.25])
@pytest.mark.parametrize("kind", [PPO, A2C])
def test_rollouts_are_learned_from_with_the_bonus_as_their_reward(kind, coef):
    own = {"hidden": (8,), "num_steps": 8, "intrinsic": "diayn", "intrinsic_hidden": (8,), "normalize_return": False}
    config = dataclasses.replace(kind.config, **own, intrinsic_coef=0.5, extrinsic_coef=coef)
    algorithm = kind.build(config, SPACE, Discrete(2), 0, "cpu")
    columns = env_columns(SPACE) | {"action": action_column(Discrete(2))} | algorithm.columns()
    rollout, source = Rollout(8, 5, columns), torch.Generator().manual_seed(0)
    rollout.observation.observation.copy_(torch.randn(9, 5, 3, generator=source))
    rollout.observation.agent_info.copy_(torch.randint(4, (9, 5), generator=source))
    rollout.value.copy_(torch.randn(9, 5, generator=source))
    rollout.reward.copy_(torch.randn(8, 5, generator=source))
    rollout.valid.copy_(torch.rand(9, 5, generator=source) < 0.9)
    network, reward = algorithm.intrinsic.network, rollout.reward.clone()
    spread(network)
    before, learned = network.out.weight.clone(), []
    algorithm.learn = lambda rollout, targets: learned.append(targets) or {}
    with plain_only():
        metrics = algorithm.update(rollout, 0.0)
    with torch.no_grad():
        network.out.weight.copy_(before), network.load_state_dict(network.state_dict())
    assert torch.equal(rollout.reward, reward)  # which is logged
    assert set(METRICS) < set(metrics) and not torch.equal(learned[0].advantage, torch.zeros(8, 5))
    other = kind.build(config, SPACE, Discrete(2), 0, "cpu")
    spread(other.intrinsic.network)
    other.intrinsic.observe(rollout, 0.99)
    after = rollout.observation.agent_info[1:].long().unsqueeze(-1)
    chosen = log_q(other.intrinsic.network, rollout.observation.observation[1:]).gather(-1, after)[..., 0]
    bonus = 0.5 * (chosen + math.log(4)) + (coef or 0.0) * reward
    rollout.reward.copy_(torch.where(rollout.valid[:-1], bonus.float(), 0.0))
    wanted = other.process(rollout)
    torch.testing.assert_close(learned[0].advantage, wanted.advantage, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(learned[0].returns, wanted.returns, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("algorithm", "env"),
    [
        *(("dqn", "CartPole-v1"), ("td3", "Pendulum-v1"), ("discrete_sac", "CartPole-v1")),
        *(("ppo", "CartPole-v1"), ("trpo", "Pendulum-v1"), ("reinforce", "CartPole-v1")),
    ],
)
def test_other_algorithms_take_it(algorithm, env):
    replay = {"batch_size": 16, "learning_starts": 32, "n_steps": 1}
    options = {"num_envs": 4, "hidden": (8,), "progress": "none"} | (replay if algorithm in REPLAY else {})
    with closing(hr.Trainer(algorithm, env, intrinsic="diayn", total_steps=256, **options)) as trainer:
        while trainer.steps < 256:
            metrics = trainer.iterate().metrics
    assert 0 < metrics["skill_accuracy"] <= 1 and math.isfinite(metrics["intrinsic_reward"])
    assert trainer.policy.observation_space["agent_info"] == Discrete(8)


def test_ppo_tells_skills_apart_in_the_plane():
    options = {"num_envs": 32, "num_steps": 40, "hidden": (64, 64), "skills": 4, "entropy_coef": 0.01, "seed": 0}
    with closing(hr.Trainer("ppo", Plane, intrinsic="diayn", total_steps=150_000, **options)) as trainer:
        while trainer.steps < 150_000:
            metrics = trainer.iterate().metrics
    assert metrics["skill_accuracy"] > 0.8 and metrics["intrinsic_reward"] > 0.6 * math.log(4)


def test_skills_are_told_apart_in_the_plane():
    options = {"num_envs": 8, "num_steps": 4, "utd_ratio": 0.25, "hidden": (64, 64), "skills": 4, "progress": "none"}
    options |= {"temperature": 0.1, "learn_temperature": False, "learning_starts": 1000, "total_steps": 16_000}
    with closing(hr.Trainer("sac", Plane, intrinsic="diayn", **options)) as trainer:
        while trainer.steps < 16_000:
            metrics = trainer.iterate().metrics
    assert metrics["skill_accuracy"] > 0.8 and metrics["intrinsic_reward"] > 0.7 * math.log(4)
