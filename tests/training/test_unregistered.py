"""Settings where none are registered: for environments in Python other than for compiled ones."""

from __future__ import annotations

import random
import tomllib
from contextlib import closing
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from helpers.saved import Drifting

import headrace as hr
from headrace.envs import registry, spec
from headrace.envs.builtin.cartpole import CartPole
from headrace.envs.workers import tuning
from headrace.envs.workers.tuning import StepTime, step_time
from headrace.policies.convolutions import is_for_nature
from headrace.training.plan import of_images, settle
from headrace.training.scaling import registered_message, unregistered
from headrace.tuning import auto, candidates


class Own(CartPole):
    """Compiled, and not registered."""


class Images(gymnasium.Env):
    """Episodes of 5 steps, observed as gray images."""

    observation_space, action_space = Box(0, 255, (40, 40), np.uint8), Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.age = 0
        return self._observe(), {}

    def step(self, action):
        self.age += 1
        return self._observe(), float(action), False, self.age == 5, {}

    def _observe(self):
        return np.full(self.observation_space.shape, 10 * self.age, np.uint8)


class SmallImages(Images):
    observation_space = Box(0, 255, (20, 20), np.uint8)


class Sized(Images):
    """Same as Images, with continuous actions."""

    observation_space, action_space = Box(0, 1, (3,)), Box(-1, 1, (2,))


def gymnasium_id(monkeypatch, entry=f"{Images.__module__}:Images", name="FewSteps-v0"):
    """An id of Gymnasium's without registered settings."""
    made = gymnasium.envs.registration.EnvSpec(name, entry)
    monkeypatch.setitem(gymnasium.registry, name, made)
    return name


@pytest.mark.parametrize(("total", "steps"), [(None, 256), (1_000_000, 256), (150_000, 128), (60_000, 64), (1_000, 64)])
def test_rollouts_are_shorter_where_few_steps_are_asked_for(total, steps):
    assert unregistered("ppo", {"total_steps": total})["num_steps"] == steps


@pytest.mark.parametrize(
    ("total", "starts"), [(None, 10_000), (1_000_000, 10_000), (60_000, 6_000), (2_000, 1_000), ("none given", 10_000)]
)
def test_deterministic_policies_begin_with_random_actions(total, starts):
    given = {} if total == "none given" else {"total_steps": total}
    assert unregistered("td3", given)["learning_starts"] == unregistered("ddpg", given)["learning_starts"] == starts
    assert "learning_starts" not in unregistered("sac", given)


def test_deterministic_policies_learn_from_small_first_values_of_observations_as_they_are():
    own = settle("td3", Sized, None, None, {}).algorithm_config
    assert own.invert_gradients and not own.normalize_observation and own.critic_init_scale == 0.4
    own = settle("td3", Sized, None, None, {"normalize_observation": True}).algorithm_config
    assert own.normalize_observation


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
        (lambda: gymnasium.make("Taxi-v4"), {}, (8, 256, 10, 64)),
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


@pytest.mark.parametrize(
    ("algorithm", "given", "expected"),
    [
        ("sac", {}, (128, 1e-3)),
        ("sac", {"learning_rate": 3e-4}, (128, 3e-4)),
        ("td3", {"batch_size": 64}, (64, 1e-3)),
        ("ddpg", {}, (128, 1e-3)),
        ("tqc", {}, (256, 3e-4)),
    ],
)
def test_batches_of_continuous_control(algorithm, given, expected):
    own = settle(algorithm, Sized, None, None, given).algorithm_config
    assert (own.batch_size, own.learning_rate) == expected


def test_a_line_says_so(capsys):
    hr.train("a2c", Drifting, total_steps=8, progress="plain", hidden=(4,))
    said = "Drifting has no tuned settings, taken for an environment stepped in Python: num_envs 8 (--no-reg"
    assert said in capsys.readouterr().out


def test_settings_of_a_family_are_said_to_be_published(capsys):
    for name in ("ALE/Breakout-v5", "envpool/Pong-v5", "minigrid:MiniGrid-Empty-5x5-v0"):
        about = spec(name)
        assert about.entry == name and about.defaults["ppo"]["learning_rate"] == 0.00025
        assert about.published == "rl-baselines3-zoo"
    assert not spec("Hopper-v5").published and not spec("LunarLander-v3").published
    said = registered_message("Breakout", about.defaults["ppo"] | {"threads": None, "hidden": ()}, False, "the zoo")
    assert said.startswith("registered for Breakout, as published by the zoo and not tuned here: total_steps 1,000,000")
    assert "threads none, hidden none (--no-registered" in said


