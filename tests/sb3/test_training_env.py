"""Attributes and methods of the environments that a model trains in, and what callbacks see of their steps."""

from __future__ import annotations

import io
from typing import Any

import gymnasium
import numpy as np
import pytest

from headrace import sb3
from headrace.sb3 import A2C, DQN, PPO, VecEnv, make_vec_env

SMALL = {"n_steps": 16, "batch_size": 16, "n_epochs": 1, "seed": 0, "device": "cpu"}


class Lesson(gymnasium.Env):
    """Episodes of five steps, each rewarded by how hard the lesson is."""

    observation_space = gymnasium.spaces.Box(-9, 9, (2,), np.float64)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, hard: float = 0.0) -> None:
        self.hard, self.episodes = hard, 0

    def make_harder(self, by: float, twice: bool = False) -> float:
        self.hard += by * (1 + twice)
        return self.hard

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.steps, self.episodes = 0, self.episodes + 1
        return np.zeros(2), {"of_reset": True}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.steps += 1
        info = {"steps": self.steps, "hard": self.hard, "text": f"step {self.steps}"}
        late = self.steps == 5 and self.episodes % 2 == 0
        reward = self.hard + getattr(self, "bonus", 0.0)
        return np.full(2, self.steps), reward, self.steps == 5 and not late, late, info


class Unseen(gymnasium.Wrapper):
    """A wrapper that only passes on."""


class DummyVecEnv:
    """Stable-Baselines3's class of this name, as far as a model knows it."""

    def __init__(self, envs: list[gymnasium.Env]) -> None:
        self.envs, self.num_envs = envs, len(envs)
        self.observation_space, self.action_space = envs[0].observation_space, envs[0].action_space

    def step_async(self, actions: Any) -> None: ...

    def seed(self, seed: int) -> None: ...

    def env_method(self, name: str, *args: Any, **kwargs: Any) -> list:
        return [env.get_wrapper_attr(name)(*args, **kwargs) for env in self.envs]

    def set_attr(self, name: str, value: Any) -> None:
        for env in self.envs:
            setattr(env, name, value)


ENVS = {
    "class": (lambda: Lesson, 1),
    "function": (lambda: lambda: Unseen(Lesson()), 1),
    "environment": (lambda: Lesson(), 1),
    "wrapped": (lambda: gymnasium.wrappers.TimeLimit(Lesson(), 50), 1),
    "make_vec_env": (
        lambda: make_vec_env(
            Lesson, 3, wrapper_class=gymnasium.wrappers.TimeLimit, wrapper_kwargs={"max_episode_steps": 9}
        ),
        3,
    ),
    "arguments": (lambda: make_vec_env(Lesson, 2, env_kwargs={"hard": 0.0}), 2),
    "workers": (lambda: make_vec_env(Lesson, 3, workers=2), 3),
    "workers with a wrapper": (lambda: make_vec_env(Lesson, 2, workers=1, wrapper_class=Unseen), 2),
    "DummyVecEnv": (lambda: DummyVecEnv([Lesson(), Lesson()]), 2),
}


class Callback:
    """The methods of Stable-Baselines3's BaseCallback, with its attribute training_env."""

    def init_callback(self, model: Any) -> None:
        self.model, self.n_calls, self.locals = model, 0, {}

    @property
    def training_env(self) -> Any:
        return self.model.get_env()

    def on_training_start(self, locals_: dict, globals_: dict) -> None:
        self.locals = locals_

    def update_locals(self, locals_: dict) -> None:
        self.locals.update(locals_)

    def on_step(self) -> bool:
        self.n_calls += 1
        return self._on_step()

    def _on_step(self) -> bool:
        return True

    def on_rollout_start(self) -> None: ...

    def on_rollout_end(self) -> None: ...

    def on_training_end(self) -> None: ...


class Curriculum(Callback):
    """Changes the environments after the first rollout."""

    def __init__(self, change: Any) -> None:
        self.change = change

    def on_rollout_end(self) -> None:
        if self.change is not None:
            self.change(self.training_env)
        self.change = None


