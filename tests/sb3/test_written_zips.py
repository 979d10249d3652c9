"""Files for Stable-Baselines3, save(format="sb3"): read back, computed by torch's own modules, and loaded by it."""

from __future__ import annotations

import base64
import io
import json
import os
import pickle
import pickletools
import re
import subprocess
import sys
import zipfile

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Tuple
from torch import nn

from headrace import sb3
from headrace.core.fused import plain_only
from tests.sb3.test_with_sb3 import HOME, ROOT, site_packages

NET = {"policy_kwargs": {"net_arch": [16, 8]}, "seed": 0, "device": "cpu"}
OFF_POLICY = {**NET, "buffer_size": 200, "learning_starts": 20, "batch_size": 8, "train_freq": (2, "step")}
LSTM = {"n_steps": 16, "batch_size": 16, "seed": 0, "policy_kwargs": {"net_arch": [], "lstm_hidden_size": 8}}
MODELS = {
    "PPO": ("Pendulum-v1", {**NET, "n_steps": 16, "batch_size": 16}),
    "A2C": ("CartPole-v1", NET),
    "TRPO": ("CartPole-v1", {**NET, "n_steps": 16}),
    **{name: ("CartPole-v1", OFF_POLICY) for name in ("DQN", "QRDQN")},
    **{name: ("Pendulum-v1", OFF_POLICY) for name in ("SAC", "TD3", "DDPG", "TQC", "CrossQ")},
}


def learned(name, folder):
    """A model that has learned, its observations and its actions there."""
    env, arguments = MODELS.get(name, ("CartPole-v1", LSTM))
    with plain_only():
        model = getattr(sb3, name)("MlpLstmPolicy" if name == "RecurrentPPO" else "MlpPolicy", env, **arguments)
        model.learn(40)
        seen = np.random.default_rng(0).normal(size=(20, *model.observation_space.shape)).astype(np.float32)
        actions, _ = model.predict(seen, deterministic=True)
    model.save(folder / name, format="sb3")
    return model, seen, actions


def members(path):
    with zipfile.ZipFile(path) as file:
        data = json.loads(file.read("data"))
        names = [name for name in file.namelist() if name.endswith(".pth")]
        return data, {name: torch.load(io.BytesIO(file.read(name)), weights_only=True) for name in names}


@pytest.mark.parametrize("name", [name for name in MODELS if name != "CrossQ"])
def test_files_are_read_back(name, tmp_path, capsys):
    model, seen, actions = learned(name, tmp_path)
    assert "are pickled, as Stable-Baselines3 requires; Adam's moments" in capsys.readouterr().err
    again = getattr(sb3, name).load(tmp_path / name)
    np.testing.assert_allclose(again.predict(seen, deterministic=True)[0], actions, rtol=1e-5, atol=1e-6)
    assert again.num_timesteps == model.num_timesteps and again.gamma == model.gamma
    assert (again.observation_space, again.action_space) == (model.observation_space, model.action_space)


def test_pickles_name_spaces_and_the_class_of_the_policy_alone(tmp_path):
    model, *_ = learned("SAC", tmp_path)
    data, tensors = members(tmp_path / "SAC.zip")
    pickles = {name: base64.b64decode(x[":serialized:"]) for name, x in data.items() if isinstance(x, dict)}
    assert pickles.keys() == {"policy_class", "policy_kwargs", "observation_space", "action_space"}
    _, name, _ = next(pickletools.genops(pickles["policy_class"]))
    assert name == "stable_baselines3.sac.policies SACPolicy"
    assert pickle.loads(pickles["action_space"]) == model.action_space
    assert pickle.loads(pickles["policy_kwargs"]) == NET["policy_kwargs"]
    optimized = {name: len(x["param_groups"][0]["params"]) for name, x in tensors.items() if "optimizer" in name}
    assert optimized == {"actor.optimizer.pth": 8, "critic.optimizer.pth": 12, "ent_coef_optimizer.pth": 1}
    assert tensors["actor.optimizer.pth"]["param_groups"][0]["lr"] == pytest.approx(3e-4)
    temperature = model.algorithm.buffers["log_temperature"]
    assert torch.equal(tensors["pytorch_variables.pth"]["log_ent_coef"], temperature.reshape(1))