@pytest.mark.parametrize(("total", "steps"), [(None, 128), (1_000_000, 128), (150_000, 128), (60_000, 64)])
def test_rollouts_of_images_are_those_of_atari(total, steps):
    found = unregistered("ppo", {"total_steps": total}, images=True)
    assert (found["num_envs"], found["num_steps"], found["epochs"], found["minibatch_size"]) == (8, steps, 4, 256)


@pytest.mark.parametrize(
    ("source", "options", "expected"),
    [
        (Images, {}, (8, 128, 4, 256, 2.5e-4)),
        (Images, {"epochs": 3, "learning_rate": 1e-3}, (8, 128, 3, 256, 1e-3)),
        (Images, {"num_envs": 32}, (32, 32, 4, 256, 2.5e-4)),  # as docs/scaling.md has it, from those of 8
        (Images, {"registered": False}, (64, 128, 4, 256, 3e-4)),
        (SmallImages, {}, (8, 256, 10, 64, 3e-4)),
        (Drifting, {}, (8, 256, 10, 64, 3e-4)),
    ],
)
def test_what_follows_from_images_once_they_are_seen(source, options, expected):
    with closing(hr.Trainer("ppo", source, **options)) as trainer:
        own = trainer.algorithm.config
        assert (
            trainer.config.num_envs,
            *(own.num_steps, own.epochs, own.minibatch_size),
            pytest.approx(own.learning_rate),
        ) == expected
        assert ("images" in trainer.plan.facts) == (source is Images and options != {"registered": False})


@pytest.mark.parametrize("source", [Images, SmallImages])
def test_longer_rollouts_are_advised_where_a_gradient_step_is_short(source, capsys):
    hr.Trainer("dqn", source, num_envs=1, buffer_size=100, progress="none").close()
    assert ("learn as often with fewer calls" in capsys.readouterr().err) == (source is SmallImages)


def test_off_policy_algorithms_keep_fewer_images():
    assert of_images(settle("sac", Images, None, None, {})).algorithm_config.buffer_size == 100_000
    assert of_images(settle("td3", Images, None, None, {"buffer_size": 7_000})).algorithm_config.buffer_size == 7_000
    own = of_images(settle("dqn", Images, None, None, {})).algorithm_config
    assert (own.buffer_size, own.batch_size, own.learning_rate) == (100_000, 32, 1e-4)
    ratio = own.utd_ratio  # one gradient step in four, as for vectors
    assert ratio == settle("dqn", Drifting, None, None, {}).algorithm_config.utd_ratio == 0.25


def test_what_was_chosen_after_settling_stays():
    plan = settle("sac", Images, None, None, {})
    own = replace(plan.algorithm_config, learning_starts=1)  # as headrace.tuning measures
    changed = of_images(replace(plan, algorithm_config=own, config=replace(plan.config, workers=2, device="cpu")))
    assert changed.algorithm_config == replace(own, buffer_size=100_000)
    assert changed.config == replace(plan.config, workers=2, device="cpu", precision="auto")


def test_an_algorithm_that_is_made_keeps_its_settings():
    policy = hr.ActorCritic(Images.observation_space, Images.action_space, hidden=(4,))
    with closing(hr.Trainer(hr.PPO(policy, hr.PPOConfig(num_steps=4)), Images)) as trainer:
        assert (trainer.algorithm.config.num_steps, trainer.config.precision) == (4, "float32")
        assert not trainer.plan.assumed and trainer.config.num_envs == 8


def test_images_among_the_members_of_an_observation_count():
    image, vector = Images.observation_space, Box(-1, 1, (3,))
    assert is_for_nature(Dict(camera=image, speed=vector)) and is_for_nature(image)
    assert not any(map(is_for_nature, (vector, Dict(speed=vector), SmallImages.observation_space, Discrete(3))))


def test_a_resumed_run_has_the_settings_that_followed_from_images(tmp_path, capsys):
    options = {"num_steps": 4, "num_envs": 2, "hidden": (4,), "progress": "plain", "log_folder": str(tmp_path)}
    run = hr.train("ppo", Images, total_steps=8, **options)
    assert (
        "Images has no tuned settings, taken for an environment stepped in Python, images: " in capsys.readouterr()[0]
    )
    before = tomllib.loads((run.path / "config.toml").read_text())
    hr.train(env=Images, resume=run.path, total_steps=16)
    after = tomllib.loads((run.path / "config.toml").read_text())
    assert before["epochs"] == 4 and after == before | {"total_steps": 16}


