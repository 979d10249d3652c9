"""Callbacks written for Stable-Baselines3, by their methods alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from headrace.sb3 import PPO, make_vec_env
from headrace.sb3.callback_calls import returns_true

ROLLOUT = 16


def model(**arguments: Any) -> PPO:
    settings = {"n_steps": ROLLOUT, "batch_size": 32, "n_epochs": 1, "seed": 0, "device": "cpu"}
    return PPO("MlpPolicy", make_vec_env("CartPole-v1", 2), **settings | arguments)


class BaseCallback:
    """The methods of Stable-Baselines3's class that learn() calls."""

    def __init__(self) -> None:
        self.n_calls, self.num_timesteps, self.said = 0, 0, []

    def init_callback(self, model: Any) -> None:
        self.model = model

    def on_training_start(self, locals_: dict, globals_: dict) -> None:
        self.locals = locals_
        self.said.append("start")

    def on_rollout_start(self) -> None:
        self.said.append("rollout")

    def update_locals(self, locals_: dict) -> None:
        self.locals.update(locals_)

    def on_step(self) -> bool:
        self.n_calls += 1
        self.num_timesteps = self.model.num_timesteps
        return self._on_step()

    def _on_step(self) -> bool:
        return True

    def on_rollout_end(self) -> None:
        self.said.append("end of rollout")

    def on_training_end(self) -> None:
        self.said.append("end")


class EachStep(BaseCallback):
    def __init__(self, most: int = 10**9) -> None:
        super().__init__()
        self.most, self.seen = most, []

    def _on_step(self) -> bool:
        names = ("rewards", "dones", "infos", "actions", "new_obs")
        self.seen.append([len(self.locals[name]) for name in names])
        self.ended = getattr(self, "ended", 0) + sum("episode" in info for info in self.locals["infos"])
        return self.n_calls < self.most


class EvalCallback(BaseCallback):
    def __init__(self, eval_freq: int) -> None:
        super().__init__()
        self.eval_freq, self.evaluated = eval_freq, []

    def _on_step(self) -> bool:
        if self.n_calls % self.eval_freq == 0:
            self.evaluated.append((self.n_calls, self.num_timesteps))
        return len(self.evaluated) < 3


def test_callbacks_that_do_not_look_at_steps_leave_them_in_one_call(capsys):
    plain, watched, stepped = model(), model(), model()
    plain.learn(128)
    quiet = BaseCallback()
    watched.learn(128, callback=quiet)
    assert capsys.readouterr().err == ""
    assert quiet.said[:3] == ["start", "rollout", "end of rollout"] and quiet.said[-1] == "end"
    assert quiet.said.count("rollout") == watched.algorithm.iteration and quiet.n_calls == 16 * quiet.said.count(
        "rollout"
    )
    each = EachStep()
    stepped.learn(128, callback=[each, quiet])
    assert "EachStep: _on_step() is called after each step of 2 environments" in capsys.readouterr().err
    # but for steps that reset both environments
    assert (
        stepped.num_timesteps / 2 <= each.n_calls <= ROLLOUT * stepped.algorithm.iteration and each.seen[0] == [2] * 5
    )
    assert each.ended == len(stepped.ep_info_buffer) > 0
    tensors = [torch.cat([x.detach().flatten() for x in m.policy.parameters()]) for m in (plain, watched, stepped)]
    assert torch.equal(tensors[0], tensors[1]) and torch.equal(tensors[0], tensors[2])


def test_a_callback_ends_the_training():
    stopped = model()
    each = EachStep(most=20)
    stopped.learn(1000, callback=each)
    assert each.n_calls == 20 and stopped.algorithm.iteration == 1 and each.said[-1] == "end"
    calls = []
    stopped.learn(1000, callback=lambda local, every: calls.append(len(local["rewards"])) or len(calls) < 3)
    assert calls == [2, 2, 2]
    stopped.learn(64)  # goes on without callbacks
    assert stopped.num_timesteps >= 64


def test_evaluations_come_after_the_rollout_in_which_they_are_due():
    watched, evaluation = model(), EvalCallback(eval_freq=10)
    watched.learn(10_000, callback=evaluation)
    calls = [call for call, _ in evaluation.evaluated]
    assert calls == [10, 30, 40]  # the multiples of 10 reached by rollouts that end at 16, 32 and 48
    assert [steps for _, steps in evaluation.evaluated] == sorted({steps for _, steps in evaluation.evaluated})


@pytest.mark.parametrize(("function", "expected"), [("return True", True), ("return False", False), ("x = 1", False)])
def test_functions_that_return_true_alone_are_known(function, expected):
    scope: dict[str, Any] = {}
    exec(f"def f(self):\n    '''Documented.'''\n    {function}", scope)
    assert returns_true(scope["f"]) is expected