def test_batch_renormalisation_has_its_variances(tmp_path):
    """The actor of sb3-contrib's CrossQ, evaluated: norm, layer, ReLU, norm, layer, ReLU, norm, mean."""
    _, seen, actions = learned("CrossQ", tmp_path)
    policy = members(tmp_path / "CrossQ.zip")[1]["policy.pth"]
    assert not any("target" in name for name in policy)

    def norm(x, at):
        scale, bias, mean, var = (policy[f"{at}.{name}"] for name in ("scale", "bias", "ra_mean", "ra_var"))
        assert policy[f"{at}.steps"].dtype == torch.int64 and policy[f"{at}.steps"] > 0
        return scale * (x - mean) / (var + 1e-3).sqrt() + bias

    x = torch.tensor(seen)
    for k in (0, 3):
        layer = policy[f"actor.latent_pi.{k + 1}.weight"], policy[f"actor.latent_pi.{k + 1}.bias"]
        x = nn.functional.linear(norm(x, f"actor.latent_pi.{k}"), *layer).relu()
    x = nn.functional.linear(norm(x, "actor.latent_pi.6"), policy["actor.mu.weight"], policy["actor.mu.bias"])
    np.testing.assert_allclose(2 * torch.tanh(x), actions, rtol=1e-4, atol=1e-5)
    assert policy["critic.qf1.7.weight"].shape == (1, 8) and policy["critic.qf0.0.ra_mean"].shape == (4,)


def test_an_lstm_without_hidden_layers_is_written(tmp_path):
    model, seen, _ = learned("RecurrentPPO", tmp_path)
    policy = members(tmp_path / "RecurrentPPO.zip")[1]["policy.pth"]
    cell = nn.LSTM(4, 8)
    cell.load_state_dict({name.removeprefix("lstm_actor."): x for name, x in policy.items() if "lstm_actor" in name})
    with torch.no_grad():
        out, _ = cell(torch.tensor(seen).unsqueeze(1))  # 20 steps of one environment
        logits = nn.functional.linear(out[:, 0], policy["action_net.weight"], policy["action_net.bias"])
    state, found = None, []
    for observation in seen:
        action, state = model.predict(observation, state=state, deterministic=True)
        found.append(int(action))
    assert found == logits.argmax(1).tolist() and len({*found}) == 2


def test_a_schedule_is_said_to_be_kept_once_and_where_a_file_is_written(tmp_path, capsys):
    rate = {"learning_rate": lambda left: 2e-3 * left, "n_steps": 16, "batch_size": 16}
    extractor = {"features_extractor_class": sb3.extractors.NatureCNN}
    images = sb3.PPO("MlpPolicy", "CartPole-v1", **rate)
    images.arguments["policy_kwargs"] = extractor
    with pytest.raises(ValueError, match="no features extractor"):
        images.save(tmp_path / "x", format="sb3")
    assert capsys.readouterr().err == "" and not list(tmp_path.iterdir())
    model = sb3.PPO("MlpPolicy", "CartPole-v1", **rate)
    for _ in range(2):
        model.save(tmp_path / "x", format="sb3")
    assert capsys.readouterr().err.count("learning_rate is a function: the file keeps 0.002, its first value") == 1
    assert sb3.PPO.load(tmp_path / "x").arguments["learning_rate"] == 0.002


def test_what_has_no_counterpart_there_is_refused_by_name(tmp_path):
    small = {"n_steps": 16, "device": "cpu"}
    layers = sb3.RecurrentPPO("MlpLstmPolicy", "CartPole-v1", batch_size=16, **small)
    with pytest.raises(ValueError, match=r"hidden layers after the LSTM, and Headrace before it: .*'net_arch': \[\]"):
        layers.save(tmp_path / "x", format="sb3")
    smooth = sb3.PPO("MlpPolicy", "Pendulum-v1", use_sde=True, batch_size=16, **small)
    with pytest.raises(ValueError, match="not for use_sde=True"):
        smooth.save(tmp_path / "x", format="sb3")
    with pytest.raises(ValueError, match='format must be "headrace" or "sb3", got \'zip\''):
        smooth.save(tmp_path / "x", format="zip")
    assert not list(tmp_path.iterdir())


