"""Pursuit by its rules, and learned by both of its players."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from helpers.kernel_envs import rollout

from headrace import envs
from headrace.envs.builtin.pursuit import Pursuit
from headrace.evaluation.evaluator import evaluate
from headrace.policies.base import Policy, PolicyOutput
from headrace.training.trainer import Trainer

STAY, RIGHT, LEFT, UP, DOWN = range(5)
SMALL = {"num_envs": 8, "num_steps": 16, "minibatch_size": 64, "epochs": 1, "total_steps": 10_000}


def played(pursuer, evader, moves, steps=1, **params):
    """A rollout of one environment that begins with the players at rest at these places. moves: of pursuer and
    evader."""
    env = envs.make("Pursuit", 1, threads=1, params=params)
    columns = rollout(env.ir, steps, 2)
    env.reset(columns, 0)
    state = dict.fromkeys(env.target.state(), torch.zeros(1))
    names = ("pursuer_x", "pursuer_y", "evader_x", "evader_y")
    env.target.set_state(state | {n: torch.tensor([x]) for n, x in zip(names, (*pursuer, *evader), strict=True)})
    columns.action[:] = torch.tensor(moves, dtype=torch.int32)
    for t in range(steps):
        env.step(columns, t)
    return columns


def test_a_catch_ends_the_world_and_is_worth_one():
    columns = played((0.5, 0.5), (0.57, 0.5), (RIGHT, STAY), steps=2)
    assert columns.terminated[0].all()
    gained = 0.25 * 0.05  # of a quarter of full speed
    assert columns.reward[0].tolist() == pytest.approx([1 + gained, -1 - gained])
    assert not columns.valid[1].any() and columns.episode_return[1].tolist() == columns.reward[0].tolist()


def test_the_torus_has_no_edge():
    columns = played((0.98, 0.02), (0.04, 0.97), (STAY, STAY))
    right, up = columns.observation[1, 0, :2].tolist()
    assert (right, up) == pytest.approx((2 * 0.06, -2 * 0.05), abs=1e-5)
    over = played((0.99, 0.5), (0.5, 0.5), (RIGHT, STAY), steps=3)
    assert (over.observation[:, 0, 0].abs() <= 1).all() and over.reward[2, 0] > 0  # half a side away: nearer


@pytest.mark.parametrize(
    ("move", "way"), [(RIGHT, (1, 0)), (LEFT, (-1, 0)), (UP, (0, 1)), (DOWN, (0, -1)), (STAY, (0, 0))]
)
def test_moves(move, way):
    columns = played((0.2, 0.2), (0.6, 0.6), (move, move), steps=60)
    velocity = columns.observation[60, :, 2:4]  # in the pursuer's full speeds
    assert velocity[0].tolist() == pytest.approx(way, abs=1e-3)
    assert velocity[1].tolist() == pytest.approx([0.7 * x for x in way], abs=1e-3)
    first = columns.observation[1, :, 2:4].abs().sum(1)
    assert first.tolist() == pytest.approx([0.25 * any(way), 0.7 * 0.7 * any(way)], abs=1e-5)


def test_parameters():
    slow = played((0.2, 0.2), (0.6, 0.6), (RIGHT, RIGHT), steps=60, evader_speed=0.01)
    assert slow.observation[60, 1, 2] == pytest.approx(0.2, abs=1e-3)


def test_worlds_begin_apart():
    env = envs.make("Pursuit", 2000, threads=1)
    columns = rollout(env.ir, 1, 4000)
    env.reset(columns, 0)
    way = columns.observation[0, :2000, :2].numpy() / 2
    assert np.abs(way).min() >= 0.2 - 1e-6 and np.abs(way).max() <= 0.5 + 1e-6
    assert not columns.observation[0, :, 2:6].any()


class Chase(Policy):
    """The pursuer runs where the evader is; the evader stays."""

    num_draws = 0

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.observation_space, self.action_space = Pursuit.observation_space, Pursuit.action_space

    def act(self, observation, memory, noise):
        right, up = observation[:, 0], observation[:, 1]
        across = torch.where(right > 0, RIGHT, LEFT)
        along = torch.where(up > 0, UP, DOWN)
        action = torch.where(right.abs() > up.abs(), across, along)
        return PolicyOutput(torch.where(observation[:, 6] == 1, STAY, action).int(), None, None, None)


def test_an_evaluation_tells_of_both():
    result = evaluate(Chase(), "Pursuit", episodes=20, seed=1)
    assert set(result.by_agent) == {"pursuer", "evader"} and len(result.returns) == 20
    assert min(result.by_agent["pursuer"]) > 1  # caught each time
    assert result.by_agent["evader"] == pytest.approx([-x for x in result.by_agent["pursuer"]], abs=1e-5)
    assert max(result.lengths) < 60


@pytest.mark.parametrize("backend", ["cpu", "torch"])
def test_both_learn_with_one_policy(backend):
    trainer = Trainer("ppo", "Pursuit", seed=1, backend=backend, **SMALL)
    before = [weight.clone() for weight in trainer.policy.parameters()]
    for _ in range(3):
        metrics = trainer.iterate().metrics
    assert trainer.collector.rollout.reward.shape == (16, 16)
    assert all(np.isfinite(value) for value in metrics.values())
    assert all(not torch.equal(a, b) for a, b in zip(before, trainer.policy.parameters(), strict=True))
    assert trainer.steps == 3 * 256  # agents' steps
    trainer.close()


def test_training_goes_on_bit_for_bit():
    whole, half, other = (Trainer("ppo", "Pursuit", seed=1, **SMALL) for _ in range(3))
    for _ in range(8):
        whole.iterate()
    for _ in range(4):
        half.iterate()
    other.load_state_dict(half.state_dict())
    for _ in range(4):
        other.iterate()
    for a, b in zip(whole.policy.parameters(), other.policy.parameters(), strict=True):
        assert torch.equal(a, b)
