"""Files of hyperparameters as rl_zoo3 has them: what entries mean, and what is refused."""

from __future__ import annotations

import math
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from torch import nn

import headrace as hr
from headrace.core.fused import plain_only
from headrace.sb3.zoo.entries import IN_PYTHON, OF_ALL_MODELS, OF_ENVS, OLD_HER, SCHEDULED, settings
from headrace.sb3.zoo.literals import parse

pytest.importorskip("yaml")
PPO = """
CartPole-v1:
  n_envs: 2
  n_timesteps: !!float 1e4
  policy: 'MlpPolicy'
  n_steps: 16
  batch_size: 32
  n_epochs: 2
  learning_rate: lin_0.001
  clip_range: lin_0.2
  normalize: "{'norm_obs': True, 'norm_reward': False}"
  policy_kwargs: "dict(ortho_init=False, activation_fn=nn.ReLU, net_arch=dict(pi=[16], vf=[8]))"
Pendulum-v1:
  n_timesteps: 2000
  policy: 'MlpPolicy'
  use_sde: True
  policy_kwargs: "dict(log_std_init=-2)"
  env_wrapper:
    - gymnasium.wrappers.TimeLimit:
        max_episode_steps: 50
    - gymnasium.wrappers.FlattenObservation
  frame_stack: 3
  callback:
    - stable_baselines3.common.callbacks.EvalCallback:
        eval_freq: 500
default:
  n_timesteps: 10
  policy: 'MlpPolicy'
"""


def found(tmp_path, text, algorithm, env):
    file = tmp_path / f"{algorithm}.yml"
    file.write_text(text)
    return settings(file, algorithm, env)


def test_an_entry_is_settings(tmp_path):
    cart = found(tmp_path, PPO, "ppo", "CartPole-v1")
    expected = {
        **{"num_envs": 2, "total_steps": 10_000, "num_steps": 16, "minibatch_size": 32, "epochs": 2, "gamma": 0.99},
        **{"learning_rate": 0.001, "schedule": "linear", "clip": 0.2, "ortho_init": False, "activation": "relu"},
        **{"hidden": (16,), "critic_hidden": (8,), "normalize_observation": True, "normalize_return": False},
        **{"registered": False, "scale": False, "distribution": "auto"},
    }
    assert {name: cart[name] for name in expected} == expected and cart["schedules"]["clip"].startswith("linear:0.2:")
    pendulum = found(tmp_path, PPO, "ppo", "Pendulum-v1")
    expected = {
        **{"num_envs": 1, "frame_stack": 3, "time_limit": 50, "backend": "inline", "eval_freq": 500, "use_sde": True},
        **{"wrapper": ("gymnasium.wrappers:FlattenObservation",), "distribution": "unit_gaussian"},
        **{"num_steps": 2048, "initial_std": pytest.approx(math.exp(-2)), "normalize_observation": False},
    }
    assert {name: pendulum[name] for name in expected} == expected
    assert found(tmp_path, PPO, "ppo", "Acrobot-v1")["total_steps"] == 10  # the default entry