CHANGES = {
    "env_method": lambda env: env.env_method("make_harder", 1.0, twice=True),
    "set_attr": lambda env: env.set_attr("hard", 2.0),
    "a new name": lambda env: env.set_attr("bonus", 2.0),
}


@pytest.mark.parametrize("kind", ENVS)
@pytest.mark.parametrize("change", CHANGES)
def test_a_curriculum_acts_on_what_is_trained_in(kind, change):
    make, number = ENVS[kind]
    if change == "a new name" and kind in ("function", "workers with a wrapper"):
        pytest.skip("the user's own wrapper takes it, as in Gymnasium")
    model = PPO("MlpPolicy", make(), **SMALL)
    model.learn(64 * number, callback=Curriculum(CHANGES[change]))
    returns = [info["r"] for info in model.ep_info_buffer]
    assert returns[0] == 0.0 and returns[-number:] == [10.0] * number
    if kind != "DummyVecEnv" and change != "a new name":
        assert model.env.get_attr("hard") == [2.0] * number and model.env.has_attr("episodes")
        assert all(episodes > 5 for episodes in model.env.get_attr("episodes"))
        assert not model.env.has_attr("soft")  # and the workers live on
        model.learn(16)
    if number == 3:
        model.env.set_attr("hard", 7.0, indices=[0, 2])
        assert model.env.env_method("make_harder", 1.0, indices=1) and model.env.get_attr("hard")[::2] == [7.0, 7.0]
    model.close()


class Reader(Callback):
    def __init__(self) -> None:
        self.seen: list[dict] = []

    def _on_step(self) -> bool:
        self.seen.append({name: self.locals[name] for name in ("infos", "dones", "rewards", "new_obs", "actions")})
        assert self.locals["self"] is self.model and self.locals["env"] is self.training_env
        return True


@pytest.mark.parametrize("kind", ENVS)
def test_callbacks_see_the_infos_of_each_step(kind):
    make, number = ENVS[kind]
    model, reader = A2C("MlpPolicy", make(), seed=0), Reader()
    model.learn(24 * number, callback=reader)
    steps = [0] * number
    for seen in reader.seen:
        assert seen["new_obs"].dtype == np.float64 and seen["new_obs"].shape == (number, 2)
        assert len(seen["infos"]) == len(seen["actions"]) == number
        for index, info in enumerate(seen["infos"]):
            if "steps" not in info:  # the step that resets
                assert steps[index] == 0 and not seen["dones"][index] and seen["rewards"][index] == 0
                continue
            steps[index] += 1
            assert info["steps"] == steps[index] and info["text"] == f"step {steps[index]}" and info["hard"] == 0.0
            assert (
                seen["dones"][index] == (steps[index] == 5) == ("episode" in info) == ("terminal_observation" in info)
            )
            if steps[index] == 5:
                steps[index] = 0
                assert (info["episode"]["r"], info["episode"]["l"]) == (0.0, 5) and info[
                    "terminal_observation"
                ].tolist() == [5.0, 5.0]
    late = [info["TimeLimit.truncated"] for seen in reader.seen for info in seen["infos"] if "episode" in info]
    assert len({*late}) == 2 and len(late) >= 4 * number
    again = Reader()
    model.learn(20 * number, callback=again)  # begins new episodes, or goes on in those that were not over
    assert {info["episode"]["l"] for seen in again.seen for info in seen["infos"] if "episode" in info} == {5}
    model.close()


