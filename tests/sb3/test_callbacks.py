"""Callbacks written for Stable-Baselines3, by their methods alone."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
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
    def __init__(self, eval_freq: int, most: int = 10**9) -> None:
        super().__init__()
        self.eval_freq, self.most, self.evaluated = eval_freq, most, []

    def _on_step(self) -> bool:
        if self.n_calls % self.eval_freq == 0:
            model = self.model
            self.evaluated.append((self.n_calls, self.num_timesteps, model.num_timesteps, weights(model)))
        return len(self.evaluated) < self.most


class CheckpointCallback(EvalCallback):
    def __init__(self, save_freq: int) -> None:
        super().__init__(save_freq)
        self.save_freq = save_freq


def weights(model: Any) -> float:
    return sum(x.detach().sum().item() for x in model.policy.parameters())


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


@pytest.mark.parametrize("env", ["compiled", "in Python"])
def test_episodes_are_counted_once_whoever_looks(env):
    found = []
    for callback in (None, BaseCallback(), EachStep()):
        wrapper = {} if env == "compiled" else {"wrapper_class": gymnasium.Wrapper}
        made = make_vec_env("CartPole-v1", 2, **wrapper)
        one = PPO("MlpPolicy", made, n_steps=ROLLOUT, batch_size=32, n_epochs=1, seed=0, device="cpu")
        one.learn(400, callback=callback)
        found.append([(info["r"], info["l"]) for info in one.ep_info_buffer])
        assert one.episodes == len(found[-1]) >= 10
    # an episode that ends with the last step of the training is known to who looks at each step alone
    assert (
        found[0] == found[1]
        and sorted(found[0]) == sorted(found[2][: len(found[0])])
        and len(found[2]) <= len(found[0]) + 2
    )


def test_a_callback_ends_the_training():
    stopped = model()
    each = EachStep(most=20)
    stopped.learn(1000, callback=each)
    assert each.n_calls == 20 and stopped.algorithm.iteration == 1 and each.said[-1] == "end"
    calls = []
    stopped.learn(1000, callback=lambda local, every: calls.append(len(local["rewards"])) or len(calls) < 3)
    assert calls == [2, 2, 2]
    stopped.learn(64)  # goes on without callbacks
    assert stopped.algorithm.iteration == 3 and 56 <= stopped.num_timesteps <= 64


def test_evaluations_have_the_step_and_the_policy_at_which_they_are_due():
    """Results are those of callbacks that look at each step: no update comes between the step and the call."""
    fast, each = (model(n_steps=50) for _ in range(2))
    evaluation, saving = EvalCallback(eval_freq=15, most=9), CheckpointCallback(save_freq=7)
    fast.learn(10_000, callback=[evaluation, saving])
    seen = []
    each.learn(10_000, callback=lambda local, _: seen.append((each.num_timesteps, weights(each))) or len(seen) < 9 * 15)
    for calls, callback in ((15, evaluation), (7, saving)):
        due = [(number, *seen[number - 1]) for number in range(calls, 9 * 15 + 1, calls)]
        assert [(call, steps, policy) for call, steps, _, policy in callback.evaluated] == due
        assert all(steps == of_model for _, steps, of_model, _ in callback.evaluated)
        assert callback.n_calls == 9 * 15 and callback.num_timesteps == fast.num_timesteps == each.num_timesteps
    assert len({policy for *_, policy in evaluation.evaluated}) == fast.algorithm.iteration + 1 == 3


def test_the_end_of_a_rollout_comes_before_its_update_and_is_logged_with_it():
    class Ends(BaseCallback):
        def on_rollout_end(self) -> None:
            self.said.append((self.model.algorithm.iteration, self.model.num_timesteps, len(self.model.ep_info_buffer)))

    watched, callback, dumped = model(), Ends(), []
    watched.logger.dump = lambda step: dumped.append(step)
    watched.learn(100, callback=callback)
    ends = [said for said in callback.said if isinstance(said, tuple)]
    assert [iteration for iteration, *_ in ends] == [*range(len(ends))] and [steps for _, steps, _ in ends] == dumped
    assert ends[-1][1] == watched.num_timesteps and ends[-1][2] == len(watched.ep_info_buffer) > 0


@pytest.mark.parametrize("env", ["compiled", "in Python"])
@pytest.mark.parametrize("after", [3, 21])
def test_learning_goes_on_where_a_callback_ended_it(env, after):
    """The next rollout begins with the observation after the last step, and not with an earlier one."""
    seen = []
    made = make_vec_env("CartPole-v1", 1, **({} if env == "compiled" else {"wrapper_class": gymnasium.Wrapper}))
    stopped = PPO("MlpPolicy", made, n_steps=ROLLOUT, batch_size=16, n_epochs=1, seed=0, device="cpu")

    def keep(local: dict, _: dict) -> bool:
        seen.append(local["new_obs"][0])
        return len(seen) != after

    stopped.learn(1000, callback=keep)
    expected = stopped.num_timesteps
    assert len(seen) == after == expected
    stopped.learn(1, callback=keep, reset_num_timesteps=False)
    begin = stopped._trainer.collector.rollout.observation[0, 0].numpy()
    if env == "compiled" or after < ROLLOUT:
        np.testing.assert_array_equal(begin, seen[after - 1].astype(np.float32))
    first = seen[after]
    assert np.abs(first - begin).max() < 0.5  # one step of CartPole, or a new episode


def test_environments_whose_attributes_changed_stay_in_the_next_learn(capsys):
    env = gymnasium.make("CartPole-v1")
    changed = PPO("MlpPolicy", env, n_steps=ROLLOUT, batch_size=16, n_epochs=1, seed=0, device="cpu")
    assert changed._trainer.env.backend == "cpu"
    env.unwrapped.gravity = 1.0
    for _ in range(2):
        changed.learn(32)
        assert changed._trainer.env.backend == "inline" == changed._trainer.collector.env.backend
    assert "gravity" in capsys.readouterr().err


class Duck:
    """The methods of a callback, and no class of Stable-Baselines3 above it."""

    steps = 0

    def init_callback(self, model: Any) -> None: ...
    def on_training_start(self, locals_: Any, globals_: Any) -> None: ...
    def on_rollout_start(self) -> None: ...
    def on_rollout_end(self) -> None: ...
    def on_training_end(self) -> None: ...
    def update_locals(self, locals_: Any) -> None: ...

    def on_step(self) -> bool:
        self.steps += 1
        return True


def test_a_callback_is_known_by_the_methods_that_are_called():
    duck = Duck()
    PPO("MlpPolicy", "CartPole-v1", n_steps=ROLLOUT, batch_size=16, n_epochs=1, seed=0).learn(ROLLOUT, callback=duck)
    assert duck.steps >= ROLLOUT - ROLLOUT // 8


@pytest.mark.parametrize(("function", "expected"), [("return True", True), ("return False", False), ("x = 1", False)])
def test_functions_that_return_true_alone_are_known(function, expected):
    scope: dict[str, Any] = {}
    exec(f"def f(self):\n    '''Documented.'''\n    {function}", scope)
    assert returns_true(scope["f"]) is expected
