"""PPO, A2C, SAC, TD3 and DQN with the interface of Stable-Baselines3."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import nn

import headrace as hr
from headrace.sb3 import A2C, DQN, PPO, SAC, TD3, VecEnv, make_vec_env

SMALL = {"n_steps": 32, "batch_size": 32, "n_epochs": 2, "seed": 0, "device": "cpu"}


def small(env: Any = "CartPole-v1", **arguments: Any) -> PPO:
    return PPO("MlpPolicy", env, **SMALL | arguments)


def weights(model: Any) -> torch.Tensor:
    return torch.cat([x.detach().flatten() for x in model.policy.parameters()])


def test_the_quickstart_of_stable_baselines3_learns():
    model = PPO("MlpPolicy", gymnasium.make("CartPole-v1", render_mode="rgb_array"), seed=0, device="cpu")
    assert model.learn(total_timesteps=25_000) is model
    rows = 13 * 2048  # some of which only reset
    assert model.algorithm.iteration == 13 and rows - 1500 < model.num_timesteps < rows
    assert np.mean([info["r"] for info in model.ep_info_buffer]) > 120
    vec_env = model.get_env()
    observation, steps = vec_env.reset(), 0
    while True:
        action, state = model.predict(observation, deterministic=True)
        observation, _, done, _ = vec_env.step(action)
        steps += 1
        if done[0]:
            break
    assert steps > 100 and state is None
    assert vec_env.render("rgb_array").ndim == 3
    assert model._trainer.env.backend == "cpu"  # made again by its id, and compiled


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (
            lambda: small(
                clip_range_vf=0.3, target_kl=0.01, ent_coef=0.1, vf_coef=0.2, gae_lambda=0.9, max_grad_norm=1
            ),
            {"num_steps": 32, "minibatch_size": 32, "epochs": 2, "value_clip": 0.3, "target_kl": 0.01}
            | {"entropy_coef": 0.1, "value_coef": 0.2, "gae_lambda": 0.9, "max_grad_norm": 1, "clip": 0.2}
            | {"normalize_observation": False, "normalize_return": False, "hidden": (64, 64), "activation": "tanh"},
        ),
        (
            lambda: small(policy_kwargs={"net_arch": {"pi": [8, 9], "vf": [8, 9]}, "activation_fn": nn.ELU}),
            {"hidden": (8, 9), "activation": "elu"},
        ),
        (lambda: small(policy_kwargs={"net_arch": []}), {"hidden": ()}),
        (lambda: small(policy_kwargs={"net_arch": {"pi": [8], "vf": [9]}}), {"hidden": (8,), "critic_hidden": (9,)}),
        (lambda: small(policy_kwargs={"net_arch": {"pi": [8]}}), {"hidden": (8,), "critic_hidden": ()}),
        (lambda: A2C("MlpPolicy", "CartPole-v1", policy_kwargs={"net_arch": {"pi": [], "vf": []}}), {"hidden": ()}),
        (
            lambda: small("Pendulum-v1", policy_kwargs={"log_std_init": -1.0}),
            {"initial_std": float(np.exp(-1.0)), "distribution": "unit_gaussian"},
        ),
        (
            lambda: A2C("MlpPolicy", "CartPole-v1", normalize_advantage=True),
            {"num_steps": 5, "learning_rate": 7e-4, "normalize_advantage": True, "gae_lambda": 1.0},
        ),
        (
            lambda: SAC("MlpPolicy", "Pendulum-v1", ent_coef="auto_0.3", train_freq=(4, "step"), gradient_steps=-1),
            {"temperature": 0.3, "learn_temperature": True, "num_steps": 4, "gradient_steps": 0, "utd_ratio": 1.0},
        ),
        (
            lambda: SAC("MlpPolicy", "Pendulum-v1", ent_coef=0.2, target_entropy=-2, n_steps=3, gradient_steps=2),
            {"temperature": 0.2, "learn_temperature": False, "target_entropy": -2.0, "n_steps": 3, "gradient_steps": 2},
        ),
        (
            lambda: TD3("MlpPolicy", "Pendulum-v1", action_noise=NormalActionNoise(0.1), target_policy_noise=0.4),
            {"exploration": 0.1, "target_noise": 0.4, "policy_delay": 2, "hidden": (400, 300)},
        ),
        (
            lambda: DQN("MlpPolicy", make_vec_env("CartPole-v1", 2), exploration_final_eps=0.1),
            {"target_interval": 1250, "exploration_final": 0.1, "double": False, "schedule": "constant"},
        ),
    ],
)
def test_arguments_are_the_settings_that_mean_the_same(make: Callable[[], Any], expected: dict[str, Any]):
    config = make().algorithm.config
    for name, value in expected.items():
        assert getattr(config, name) == (pytest.approx(value) if isinstance(value, float) else value), name


class NormalActionNoise:
    def __init__(self, sigma: float) -> None:
        self._mu, self._sigma = np.zeros(1), np.full(1, sigma)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: small(use_sde=True), "use_sde is for actions of a Box"),
        (lambda: small(rollout_buffer_class=dict), "rollout_buffer_class"),
        (lambda: small(clip_range_vf=lambda left: 0.1), "clip_range_vf is a function"),
        (lambda: small(learning_rate="0.1"), "learning_rate must be a number"),
        (lambda: small(policy_kwargs={"net_arch": {"pi": [8], "qf": [9]}}), "a dict of them for pi and vf"),
        (lambda: small(policy_kwargs={"activation_fn": nn.Softmax}), "activation_fn"),
        (lambda: small(n_steps=1), "a rollout of one step has no variance"),
        (lambda: small(policy_kwargs={"optimizer_class": "SGD"}), "optimizer_class='SGD'"),
        (lambda: PPO("LstmPolicy", "CartPole-v1"), "policy must be MlpPolicy"),
        (lambda: PPO("CnnPolicy", "CartPole-v1"), "for images.*use MlpPolicy"),
        (lambda: PPO("MultiInputPolicy", "CartPole-v1"), "for a Dict.*use MlpPolicy"),
        (lambda: SAC("MlpPolicy", "Pendulum-v1", ent_coef="automatic"), "'auto' or 'auto_0.1'"),
        (lambda: SAC("MlpPolicy", "Pendulum-v1", train_freq=(1, "episode")), "not of episodes"),
        (lambda: SAC("MlpPolicy", "Pendulum-v1", target_update_interval=5), "target_update_interval=5"),
        (lambda: SAC("MlpPolicy", "CartPole-v1"), "sac supports Box"),
        (lambda: TD3("MlpPolicy", "Pendulum-v1", action_noise=object()), "use NormalActionNoise"),
        (lambda: small(3), "env must be an id"),
        (lambda: small().set_env("Acrobot-v1"), "observation_space"),
        (lambda: small(None).learn(10), r"set_env\(env\)"),
        (lambda: small().learn(10, callback=3), "callback must be"),
    ],
)
def test_what_has_no_counterpart_is_refused(make: Callable[[], Any], message: str):
    with pytest.raises((ValueError, TypeError), match=message):
        make()


def test_the_old_form_of_net_arch_is_taken_with_a_warning():
    with pytest.warns(UserWarning, match="the old form"):
        assert small(policy_kwargs={"net_arch": [{"pi": [8], "vf": [8]}]}).algorithm.config.hidden == (8,)


def test_schedules_are_called_with_the_remaining_fraction():
    seen: list[float] = []

    def rate(remaining: float) -> float:
        seen.append(remaining)
        return 1e-3 * remaining

    model = small(learning_rate=rate)
    model.learn(128)
    assert seen[:2] == [1.0, 1.0]  # for the constructor, and the first rollout
    assert seen == sorted(seen, reverse=True) and len(seen) >= 5 and 0 < seen[-1] < 0.3
    assert model.algorithm.optimizer.learning_rate.item() == pytest.approx(1e-3 * seen[-1])
    clips = (lambda left: 0.01, 0.01, lambda left: 0.01 if left == 1 else 0.2)
    scheduled, constant, later = (small(clip_range=clip, learning_rate=0.02, n_epochs=8) for clip in clips)
    for one in (scheduled, constant, later):
        one.learn(64)
    assert torch.equal(weights(scheduled), weights(constant)) and not torch.equal(weights(scheduled), weights(later))


def test_learning_goes_on_with_its_count_or_begins_it_again():
    model = small()
    model.learn(64)
    before = model.num_timesteps
    assert 56 <= before < 64
    model.learn(64, reset_num_timesteps=False)
    assert before + 56 <= model.num_timesteps < before + 64 and model.num_timesteps == model._trainer.steps
    model.learn(32)
    assert 28 <= model.num_timesteps < 32 and model.algorithm.iteration == 5


def test_a_file_has_arguments_networks_and_optimizers(tmp_path, capsys):
    model = small(policy_kwargs={"net_arch": [8], "activation_fn": nn.ReLU}, learning_rate=lambda left: 2e-3 * left)
    model.learn(64)
    model.save(tmp_path / "folder" / "model")
    assert capsys.readouterr().err == ""
    observations = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    loaded = PPO.load(tmp_path / "folder" / "model")
    assert np.array_equal(*(m.predict(observations, deterministic=True)[0] for m in (model, loaded)))
    assert loaded.num_timesteps == model.num_timesteps and loaded.arguments["policy_kwargs"]["activation_fn"] is nn.ReLU
    again = PPO.load(tmp_path / "folder" / "model.zip", env="CartPole-v1", n_epochs=3)
    assert again.algorithm.config.epochs == 3 and again.algorithm.iteration == model.algorithm.iteration
    assert torch.equal(again.algorithm.optimizer.mean, model.algorithm.optimizer.mean)
    again.learn(64)
    assert not torch.equal(weights(again), weights(model))
    again.set_parameters(model.get_parameters())
    assert torch.equal(weights(again), weights(model))
    again.learn(64)
    again.set_parameters(tmp_path / "folder" / "model.zip")
    assert torch.equal(weights(again), weights(model))
    with pytest.raises(ValueError, match=r"model of PPO, not A2C: use PPO.load\(\)"):
        A2C.load(tmp_path / "folder" / "model")
    (tmp_path / "other.zip").write_text("no zip")
    with pytest.raises(ValueError, match="holds no model, the file wasn't a zip-file; give"):
        PPO.load(tmp_path / "other")
    with pytest.raises(ValueError, match=r"expected policy, policy.optimizer, got policy;"):
        again.set_parameters({"policy": {}})


def test_a_save_that_fails_leaves_the_file_before(tmp_path, monkeypatch):
    model = small()
    model.save(tmp_path / "model")
    before = (tmp_path / "model.zip").read_bytes()

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("zipfile.ZipFile.writestr", full)
    with pytest.raises(OSError, match="No space left"):
        model.save(tmp_path / "model")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"model.zip": before}


@pytest.mark.parametrize(("kind", "env"), [(SAC, "Pendulum-v1"), (TD3, "Pendulum-v1"), (DQN, "CartPole-v1")])
def test_models_with_a_replay_buffer_learn_save_and_load(kind, env, tmp_path):
    settings = {"learning_starts": 20, "batch_size": 16, "buffer_size": 500, "policy_kwargs": {"net_arch": [16]}}
    model = kind("MlpPolicy", env, seed=0, device="cpu", learning_rate=lambda left: 1e-3 * left, **settings)
    model.learn(60)
    optimizer = next(iter(model.algorithm.optimizers.values()))
    assert 60 <= model.num_timesteps < 64 and 0 < optimizer.learning_rate.item() < 1e-3
    model.save(tmp_path / "model")
    loaded = kind.load(tmp_path / "model", env=env)
    observations = np.random.default_rng(0).normal(size=(7, *model.observation_space.shape)).astype(np.float32)
    assert np.array_equal(*(m.predict(observations, deterministic=True)[0] for m in (model, loaded)))
    loaded.learn(30)
    assert loaded.algorithm.replay is not None


class Own(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    steps_of_all = 0

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        self.steps_of_all += 1
        return np.full(2, 0.1, np.float32), float(action), self.steps == 5, False, {}


def test_environments_of_ones_own_are_stepped_as_they_are():
    env = Own()
    model = small(env)
    model.learn(64)
    assert env.steps_of_all >= 53
    assert model.get_env().reset().shape == (1, 2)
    model.learn(64)
    counted = small(gymnasium.wrappers.TimeLimit(gymnasium.make("CartPole-v1"), 3))
    counted.learn(64)
    assert {info["l"] for info in counted.ep_info_buffer} == {3}
    assert counted._trainer.env.backend == "inline"  # a wrapper was added
    assert small(Own).n_envs == 1
    model = small(VecEnv("CartPole-v1", 3, time_limit=4))
    model.learn(64)
    assert model.n_envs == 3 and {info["l"] for info in model.ep_info_buffer} == {4}
    heavy = small(VecEnv("CartPole-v1", 2, params={"gravity": 20.0}))
    assert heavy._trainer.env.params == {"gravity": 20.0}


def test_environments_whose_attributes_were_set_are_stepped_as_they_are(capsys):
    env = gymnasium.make("CartPole-v1")
    env.reset(seed=1)
    env.step(0)
    assert small(env)._trainer.env.backend == "cpu"  # its state is no setting
    env.unwrapped.force_mag = 0.0
    model = small(env)
    assert model._trainer.env.backend == "inline" and "because its force_mag is 0.0" in capsys.readouterr().err
    writing = type("Monitor", (gymnasium.Wrapper,), {"results_writer": object()})  # writes a file of each episode
    assert small(writing(gymnasium.make("CartPole-v1")))._trainer.env.backend == "inline"


class DummyVecEnv:
    """Imitation of Stable-Baselines3's class of this name."""

    def __init__(self, envs: list[gymnasium.Env]) -> None:
        self.envs, self.num_envs = envs, len(envs)
        self.observation_space, self.action_space = envs[0].observation_space, envs[0].action_space

    def step_async(self, actions: Any) -> None: ...

    def env_method(self, name: str) -> None: ...

    def seed(self, seed: int) -> None: ...


