"""Settings where none are registered: for environments in Python other than for compiled ones."""

from __future__ import annotations

import gymnasium
import pytest
from helpers.saved import Drifting

import headrace as hr
from headrace.envs import spec
from headrace.envs.builtin.cartpole import CartPole
from headrace.training.plan import settle
from headrace.training.scaling import registered_message, unregistered


class Own(CartPole):
    """Compiled, and not registered."""


@pytest.mark.parametrize(("total", "steps"), [(None, 256), (1_000_000, 256), (150_000, 128), (60_000, 64), (1_000, 64)])
def test_rollouts_are_shorter_where_few_steps_are_asked_for(total, steps):
    assert unregistered("ppo", {"total_steps": total})["num_steps"] == steps


@pytest.mark.parametrize(
    ("processes", "envs", "steps"), [({"workers": 3}, 9, 227), ({"actors": 16}, 16, 128), ({"learners": 0}, 8, 256)]
)
def test_each_process_has_as_many_environments(processes, envs, steps):
    found = unregistered("ppo", processes)
    assert (found["num_envs"], found["num_steps"]) == (envs, steps)


@pytest.mark.parametrize(
    ("source", "options", "expected"),
    [
        (Drifting, {}, (8, 256, 10, 64)),
        (lambda: gymnasium.make("Taxi-v3"), {}, (8, 256, 10, 64)),
        (Drifting, {"num_steps": 32, "epochs": 3}, (8, 32, 3, 64)),
        (Drifting, {"registered": False}, (64, 128, 4, 256)),
        (Own, {}, (64, 128, 4, 256)),
        (Own, {"backend": "inline"}, (8, 256, 10, 64)),
    ],
)
def test_ppo(source, options, expected):
    plan = settle("ppo", source, None, None, options)
    own = plan.algorithm_config
    assert (plan.config.num_envs, own.num_steps, own.epochs, own.minibatch_size) == expected


def test_what_is_registered_counts():
    assert not settle("ppo", "LunarLander-v3", None, None, {}).assumed
    plan = settle("sac", Drifting, None, None, {})
    assert plan.config.num_envs == 8 and plan.assumed


def test_a_line_says_so(capsys):
    hr.train("a2c", Drifting, total_steps=8, progress="plain", hidden=(4,))
    assert "nothing is registered for Drifting, stepped in Python: num_envs 8 (--no-reg" in capsys.readouterr().out


def test_settings_of_a_family_are_said_to_be_published(capsys):
    for name in ("ALE/Breakout-v5", "minigrid:MiniGrid-Empty-5x5-v0"):
        about = spec(name)
        assert about.entry == name and about.defaults["ppo"]["learning_rate"] == 0.00025
        assert about.published == "rl-baselines3-zoo"
    assert not spec("Hopper-v5").published and not spec("LunarLander-v3").published
    said = registered_message("Breakout", about.defaults["ppo"] | {"threads": None, "hidden": ()}, False, "the zoo")
    assert said.startswith("registered for Breakout, as published by the zoo and not tuned here: total_steps 1,000,000")
    assert "threads none, hidden none (--no-registered" in said
