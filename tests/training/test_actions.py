"""Algorithms refuse environments they cannot act in, and name those that can."""

from __future__ import annotations

import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

import headrace as hr
from headrace.algorithms.base import ALGORITHMS, algorithm_classes
from headrace.cli.main import main
from headrace.data.flat_action import FlatAction


def test_every_algorithm_says_in_which_spaces_it_acts():
    for name in ALGORITHMS:
        kinds = algorithm_classes(name)[0].actions
        assert kinds and set(kinds) <= {Discrete, MultiDiscrete, MultiBinary, Box, FlatAction}


@pytest.mark.parametrize(
    ("algorithm", "env", "fits", "not_fits"),
    [
        ("dqn", "Pendulum-v1", {"ppo", "sac", "td3"}, {"dqn", "pqn"}),
        ("sac", "CartPole-v1", {"ppo", "dqn", "pqn"}, {"sac", "td3", "ddpg"}),
    ],
)
def test_a_pair_that_cannot_learn_is_refused_with_those_that_can(algorithm, env, fits, not_fits, capsys):
    with pytest.raises(ValueError, match=rf"^{algorithm} supports .* actions, and those of {env} are .*: use ") as e:
        hr.Trainer(algorithm, env)
    named = set(str(e.value).rpartition(": use ")[2].split(", "))
    assert fits <= named and not named & not_fits
    assert main(["train", algorithm, env]) == 2
    assert f"{algorithm} supports" in capsys.readouterr().err