@pytest.mark.parametrize(
    ("algorithm", "text", "expected"),
    [
        ("td3", "noise_type: normal\n  noise_std: 0.1", {"exploration": 0.1, "hidden": (400, 300)}),
        ("ddpg", "noise_type: ornstein-uhlenbeck\n  noise_std: 0.5", {"noise_autocorrelation": 1 - 0.15 * 0.01}),
        ("sac", "ent_coef: auto_0.5\n  train_freq: 8\n  gradient_steps: -1", {"temperature": 0.5, "num_steps": 8}),
        ("tqc", "top_quantiles_to_drop_per_net: 3\n  policy_kwargs: 'dict(n_quantiles=10)'", {"dropped_quantiles": 3}),
        ("crossq", "policy_kwargs: dict(net_arch=dict(pi=[8], qf=[9]))", {"hidden": (8,), "critic_hidden": (9,)}),
        ("trpo", "cg_max_steps: 25\n  n_critic_updates: 20\n  sub_sampling_factor: 1", {"cg_steps": 25}),
        ("ppo", "policy_kwargs: dict(optimizer_kwargs=dict(betas=(0.9, 0.95)))", {"adam_beta2": 0.95}),
        ("a2c", "use_rms_prop: true\n  ent_coef: 0.01", {"entropy_coef": 0.01, "initial_std": 1.0}),
        ("ppo", "n_timesteps: 1e5\n  learning_rate: 7e-4", {"total_steps": 100_000, "learning_rate": 7e-4}),  # texts
        ("dqn", "buffer_size: 1e4\n  seed: 5\n  device: cpu", {"buffer_size": 10_000, "seed": 5, "device": "cpu"}),
        ("ppo", "stats_window_size: 7\n  vec_env_wrapper: null", {"window": 7, "num_envs": 1}),
        ("ppo", "n_envs: 4\n  callback: EvalCallback", {"eval_freq": 40_000}),
        (
            "ppo",
            "n_steps: 32\n  batch_size: 20\n  policy_kwargs: 'dict(lstm_hidden_size=8)'",
            {"recurrent": "lstm", "rnn_size": 8, "sequence_length": 16},
        ),
    ],
)
def test_arguments_of_each_algorithm(algorithm, text, expected, tmp_path):
    policy = "MlpLstmPolicy" if "recurrent" in expected else "MlpPolicy"
    env = "CartPole-v1" if algorithm == "dqn" else "Pendulum-v1"
    got = found(tmp_path, f"{env}:\n  policy: {policy}\n  {text}\n", algorithm, env)
    assert {name: got[name] for name in expected} == expected


@pytest.mark.parametrize("rms", [True, False])
def test_a2c_says_that_its_optimizer_is_another(rms, tmp_path, capsys):
    found(tmp_path, f"Pendulum-v1:\n  policy: MlpPolicy\n  use_rms_prop: {rms}\n", "a2c", "Pendulum-v1")
    assert ("Adam here, and RMSprop" in capsys.readouterr().err) is rms


def test_ornstein_uhlenbeck_noise_is_that_of_stable_baselines3(tmp_path):
    """x' = x - theta x dt + sigma sqrt(dt) normal, from 0."""
    got = found(
        tmp_path,
        "Pendulum-v1:\n  policy: MlpPolicy\n  noise_type: ornstein-uhlenbeck\n  noise_std: 0.5\n",
        "ddpg",
        "Pendulum-v1",
    )
    keeps, deviation, x, unit = got["noise_autocorrelation"], got["exploration"], 0.0, 0.0
    for normal in np.random.default_rng(0).normal(size=50):
        x += -0.15 * x * 0.01 + 0.5 * math.sqrt(0.01) * normal
        unit = keeps * unit + math.sqrt(1 - keeps**2) * normal  # as in ActorQ._explore()
        assert deviation * unit == pytest.approx(x)


@pytest.mark.parametrize(
    ("algorithm", "text", "message"),
    [
        ("ppo", "n_step: 5", "n_step is no argument of PPO; did you mean 'n_steps'"),
        ("ppo", "learning_rate: cos_0.1", "learning_rate is 'cos_0.1': give a number, or lin_0.001"),
        ("ppo", "env_wrapper: no_such_package.Wrapper", "no_such_package.Wrapper cannot be imported"),
        ("ppo", "env_wrapper: os.path.join", "os.path.join is no gymnasium.Wrapper"),
        ("ppo", "env_wrapper:\n    - gymnasium.wrappers.NormalizeReward:\n        gamma: 0.9", "has the arguments"),
        ("ppo", "callback: rl_zoo3.callbacks.ParallelTrainCallback", "ParallelTrainCallback' has no counterpart"),
        ("ppo", "normalize: dict(clip_obs=5)", "normalize has clip_obs, without counterpart"),
        ("ppo", "policy_kwargs: dict(features_extractor_class=Mine)", "'Mine' is not among numbers"),
        ("ppo", "policy_kwargs: dict(optimizer_kwargs=dict(eps=0.1))", "Adam's settings the second beta alone is one"),
        ("ppo", "policy_kwargs: dict(optimizer_kwargs=dict(betas=(0.5, 0.9)))", "'beta1': 0.5"),
        ("ppo", "policy_kwargs: dict(full_std=False)", "full_std=False, which has no counterpart"),
        ("sac", "normalize: true", "rows of a replay buffer stay as they are"),
        ("sac", "noise_type: normal\n  noise_std: 0.1", "sac explores by itself"),
        ("td3", "train_freq: [1, episode]", "not of episodes"),
        ("td3", "noise_std: 0.1", "noise_std=0.1 is without noise_type"),
        ("ppo", "vec_env_wrapper: stable_baselines3.common.vec_env.VecFrameStack", "are Headrace's own vector"),
        ("ppo", "monitor_kwargs: dict(info_keywords=('is_success',))", "log_info logs infos"),
        ("sac", "replay_buffer_class: MyBuffer", "'MyBuffer' is not among numbers"),
        ("trpo", "sub_sampling_factor: 2", "sub_sampling_factor=2 has no counterpart"),
        ("sac", "model_class: tqc", "model_class is tqc: train tqc"),
    ],
)
def test_what_has_no_counterpart_is_refused_by_name(algorithm, text, message, tmp_path):
    with pytest.raises(ValueError, match=message) as raised:
        found(tmp_path, f"Pendulum-v1:\n  policy: MlpPolicy\n  {text}\n", algorithm, "Pendulum-v1")
    assert ("Pendulum-v1" in str(raised.value) and "ppo.yml" in str(raised.value)) or algorithm != "ppo"