class Acting(gymnasium.Env):
    """Environment with a given action space, for one step at a time."""

    observation_space = Box(-1.0, 1.0, (3,))

    def __init__(self, space):
        self.action_space = space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(3, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action)
        return np.zeros(3, np.float32), 0.0, True, False, {}


@pytest.mark.parametrize(
    ("space", "why"),
    [
        (Discrete(3, start=1), "counts choices from 0"),
        (MultiDiscrete([2, 2], start=[0, 5]), "counts choices from 0"),
        (Box(-np.inf, np.inf, (2,)), "asks for finite bounds"),
        (MultiDiscrete(np.array([[2, 3], [2, 2]])), "none of several parts or dimensions but Boxes"),
        (Tuple((Box(-1.0, 1.0, (2,)), Box(-1.0, 1.0, (1,)))), "none of several parts or dimensions but Boxes"),
    ],
)
def test_actions_that_it_does_not_have_are_refused_by_name(space, why, tmp_path):
    model = sb3.PPO("MlpPolicy", Acting(space), n_steps=16, batch_size=16, device="cpu")
    with pytest.raises(ValueError, match=f"not for actions {re.escape(str(space))}: .*{why}"):
        model.save(tmp_path / "x", format="sb3")
    assert not list(tmp_path.iterdir())


def test_a_box_of_several_dimensions_is_written_as_the_environment_has_it(tmp_path):
    space = Box(-2.0, 2.0, (2, 2))
    model = sb3.PPO("MlpPolicy", Acting(space), n_steps=16, batch_size=16, device="cpu")
    model.save(tmp_path / "x", format="sb3")
    assert model.action_space == space
    data, _ = members(tmp_path / "x.zip" if (tmp_path / "x.zip").exists() else tmp_path / "x")
    code = base64.b64decode(data["action_space"][":serialized:"])
    assert pickle.loads(code) == space
    assert not [x for _, x, _ in pickletools.genops(code) if isinstance(x, str) and "headrace" in x]
    assert sb3.PPO.load(tmp_path / "x").predict(np.zeros(3))[0].shape == (2, 2)
    again = sb3.PPO.load(tmp_path / "x", env=Acting(space)).learn(16)
    assert again.action_space == space and again.predict(np.zeros(3))[0].shape == (2, 2)


PROGRAM = """
import json, sys
sys.path.append(sys.argv[1])
import gymnasium, numpy as np, stable_baselines3, torch
torch.set_num_threads(1)
found = {}
for name, env in json.loads(sys.argv[2]).items():
    model = getattr(stable_baselines3, name).load(name, gymnasium.make(env))
    saved = np.load(name + ".npz")
    close = np.allclose(model.predict(saved["seen"], deterministic=True)[0], saved["actions"], 1e-5, 1e-5)
    before = model.num_timesteps
    found[name] = close and model.learn(50, reset_num_timesteps=False).num_timesteps >= before + 50
print(json.dumps({name: bool(x) for name, x in found.items()}))
"""


@pytest.mark.skipif(site_packages() is None, reason=f"needs stable-baselines3 in {HOME}")
def test_stable_baselines3_loads_them_and_learns_on(tmp_path):
    tasks = {name: MODELS[name][0] for name in ("PPO", "A2C", "DQN", "SAC", "TD3", "DDPG")}
    for name in tasks:
        _, seen, actions = learned(name, tmp_path)
        np.savez(tmp_path / f"{name}.npz", seen=seen, actions=actions)
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(site_packages()), json.dumps(tasks)]
    settings = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=settings)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == dict.fromkeys(tasks, True)