class OtherVecEnv(DummyVecEnv):
    """A vector with methods of its own: episodes of 3 steps, every other one is truncated."""

    def __init__(self, final: dict | None = None) -> None:
        super().__init__([Own(), Own()])
        self.steps = np.zeros(2, int)
        self.final = {"terminal_observation": np.ones(2, np.float32)} if final is None else final

    def seed(self, seed: int) -> None:
        self.seeded = seed

    def reset(self) -> np.ndarray:
        return np.zeros((2, 2), np.float32)

    def step(self, actions: np.ndarray) -> tuple:
        self.steps += 1
        done = self.steps % 3 == 0
        late = self.steps % 2 == 0
        infos = [{"TimeLimit.truncated": bool(x), **self.final} for x in late]
        return np.zeros((2, 2), np.float32), np.ones(2, np.float32), done, infos


def test_environments_of_stable_baselines3_are_made_again_or_stepped():
    compiled = small(DummyVecEnv([gymnasium.make("CartPole-v1") for _ in range(2)]))
    assert compiled._trainer.env.backend == "cpu" and compiled.n_envs == 2
    stepped = small(DummyVecEnv([Own(), Own()]))
    stepped.learn(64)
    assert stepped.n_envs == 2 and all(env.steps_of_all >= 24 for env in stepped.get_env().envs)
    vector = small(OtherVecEnv())
    vector.learn(100)
    assert {info["l"] for info in vector.ep_info_buffer} == {3} and hasattr(vector.get_env(), "seeded")


