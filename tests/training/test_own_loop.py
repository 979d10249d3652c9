"""Training: the loop of train() with a body of one's own, and environments whose parameters change in it."""

from __future__ import annotations

import json
import os
import signal
from typing import NamedTuple

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from helpers.tiny import TINY, Walk

import headrace as hr
from headrace.envs.compiled.kernel_env import KernelEnv
from headrace.kernels.language.ops import f32
from headrace.runs.logs import tensorboard_tags

CART = TINY | {"num_envs": 8, "num_steps": 32, "total_steps": 2000, "target_return": None}


pytestmark = pytest.mark.usefixtures("in_tmp")


def weights(policy):
    return torch.cat([p.detach().flatten() for p in policy.parameters()])


def rows(run):
    return [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]


def test_an_empty_body_is_train():
    run = hr.train("ppo", Walk(), total_steps=500, **TINY)
    with hr.Training("ppo", Walk(), total_steps=500, **TINY) as t:
        seen = [row.steps for row in t]
    assert t.run.reason == "total_steps" == run.reason and seen[-1] == t.run.steps == run.steps
    assert torch.equal(weights(run.policy), weights(t.run.policy))
    files = [{path.name.partition(".out.")[0] for path in one.path.iterdir()} for one in (run, t.run)]
    assert files[0] == files[1] and {"config.toml", "last", "best", "events"} <= files[0]


def test_what_the_body_logs_is_in_the_row_of_its_iteration():
    with hr.Training("ppo", Walk(), total_steps=500, **TINY) as t:
        for row in t:
            t.log("level", row.iteration)
            t.log("curriculum/level", 2 * row.iteration)
            if row.iteration == 3:
                t.stop("three are enough")
    last = rows(t.run)[-1]
    assert t.run.reason == "three are enough" and not t.run.interrupted
    assert last["iteration"] == last["level"] == 3 and last["curriculum/level"] == 6
    tags = tensorboard_tags(last)
    assert tags["train/level"] == 3 and tags["curriculum/level"] == 6


@pytest.mark.parametrize(
    ("call", "wrong"),
    [
        (lambda t: t.log("return", 1.0), "rows of metrics have a 'return'"),
        (lambda t: t.log("level", "high"), "'level' is 'high'"),
        (lambda t: t.stop(""), "say why"),
        (lambda t: t.state.update(level={1}), r"state\['level'\] is {1}"),
    ],
)
def test_what_is_wrong_in_a_body_is_named(call, wrong):
    with pytest.raises((ValueError, TypeError), match=wrong), hr.Training("ppo", Walk(), total_steps=200, **TINY) as t:
        for _ in t:
            call(t)


def test_leaving_the_loop_ends_and_saves():
    with hr.Training("ppo", Walk(), total_steps=500, **TINY) as t:
        for _ in t:
            break
    assert t.run.reason == "break" and 0 < t.run.steps <= 16 * 8
    resumed = hr.train(resume=t.run.path, env=Walk(), progress="none")
    assert resumed.steps >= 500


def test_an_exception_in_the_body_ends_it_as_one_in_the_environment_does():
    walk = Walk()
    with pytest.raises(ZeroDivisionError), hr.Training("ppo", walk, total_steps=500, **TINY) as t:
        for _ in t:
            1 / 0  # noqa: B018
    with pytest.raises(RuntimeError, match="without an exception"):
        t.run  # noqa: B018
    with pytest.raises(RuntimeError, match="for the block"):
        t.log("level", 1)


def test_outside_of_the_block_it_says_what_to_do():
    t = hr.Training("ppo", Walk(), total_steps=100, **TINY)
    with pytest.raises(RuntimeError, match=r"with hr\.Training"):
        next(iter(t))