def test_files_that_have_no_entry(tmp_path):
    with pytest.raises(ValueError, match="no hyperparameters of CartPole-v0; did you mean 'CartPole-v1'"):
        found(tmp_path, "CartPole-v1: {policy: MlpPolicy}", "ppo", "CartPole-v0")
    with pytest.raises(ValueError, match="is not valid YAML"):
        found(tmp_path, "a: [", "ppo", "CartPole-v1")
    with pytest.raises(ValueError, match="is not valid YAML"):  # the safe loader makes no objects
        found(tmp_path, "CartPole-v1: !!python/object/apply:os.getcwd []", "ppo", "CartPole-v1")
    with pytest.raises(ValueError, match="there is no model of ars"):
        found(tmp_path, "CartPole-v1: {policy: LinearPolicy}", "ars", "CartPole-v1")
    with pytest.raises(FileNotFoundError, match="there is no file nowhere"):
        hr.Trainer("ppo", "CartPole-v1", zoo="nowhere.yml")
    with pytest.raises(ValueError, match="is for a new run"):
        hr.Training(resume="run", zoo="ppo.yml")
    with pytest.raises(TypeError, match="give an id"):
        hr.Trainer("ppo", lambda: gymnasium.make("CartPole-v1"), zoo=tmp_path / "ppo.yml")


def test_python_in_strings_is_parsed_and_not_evaluated():
    value = parse("dict(a=[1, -2.5], b=dict(c=(True, None)), d={'e': nn.Tanh}, f='g')", "x")
    assert value == {"a": [1, -2.5], "b": {"c": (True, None)}, "d": {"e": nn.Tanh}, "f": "g"}
    for text in ("__import__('os')", "dict(a=open('x'))", "[x for x in y]", "nn.Module", "1 + 1", "dict(**a)", "a ="):
        with pytest.raises(ValueError, match="read but not evaluated"):
            parse(text, "policy_kwargs")


def test_a_training_of_an_entry(tmp_path):
    file = tmp_path / "ppo.yml"
    file.write_text(PPO)
    with plain_only():
        trainer = hr.Trainer("ppo", "CartPole-v1", zoo=file, seed=1, gamma=0.5)
        assert trainer.iterate().metrics["learning_rate"] == pytest.approx(0.001)
    config = trainer.algorithm.config
    assert (config.gamma, config.epochs, trainer.env.num_envs) == (0.5, 2, 2)
    trainer.close()


def test_the_documents_have_a_row_for_each_key():
    text = (Path(__file__).parents[2] / "docs" / "from_sb3.md").read_text()
    section = text.split("## Hyperparameters of rl-zoo\n")[1].split("\n### ")[0]
    keys = [row.split(" | ")[0] for row in section.splitlines() if row.startswith("| `")]
    assert not [
        key for key in OF_ENVS.union(OLD_HER, IN_PYTHON, OF_ALL_MODELS, SCHEDULED) if f"`{key}`" not in str(keys)
    ]
