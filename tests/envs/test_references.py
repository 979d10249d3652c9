"""Names of what makes environments: one by which it is found again, or one in angle brackets."""

from __future__ import annotations

import functools

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

import headrace as hr
from headrace.cli.main import main
from headrace.envs import registry, sources
from headrace.envs.builtin.cartpole import CartPole


class Walk(gymnasium.Env):
    observation_space, action_space = Box(-1, 9, (1,)), Discrete(2)

    def __init__(self, length=4):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.zeros(1, np.float32), 1.0, self.t == self.length, False, {}


class Maker:
    def __call__(self):
        return Walk(3)

    def make(self):
        return Walk(5)

    @classmethod
    def of_class(cls):
        return Walk(6)


SHORT = functools.partial(functools.partial(Walk), length=2)


@pytest.mark.parametrize("thing", [Walk, Maker.of_class, CartPole], ids=str)
def test_a_name_that_finds_it_again(thing):
    name = sources.reference(thing)
    assert "<" not in name and registry.spec(thing).name in (name, "CartPole-v1")


@pytest.mark.parametrize(
    ("thing", "name"),
    [(SHORT, "<Walk>"), (Maker(), "<Maker>"), (Maker().make, "<Maker.make>"), (lambda: Walk(), "<l")],
)
def test_what_no_name_finds_again_has_one_in_brackets(thing, name):
    assert name in sources.reference(thing)


def test_makers_in_a_list_are_named_once():
    assert registry.spec([SHORT, SHORT, Walk]).name == "<Walk>"
    assert registry.spec(["CartPole-v1", Maker()]).name == "<CartPole-v1 | Maker>"


@pytest.mark.parametrize(("thing", "length"), [(SHORT, 2), (Maker(), 3), (Maker().make, 5)])
def test_a_run_asks_for_it_again(thing, length, tmp_path, capsys):
    options = {"num_envs": 2, "num_steps": 8, "total_steps": 40, "progress": "none", "log_folder": tmp_path}
    run = hr.train("a2c", thing, **options)
    assert "<" not in run.path.name and run.needed_to_resume == ("env",)
    assert main(["eval", str(run.path)]) == 2 and "give it by --env" in capsys.readouterr().err
    with pytest.raises(TypeError, match=r"give it again, train\(resume=\.\.\., env=\.\.\.\)"):
        hr.train(resume=run.path)
    assert hr.train(resume=run.path, env=thing, total_steps=60, progress="none").evaluate(2).mean == length