@pytest.fixture
def two_cores(monkeypatch):
    for place in (auto, tuning):
        monkeypatch.setattr(place, "cores", lambda: 2)
    monkeypatch.setattr(auto, "kernel_threads", lambda: 2)


def planned(source, **options):
    return auto.settled("ppo", source, None, None, options, hr.Trainer.of)


@pytest.mark.parametrize(("seconds", "busy", "workers"), [(2e-3, 1.0, 2), (2e-6, 1.0, None), (2e-3, 0.0, 8)])
def test_workers_follow_from_what_a_step_costs(monkeypatch, two_cores, seconds, busy, workers):
    monkeypatch.setattr(candidates, "step_time", lambda factory, seed: StepTime(seconds, busy))
    plan = planned(gymnasium_id(monkeypatch))
    assert planned(gymnasium_id(monkeypatch), total_steps=None, max_episodes=9).config.workers == workers
    assert plan.config.workers == workers and plan.registered.get("workers") == workers
    said = registered_message("X", plan.registered, plan.assumed, plan.published, plan.facts)
    cost = f"{seconds * 1e3:.3g} ms a step on 2 cores"
    chosen = "X has no tuned settings, taken for an environment stepped in Python"
    assert said.startswith(f"{chosen}, {cost}: num_envs 8, num_steps 256")
    assert planned(gymnasium_id(monkeypatch), total_steps=400).config.workers is None  # starting them takes longer
    kept = planned(gymnasium_id(monkeypatch), epochs=7).algorithm_config
    assert (kept.epochs, kept.num_steps) == (7, plan.algorithm_config.num_steps)


def test_workers_follow_for_registered_settings_too(monkeypatch, two_cores):
    name = gymnasium_id(monkeypatch)
    monkeypatch.setitem(registry._specs, name, registry.Spec(name, name, {"ppo": {"num_envs": 4, "num_steps": 16}}))
    monkeypatch.setattr(candidates, "step_time", lambda factory, seed: StepTime(2e-3, 1.0))
    plan = planned(name)
    assert (plan.config.num_envs, plan.config.workers, plan.algorithm_config.num_steps) == (4, 2, 16)
    said = registered_message("X", plan.registered, plan.assumed, plan.published, plan.facts)
    assert said.startswith("registered for X, 2 ms a step on 2 cores: num_envs 4, num_steps 16, workers 2 (")
    monkeypatch.setattr(candidates, "step_time", lambda factory, seed: StepTime(2e-6, 1.0))
    assert planned(name).config.workers is None and not planned(name).facts


@pytest.mark.parametrize(
    "options",
    [
        *({"workers": None}, {"actors": None}, {"backend": "inline"}, {"num_envs": 1}, {"registered": False}),
        *({"wrapper": ("gymnasium.wrappers:TimeAwareObservation",)}, {"shards": 2}, {"collection": "async"}),
    ],
)
def test_a_step_is_not_measured_where_workers_are_not_left_open(monkeypatch, two_cores, options):
    monkeypatch.setattr(candidates, "step_time", None)
    assert planned(gymnasium_id(monkeypatch), **options).config.workers is None


def test_environments_of_the_users_own_stay_in_the_process(monkeypatch, two_cores):
    monkeypatch.setattr(candidates, "step_time", None)
    for source in (Images, lambda: Images(), gymnasium_id(monkeypatch, Images)):
        assert planned(source).config.workers is None
    assert planned(gymnasium_id(monkeypatch, "__main__:Own")).config.workers is None
    monkeypatch.setattr(auto, "kernel_threads", lambda: 1)  # HEADRACE_THREADS: trainings share the cores
    assert planned(gymnasium_id(monkeypatch)).config.workers is None


def test_measuring_a_step_leaves_the_global_generators_as_they_were():
    class Rolling(Images):
        def step(self, action):
            random.random(), np.random.random()
            return super().step(action)

    random.seed(5), np.random.seed(5)
    expected = random.random(), np.random.random()
    random.seed(5), np.random.seed(5)
    step_time(Rolling)
    assert (random.random(), np.random.random()) == expected