def test_attributes_of_compiled_environments_are_those_of_the_training():
    model = PPO("MlpPolicy", make_vec_env("CartPole-v1", 2), **SMALL)
    model.learn(64, callback=Curriculum(lambda env: env.set_attr("force", 0.25)))
    assert model._trainer.env.params == {"force": 0.25} and model.env.get_attr("force") == [0.25, 0.25]
    assert model.env.get_attr("angle") == model._trainer.env.target.state()["angle"].tolist()
    model.env.set_attr("angle", 1.0, indices=1)
    assert model._trainer.env.target.state()["angle"].tolist()[1] == 1.0
    with pytest.raises(AttributeError, match=r"'strength' is no parameter of CartPole-v1 \(gravity"):
        model.env.set_attr("strength", 1)
    reader = Reader()
    dqn = DQN("MlpPolicy", VecEnv("CartPole-v1", 2), learning_starts=200, seed=0)
    dqn.learn(200, callback=reader)
    ended = [
        (info, seen["rewards"][k]) for seen in reader.seen for k, info in enumerate(seen["infos"]) if "episode" in info
    ]
    returns = [info["r"] for info in dqn.ep_info_buffer]  # of the last step's endings not yet
    assert len(ended) >= len(returns) > 0
    assert sorted(info["episode"]["r"] for info, _ in ended[: len(returns)]) == sorted(returns)
    assert all(reward == 1 and info["terminal_observation"].shape == (4,) for info, reward in ended)


@pytest.mark.parametrize("how", ["attribute", "VecEnv", "DummyVecEnv"])
def test_environments_that_were_compiled_are_stepped_once_they_are_changed(how, capsys):
    envs = [gymnasium.make("CartPole-v1") for _ in range(2 if how == "DummyVecEnv" else 1)]
    model = PPO("MlpPolicy", DummyVecEnv(envs) if how == "DummyVecEnv" else envs[0], **SMALL)
    model.learn(32 * len(envs))
    assert model._trainer.env.backend == "cpu"

    def change(env: Any) -> None:
        if how == "VecEnv":
            env.set_attr("x_threshold", -1.0)  # every step ends the episode
        for one in envs:
            one.unwrapped.x_threshold = -1.0

    model.learn(96 * len(envs), callback=[Curriculum(change), Reader()])
    assert model._trainer.env.backend == "inline" and "because its x_threshold is -1.0" in capsys.readouterr().err
    assert [info["l"] for info in model.ep_info_buffer][-4:] == [1] * 4
    model.learn(32)
    assert model.n_envs == len(envs)


def test_environments_of_the_user_are_not_closed():
    closed = []

    class Closing(Lesson):
        def close(self) -> None:
            closed.append(self)

    env = Closing()
    model = PPO("MlpPolicy", env, **SMALL)
    model.set_env(env)
    model.learn(32)
    model.close()
    assert closed == []
    made = PPO("MlpPolicy", Closing, **SMALL)
    made.close()
    assert (len(closed) == 1 and env.steps == 5) or env.steps < 5


def test_successes_of_workers_are_counted():
    class Reach(Lesson):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
            outcome = super().step(action)
            return *outcome[:4], {"is_success": self.episodes % 2 == 0}

    model = sb3.PPO("MlpPolicy", make_vec_env(Reach, 2, workers=2), **SMALL)
    model.learn(128)
    assert len(model.ep_success_buffer) >= 20 and 0.4 < np.mean(model.ep_success_buffer) < 0.6
    model.close()


def test_a_step_of_four_parts_is_refused_in_words():
    class Old(gymnasium.Env):
        observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            return np.zeros(2, np.float32), {}

        def step(self, action):
            return np.zeros(2, np.float32), 1.0, False, {}

    with pytest.raises(TypeError, match=r"it must give \(observation, reward: a number, terminated"):
        PPO("MlpPolicy", Old(), n_steps=16).learn(16)


def test_episodes_go_on_where_the_same_environments_are_set_without_a_reset(capsys):
    env = Lesson()
    model = PPO("MlpPolicy", env, **SMALL).learn(16)
    before, episodes = model._last_obs, env.episodes
    model.set_env(model.get_env(), force_reset=False)
    assert np.array_equal(model._last_obs, before) and env.episodes == episodes
    assert capsys.readouterr().err == ""
    model.set_env(Lesson(), force_reset=False)
    assert "force_reset=False: new episodes begin" in capsys.readouterr().err and model._last_obs is None
    file = io.BytesIO()
    model.save(file)
    file.seek(0)
    PPO.load(file, env=env, force_reset=False)
    assert "force_reset=False: new episodes begin" in capsys.readouterr().err