def test_ctrl_c_in_the_body_saves_and_the_run_resumes_bit_for_bit():
    """The body's own values are resumed, and the parameters that it has set."""

    def run(interrupt, **more):
        training = hr.Training("ppo", "CartPole-v1", on_interrupt="return", **(more or CART))
        with training as t:
            for row in t:
                t.state["level"] = t.state.get("level", 0) + 1
                t.env.set_params(gravity=9.8 + t.state["level"])
                if row.iteration == interrupt:
                    os.kill(os.getpid(), signal.SIGINT)
        return t

    straight, stopped = run(0), run(4)
    assert stopped.run.reason == "SIGINT" and stopped.state == {"level": 4}
    resumed = run(0, resume=stopped.run.path)
    assert resumed.state == straight.state and resumed.env.params == straight.env.params
    assert torch.equal(weights(resumed.policy), weights(straight.policy))
    assert not torch.equal(weights(straight.policy), weights(hr.train("ppo", "CartPole-v1", **CART).policy))


def test_a_body_evaluates_and_keeps_checkpoints():
    with hr.Training("ppo", "CartPole-v1", params={"gravity": 20}, **CART) as t:
        for _ in t:
            if t.every(1000):
                t.log("eval/mean", t.evaluate(2).mean)
                kept = t.save()
        with pytest.raises(ValueError, match="1 or more, got 0"):
            t.every(0)
    assert kept.is_dir() and kept.parent == t.run.path and hr.load(kept) is not None
    assert rows(t.run)[-1]["eval/mean"] > 0
    assert len(list(t.run.path.glob("step_*"))) == 2


# ---------------------------------------------------------------- set_params


class Slope(KernelEnv):
    """The reward is a parameter."""

    observation_space = Box(-1, 1, (1,))
    action_space = Discrete(2)
    max_steps = 4

    class Params(NamedTuple):
        reward: f32 = 1.0

    class State(NamedTuple):
        x: f32

    def reset(s, p, key):
        return Slope.State(0.0)

    def step(s, p, action, key):
        return Slope.State(s.x), p.reward, False

    def observe(s, p):
        return (s.x,)


class Level(gymnasium.Env):
    """The reward is its attribute."""

    observation_space, action_space = Box(-1, 1, (1,)), Discrete(2)

    def __init__(self):
        self.reward = 1.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), self.reward, False, False, {}


@pytest.mark.parametrize(
    ("source", "more"),
    [(Slope, {"backend": "cpu"}), (Slope, {"backend": "torch"}), (Level, {}), (Level, {"workers": 2})],
    ids=["cpu", "torch", "inline", "workers"],
)
def test_parameters_change_from_the_next_step_on(source, more):
    env = hr.make(source, 4, **more)
    try:
        rollout = env.rollout(4, env.columns())
        env.reset(rollout, 0)
        env.step(rollout, 0)
        env.set_params(reward=5.0)
        env.step(rollout, 1)
        assert rollout.reward[0].tolist() == [1.0] * 4 and rollout.reward[1].tolist() == [5.0] * 4
        assert env.changed_params == {"reward": 5.0}
        with pytest.raises(ValueError, match="slope"):
            env.set_params(slope=1.0)
    finally:
        env.close()


def test_parameters_of_each_environment_stay_so():
    env = hr.make(Slope, 3, params={"reward": [1.0, 2.0, 3.0]})
    rollout = env.rollout(3, env.columns())
    env.reset(rollout, 0)
    env.set_params(reward=np.array([4.0, 5.0, 6.0]))
    env.step(rollout, 0)
    env.set_params(reward=7.0)
    env.step(rollout, 1)
    assert rollout.reward[:2].tolist() == [[4.0, 5.0, 6.0], [7.0] * 3]
    with pytest.raises(ValueError, match="made with one number"):
        hr.make(Slope, 3).set_params(reward=[1.0, 2.0, 3.0])


def test_actors_refuse_what_would_not_reach_them():
    with hr.Training("ppo", "CartPole-v1", actors=2, **CART) as t:
        with pytest.raises(ValueError, match="use workers"):
            t.env.set_params(gravity=1.0)
        t.stop("tried")
