"""Metrics that are not measured at every gradient step: means over the measurements, whatever `policy_delay` is."""

import json
from statistics import fmean

import pytest
import torch
from helpers.off_policy_oracle import ACTIONS, OBSERVATIONS, made_up
from helpers.tiny import TINY, Walk

import headrace as hr
from headrace.algorithms.objectives import mean_metrics, take_steps
from headrace.algorithms.off_policy import delayed_steps
from headrace.algorithms.ppo import PPO
from headrace.algorithms.td3 import TD3, TD3Config
from headrace.core.fused import plain_only
from headrace.data.replay import Batch
from headrace.runs.logs import Logs

OPTIONS = {
    **{"num_envs": 1, "seed": 1, "total_steps": 10**6, "progress": "none", "threads": 1, "scale": False},
    **{"learning_rate": 1e-12, "hidden": (8,), "batch_size": 16, "learning_starts": 20, "registered": False},
}


@pytest.mark.parametrize("delay", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("first", range(4))
@pytest.mark.parametrize("steps", [1, 2, 6, 7])
def test_delayed_steps_are_counted(delay, first, steps):
    if steps % delay == 0:  # then it does not matter which is the first
        assert delayed_steps(first, steps, delay) == steps / delay
    else:
        assert delayed_steps(first, steps, delay) == sum((g + 1) % delay == 0 for g in range(first, first + steps))


@pytest.mark.parametrize("plain", [True, False], ids=["plain", "kernel"])
@pytest.mark.parametrize(("since", "measured"), [(0, [2]), (1, [1, 4]), (2, [0, 3])])
def test_the_actors_loss_is_the_mean_over_its_own_steps(since, measured, plain):
    config = TD3Config(hidden=(16,), batch_size=16, policy_delay=3, learning_rate=1e-12)  # networks stand still
    random = torch.rand(5, 16, 4, generator=torch.Generator().manual_seed(1))
    batches, td3 = made_up(5), TD3.build(config, OBSERVATIONS, ACTIONS, 0, "cpu")

    def losses(first, last, since):
        rows = slice(first, last)
        with plain_only(plain):
            batch = Batch._make(x[rows] for x in batches)
            return take_steps(*td3.objectives(), batch, random[rows], config, since)[0]

    alone = [float(losses(g, g + 1, 2)["actor_loss"]) for g in measured]
    assert float(losses(0, 5, since)["actor_loss"]) == pytest.approx(fmean(alone), rel=1e-4)
    assert list(losses(0, 1, 0)) == ["critic_loss"]


@pytest.mark.parametrize(
    "settings", [{"train_freq": 1}, {"train_freq": 3}, {}], ids=["each step", "every third", "whole"]
)
@pytest.mark.parametrize("name", ["td3", "crossq"])
def test_the_curve_does_not_depend_on_the_delay(name, settings):
    """The critics' outputs are about 10, and networks stand still: the actor's loss is about -10 in each iteration."""
    more = {"critic_hidden": (8,)} if name == "crossq" else {}
    for delay, plain in ((1, True), (2, True), (2, False), (5, True), (5, False)):
        trainer = hr.Trainer(name, "Pendulum-v1", policy_delay=delay, num_steps=6, **OPTIONS, **settings, **more)
        with torch.no_grad():
            trainer.policy.critics.biases[-1].add_(10)
        with plain_only(plain):
            found = [trainer.iterate().metrics for _ in range(12)]
        trainer.close()
        losses = [x["actor_loss"] for x in found if "actor_loss" in x]
        assert len(losses) >= 7 and losses == pytest.approx([-10] * len(losses), rel=0.15)


def test_means_of_calls_are_weighted_by_measurements():
    algorithm = TD3.build(TD3Config(policy_delay=2, hidden=(8,)), OBSERVATIONS, ACTIONS, 0, "cpu")
    two, five = torch.tensor(2.0), torch.tensor(5.0)
    algorithm.add_metrics({"actor_loss": two, "critic_loss": two}, first=0, steps=3)  # the actor's step is the second
    algorithm.add_metrics({"actor_loss": five, "critic_loss": five}, first=3, steps=3)  # its steps: the first and third
    algorithm.add_metrics({"critic_loss": two}, first=6, steps=1)
    found = mean_metrics(algorithm._found)
    assert found["actor_loss"] == pytest.approx((2 + 2 * 5) / 3)
    assert found["critic_loss"] == pytest.approx((3 * 2 + 3 * 5 + 2) / 7)


def test_a_row_has_what_was_measured_since_the_last_one(tmp_path, monkeypatch):
    """Rows of metrics are fewer than iterations, and an iteration may have measured nothing of a kind."""
    learned, calls = PPO.learn, []

    def sometimes(self, *arguments):
        calls.append(self)
        metrics = learned(self, *arguments)
        return metrics | ({"rare": torch.tensor(float(len(calls)))} if len(calls) == 2 else {})

    monkeypatch.setattr(PPO, "learn", sometimes)
    monkeypatch.setattr(Logs, "due", lambda self, seconds: False)  # one row at the end
    run = hr.train("ppo", Walk(), total_steps=16 * 8 * 4, log_folder=str(tmp_path), **TINY)
    rows = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert len(calls) > 3 and [row["rare"] for row in rows] == [2.0] and run.metrics["rare"] == 2.0