def test_a_vec_env_without_final_observations_has_the_last_ones_before():
    vector = small(OtherVecEnv(final={}))
    with pytest.warns(UserWarning, match="gives no final observations"):
        vector.learn(100)
    assert {info["l"] for info in vector.ep_info_buffer} == {3}


def test_tables_and_tensorboard_have_stable_baselines3s_names(tmp_path, capsys):
    model = small(verbose=1, tensorboard_log=str(tmp_path))
    model.learn(256, tb_log_name="first")
    printed = capsys.readouterr().out
    for name in ("ep_rew_mean", "fps", "total_timesteps", "explained_variance", "clip_fraction", "learning_rate"):
        assert f"   {name} " in printed
    model.learn(64, tb_log_name="first")
    model.learn(64, tb_log_name="first", reset_num_timesteps=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first_1", "first_2"]
    events = b"".join(path.read_bytes() for path in (tmp_path / "first_1").rglob("events*"))
    assert b"rollout/ep_rew_mean" in events and b"train/value_loss" in events


def test_a_policy_is_headraces_own():
    model = small()
    assert isinstance(model.policy, hr.ActorCritic)
    action, _ = model.policy.predict(np.zeros(4, np.float32))
    assert action in (0, 1)


def test_what_a_user_reads_from_a_model(tmp_path, capsys):
    model = PPO("MlpPolicy", "CartPole-v1", n_steps=64, seed=3, stats_window_size=7, gamma=0.5)
    assert (model.gamma, model.n_steps, model.ep_success_buffer.maxlen) == (0.5, 64, 7)
    with pytest.raises(AttributeError, match="no attribute 'gama'"):
        _ = model.gama
    drawn = [
        [int(m.predict(np.zeros(4))[0]) for _ in range(40)] for m in (model, PPO("MlpPolicy", "CartPole-v1", seed=3))
    ]
    assert drawn[0] == drawn[1] and len(set(drawn[0])) == 2
    assert isinstance(model.predict(np.zeros(4))[0], np.ndarray)
    with pytest.raises(ValueError, match="mixing Gym API"):
        model.predict((np.zeros(4), {}))
    model.save(tmp_path / "m", exclude=["gamma", "n_steps"], include=["n_steps"])
    read = type(model).load(tmp_path / "m", custom_objects={"batch_size": 16, "unknown": 1}, print_system_info=True)
    assert (read.gamma, read.n_steps, read.batch_size) == (0.99, 64, 16) and "torch" in capsys.readouterr().out
    parts = model.get_parameters()
    with pytest.raises(ValueError, match=r"expected policy, policy.optimizer, got policy, policy.optimizer, other"):
        model.set_parameters(parts | {"other": {}}, exact_match=False)
    name = next(iter(parts["policy"]))
    less = {key: tensor for key, tensor in parts["policy"].items() if key != name}
    with pytest.raises(RuntimeError, match=f"policy lacks {name}"):
        model.set_parameters(parts | {"policy": less})
    model.set_parameters({"policy": {name: parts["policy"][name] + 1}}, exact_match=False)
    assert torch.equal(model.get_parameters()["policy"][name], parts["policy"][name] + 1)


class Reach(gymnasium.Env):
    """Episodes of four steps; every other one succeeds."""

    observation_space, action_space = gymnasium.spaces.Box(-1, 1, (2,)), gymnasium.spaces.Discrete(2)
    step_number = episode = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        self.step_number, self.episode = 0, self.episode + 1
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.step_number += 1
        ended = self.step_number == 4
        return np.zeros(2, np.float32), 0.0, ended, False, {"is_success": self.episode % 2 == 0} if ended else {}


def test_the_rate_of_success_is_recorded():
    model = A2C("MlpPolicy", Reach(), stats_window_size=10)
    model.learn(100)
    assert model.ep_success_buffer.maxlen == 10 and sum(model.ep_success_buffer) == 5
    recorded = []
    model.logger.record = lambda key, value, **how: recorded.append((key, value))
    model.dump_logs()
    assert ("rollout/success_rate", 0.5) in recorded


@pytest.mark.parametrize("seed", [1.5, "3", 2**32])
def test_a_seed_that_is_none_is_refused_in_words(seed):
    with pytest.raises(ValueError, match="a seed must be a whole number"):
        PPO("MlpPolicy", "CartPole-v1", seed=seed)
