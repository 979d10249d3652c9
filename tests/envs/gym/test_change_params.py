"""Parameters of Gymnasium environments: each has its own, also after it was made again, in evaluations, on resuming."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

import headrace as hr
from headrace import envs
from headrace.cli.main import main
from headrace.envs.gym.change_params import loaded_params, saved_params
from headrace.envs.parts import part_maker
from headrace.evaluation.recipe import recipe_of
from headrace.kernels.language.ops import f32
from headrace.runs import checkpoint

SMALL = {"num_steps": 16, "hidden": [8], "target_return": None, "registered": False, "progress": "none"}
OWN = [0.1, 0.2, 0.3, 0.4]
PLACES = pytest.mark.parametrize("place", [{}, {"workers": 2}], ids=["inline", "workers"])


class Slope(gymnasium.Env):
    """A drawn position that actions move by `step_size`; the reward is `reward`. It can be saved."""

    observation_space, action_space = Box(-100, 100, (1,)), Discrete(2)

    def __init__(self):
        self.reward, self.step_size, self.wind, self.dies, self.x = 1.0, 0.5, np.zeros(2), False, 0.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.steps = self.np_random.normal(), 0
        return self._seen(), {}

    def step(self, action):
        if self.dies == "process":
            os._exit(3)
        if self.dies:
            raise RuntimeError("it fell over")
        self.steps += 1
        self.x += self.step_size * (2 * action - 1)
        return self._seen(), self.reward - 0.1 * abs(self.x) * (self.reward < 0.5), False, self.steps >= 5, {}

    def _seen(self):
        return np.array([self.x], np.float32)

    def state_dict(self):
        return {"x": self.x, "steps": self.steps}

    def load_state_dict(self, state):
        self.x, self.steps = float(state["x"]), state["steps"]


class Told(Slope):
    """Environment with a method for its parameters."""

    def set_params(self, **params):
        self.told = params


class Pair:
    """Two agents whose reward is `bonus`."""

    possible_agents = ("one", "two")

    def __init__(self):
        self.bonus, self.agents = 1.0, []

    def observation_space(self, agent):
        return Box(-1, 1, (1,))

    def action_space(self, agent):
        return Discrete(2)

    def reset(self, seed=None, options=None):
        self.agents = [*self.possible_agents]
        return self._of_all(np.zeros(1, np.float32)), self._of_all({})

    def step(self, actions):
        return *map(self._of_all, (np.zeros(1, np.float32), self.bonus, False, False)), self._of_all({})

    def close(self):
        pass

    def _of_all(self, value):
        return dict.fromkeys(self.agents, value)


class Pushed(hr.KernelEnv):
    """The reward is a parameter."""

    observation_space, action_space, max_steps = Box(-1, 1, (1,)), Discrete(2), 4

    class Params(NamedTuple):
        push: f32 = 1.0

    class State(NamedTuple):
        x: f32

    def reset(s, p, key):
        return Pushed.State(0.0)

    def step(s, p, action, key):
        return Pushed.State(s.x), p.push, False

    def observe(s, p):
        return (s.x,)


def of_each(env, name="reward"):
    return env.apply(lambda one: getattr(one.unwrapped, name))


@PLACES
def test_each_environment_has_its_own_value(place):
    env = hr.make(Slope, 4, params={"reward": [5, 6.0, 7, 8], "step_size": 0.25}, **place)
    try:
        rollout = env.rollout(3, env.columns())
        env.reset(rollout, 0)
        env.step(rollout, 0)
        assert rollout.reward[0].tolist() == [5, 6, 7, 8] and of_each(env, "step_size") == [0.25] * 4
        assert env.params == {"reward": [5, 6.0, 7, 8], "step_size": 0.25} and not env.changed_params
        env.set_params(reward=np.array([4.0, 3.0, 2.0, 1.0]))
        env.step(rollout, 1)
        env.set_params(reward=9.0)
        env.step(rollout, 2)
        assert rollout.reward[1:].tolist() == [[4, 3, 2, 1], [9] * 4]
        assert env.params == {"reward": 9.0, "step_size": 0.25} and env.changed_params == {"reward": 9.0}
        env.set_params(wind=np.arange(8.0).reshape(4, 2))
        assert [wind.tolist() for wind in of_each(env, "wind")] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    finally:
        env.close()


@PLACES
def test_methods_are_given_python_numbers(place):
    env = hr.make(Told, 2, params={"mass": torch.tensor([1.5, 2.5], dtype=torch.float64), "kind": "ice"}, **place)
    try:
        assert of_each(env, "told") == [{"mass": 1.5, "kind": "ice"}, {"mass": 2.5, "kind": "ice"}]
        assert all(type(told["mass"]) is float for told in of_each(env, "told"))
    finally:
        env.close()


@PLACES
@pytest.mark.parametrize(
    ("params", "error", "says"),
    [
        ({"reward": [1, 2]}, ValueError, r"reward=\[1, 2\] has 2 values, and num_envs is 4: give one value for all"),
        ({"reward": np.ones((2, 4))}, ValueError, "has 2 values, and num_envs is 4"),
        ({"slope": 3.5}, ValueError, r"nor an attribute 'slope' for slope=3.5: give it one, or name one of dies"),
    ],
)
def test_wrong_parameters_are_named(params, error, says, place):
    with pytest.raises(error, match=says):
        hr.make(Slope, 4, params=params, **place)
    env = hr.make(Slope, 4, **place)
    try:
        with pytest.raises(error, match=says):
            env.set_params(**params)
        assert not env.changed_params
    finally:
        env.close()


@pytest.mark.parametrize(
    ("place", "dies"),
    [({}, True), ({"workers": 2}, True), ({"workers": 2}, "process")],
    ids=["inline", "error", "dead"],
)
def test_environments_that_are_made_again_have_theirs(place, dies):
    given = {"reward": OWN, "step_size": OWN}
    env = hr.make(Slope, 4, params=given, on_error="restart", **place)
    try:
        rollout = env.rollout(2, env.columns())
        env.reset(rollout, 0)
        env.set_params(step_size=[5, 6, 7, 8])
        env.apply(lambda one: setattr(one.unwrapped, "dies", dies), indices=[2])
        env.step(rollout, 0)
        assert env.restarts == (2 if dies == "process" else 1) and of_each(env, "dies") == [False] * 4
        assert of_each(env) == OWN and of_each(env, "step_size") == [5, 6, 7, 8]
    finally:
        env.close()


def test_evaluations_have_the_values_of_the_training():
    env = hr.make(Slope, 4, params={"reward": [1.0, 2.0, 3.0, 4.0]})
    policy = hr.ActorCritic(env.observation_space, env.action_space)
    expected = (5.0, 10.0, 15.0, 20.0)
    assert hr.evaluate(policy, env, 8).returns == expected * 2
    assert hr.evaluate(policy, env, 8, workers=2).returns == expected * 2
    env.set_params(reward=0.0)
    assert hr.evaluate(policy, env, 4).returns == expected
    assert hr.evaluate(policy, Slope, 2, params={"reward": 7}).returns == (35.0, 35.0)


def test_one_environment_and_parts_of_a_set_have_parameters():
    assert envs.factory(Slope, params={"reward": 3})().unwrapped.reward == 3
    assert of_each(part_maker(Slope, params={"reward": 3})(2, 4)) == [3, 3]


def test_compiled_environments_that_are_stepped_in_python_have_their_params():
    given = {"params": {"push": [2.0, 3.0]}}
    for env in (hr.make(Pushed, 2, backend="inline", **given), hr.make(Pushed, 2, backend="torch", **given)):
        rollout = env.rollout(2, env.columns())
        env.reset(rollout, 0)
        env.step(rollout, 0)
        env.set_params(push=[4.0, 5.0])
        env.step(rollout, 1)
        assert rollout.reward.tolist() == [[2, 3], [4, 5]]
        with pytest.raises(ValueError, match="Pushed has no parameter 'pull': it has push"):
            env.set_params(pull=1.0)
        assert env.params == {"push": [4.0, 5.0]} and recipe_of(env).options["params"] == {"push": [2.0, 3.0]}


def test_copies_of_several_agents_have_their_own():
    env = hr.make(Pair, 2, params={"bonus": [2.0, 3.0]})
    rollout = env.rollout(1, env.columns())
    env.reset(rollout, 0)
    env.step(rollout, 0)
    assert env.num_envs == 4 and rollout.reward[0].tolist() == [2, 3, 2, 3]  # by agent, then by copy
    with pytest.raises(ValueError, match="has 4 values, and num_envs is 2"):
        env.set_params(bonus=[1.0, 2.0, 3.0, 4.0])


def test_ports_in_python_have_the_attributes_of_their_reference():
    env = hr.make("Pendulum-v1", 4, backend="inline", params={"g": [9.8, 10, 11, 12]})
    assert of_each(env, "g") == [9.8, 10, 11, 12]


def state(folder: Path) -> dict:
    return checkpoint.load(folder / "last", "training")["learner"]["algorithm"]["policy"]


@PLACES
def test_a_resumed_run_has_the_same_bits(place, tmp_path):
    def run(stop, resume=None, params=None):
        env = hr.make(Slope, 4, params=params or {"reward": OWN}, **place)
        given = {"resume": resume} if resume else {"log_folder": tmp_path, "total_steps": 640, **SMALL}
        with hr.Training("ppo" if resume is None else None, env, **given) as t:
            for row in t:
                if row.iteration == 3 and not resume:
                    t.env.set_params(step_size=OWN)
                if row.iteration == stop:
                    t.save()
                    t.stop("half")
            seen = of_each(t.env), of_each(t.env, "step_size"), t.env.params
        env.close()
        return t.run.path, seen

    whole, seen = run(0)
    stopped, _ = run(5)
    resumed, again = run(0, stopped)
    assert seen == again == (OWN, OWN, {"reward": OWN, "step_size": OWN})
    other, _ = run(0, params={"reward": 0.25})
    same, different = state(whole), state(other)
    assert any(not torch.equal(x, different[name]) for name, x in same.items())
    if not place:  # workers begin new episodes
        assert all(torch.equal(x, state(resumed)[name]) for name, x in same.items())


def test_the_command_line_and_files_have_a_value_for_all(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    source = f"{__file__}:Slope"
    words = ["--num-envs", "2", "--num-steps", "16", "--hidden", "8", "--total-steps", "64", "--final-episodes", "0"]
    assert main(["train", "ppo", source, "--params", "reward=3", *words]) == 0
    (folder,) = (tmp_path / "runs/ppo").iterdir()
    row = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert row["return"] == 15.0
    capsys.readouterr()
    assert main(["eval", str(folder), "--episodes", "2"]) == 0
    assert "15" in capsys.readouterr().out
    assert main(["train", "ppo", source, "--params", "slope=3", *words]) == 2
    assert "nor an attribute 'slope' for slope=3" in capsys.readouterr().err


def test_checkpoints_hold_parameters_exactly():
    given = {"a": [0.1, 2], "b": np.float32(0.3), "c": np.array([0.1, 0.2]), "d": ("x", None), "e": [np.ones(2)] * 2}
    found = loaded_params(saved_params(given))
    assert found["a"] == [0.1, 2] and found["b"] == float(np.float32(0.3)) and found["d"] == ["x", None]
    assert found["c"].dtype == np.float64 and found["c"].tolist() == [0.1, 0.2]
    assert [row.tolist() for row in found["e"]] == [[1, 1]] * 2
