"""Files of Stable-Baselines3 2.9: files/*.zip were written by its save(), expected.json by its predict()."""

from __future__ import annotations

import base64
import io
import json
import pickle
import zipfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.spaces import Discrete, MultiDiscrete

from headrace import sb3
from headrace.sb3 import foreign_zip
from headrace.sb3.foreign_weights import net_arch

FILES = Path(__file__).parent / "files"
EXPECTED = json.loads((FILES / "expected.json").read_text())


@pytest.mark.parametrize("name", EXPECTED)
def test_models_act_and_value_as_in_stable_baselines3(name):
    expected, model = EXPECTED[name], getattr(sb3, name.upper()).load(FILES / f"{name}.zip")
    observations = np.array(expected["observations"], np.float32)
    actions, _ = model.predict(observations, deterministic=True)
    np.testing.assert_allclose(actions, expected["actions"], rtol=1e-4, atol=1e-5)
    assert model.num_timesteps == expected["num_timesteps"]
    assert model.algorithm.config.learning_rate == expected["learning_rate"]
    batch = torch.tensor(observations)
    with torch.no_grad():
        if name in ("ppo", "a2c"):
            np.testing.assert_allclose(model.policy.value(batch), expected["values"], rtol=1e-4, atol=1e-5)
        if name in ("sac", "td3"):  # of actions 0.3, normalised
            values = model.policy.critics(model.policy.encoder(batch), torch.full((len(batch), 1), 0.3))
            np.testing.assert_allclose(values, expected["values"], rtol=1e-4, atol=1e-5)
        if name == "ppo":
            distribution, _ = model.policy(batch)
            np.testing.assert_allclose(distribution.log_std.exp().flatten()[0], expected["std"][0], rtol=1e-4)


@pytest.mark.parametrize("name", ["ppo", "a2c", "sac", "td3"])
@pytest.mark.parametrize("sizes", [(9, 7), (5,), ()])
def test_critics_may_have_layers_of_other_sizes_than_the_actor(name, sizes, tmp_path):
    with zipfile.ZipFile(FILES / f"{name}.zip") as file:
        data, weights = file.read("data"), torch.load(io.BytesIO(file.read("policy.pth")), weights_only=True)
    generator, observations = torch.Generator().manual_seed(1), torch.tensor(EXPECTED[name]["observations"])
    value = name in ("ppo", "a2c")
    folders = ["mlp_extractor.value_net"] if value else ["critic.qf0", "critic.qf1"]
    weights = {key: x for key, x in weights.items() if not key.startswith((*folders, "value_net"))}
    inputs = observations if value else torch.cat((observations, torch.full((len(observations), 1), 0.3)), 1)
    expected = []
    for folder in folders:
        shapes = [*pairwise((inputs.shape[1], *sizes, 1))]
        layers = [(torch.randn(b, a, generator=generator), torch.randn(b, generator=generator)) for a, b in shapes]
        for k, (weight, bias) in enumerate(layers):
            key = "value_net" if value and k == len(sizes) else f"{folder}.{2 * k}"
            weights |= {f"{key}.weight": weight, f"{key}.bias": bias}
        expected.append(inputs)
        for k, (weight, bias) in enumerate(layers):
            expected[-1] = expected[-1] @ weight.t() + bias
            expected[-1] = expected[-1].relu() if k < len(sizes) else expected[-1].flatten()
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as file:
        buffer = io.BytesIO()
        torch.save(weights, buffer)
        file.writestr("data", data)
        file.writestr("policy.pth", buffer.getvalue())
    activation = {"policy_kwargs": {"activation_fn": torch.nn.ReLU, "net_arch": net_arch(name, weights)}}
    model = getattr(sb3, name.upper()).load(tmp_path / "other", **activation)
    actions, _ = model.predict(observations.numpy(), deterministic=True)
    np.testing.assert_allclose(actions.shape, np.shape(EXPECTED[name]["actions"]))
    with torch.no_grad():
        policy = model.policy
        found = policy.value(observations) if value else policy.critics(observations, inputs[:, -1:])
    torch.testing.assert_close(found.view(len(expected), -1), torch.stack(expected), rtol=1e-4, atol=1e-4)


def test_a_model_goes_on_learning():
    model = sb3.PPO.load(FILES / "ppo.zip", env="Pendulum-v1", n_steps=16)
    model.learn(32)
    assert model.algorithm.iteration == 2 and model.algorithm.config.activation == "relu"


def test_linear_schedules_are_read(tmp_path):
    with zipfile.ZipFile(FILES / "ppo.zip") as file:
        data, policy = json.loads(file.read("data")), file.read("policy.pth")
    text = {"value_schedule": "LinearSchedule(start=0.3, end=0.1, end_fraction=1.0)", ":serialized:": "not read"}
    data |= {"learning_rate": {":serialized:": "not read"}, "lr_schedule": text, "clip_range": text}
    with zipfile.ZipFile(tmp_path / "ppo.zip", "w") as file:
        file.writestr("data", json.dumps(data))
        file.writestr("policy.pth", policy)
    model = sb3.PPO.load(tmp_path / "ppo.zip")
    assert model.lr_schedule(0.25) == model.clip_range(0.25) == pytest.approx(0.15)


class Trap:
    """Unpickling this writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.write_text, (self.path, "unpickled"))


def test_nothing_is_unpickled(tmp_path, capsys):
    trap = base64.b64encode(pickle.dumps(Trap(tmp_path / "sprung"))).decode()
    with zipfile.ZipFile(FILES / "dqn.zip") as file:
        data, policy = json.loads(file.read("data")), file.read("policy.pth")
    for value in data.values():
        if isinstance(value, dict) and ":serialized:" in value:
            value[":serialized:"] = trap
    data["action_noise"] = {":type:": "<class 'Trap'>", ":serialized:": trap}
    with zipfile.ZipFile(tmp_path / "dqn.zip", "w") as file:
        file.writestr("data", json.dumps(data))
        file.writestr("policy.pth", policy)
    sb3.DQN.load(tmp_path / "dqn")
    assert not (tmp_path / "sprung").exists()
    assert "action_noise, train_freq" in ", ".join(sorted(capsys.readouterr().err.split(":")[0].split(", ")))
    with zipfile.ZipFile(tmp_path / "bad.zip", "w") as file:
        file.writestr("data", json.dumps(data))
        file.writestr("policy.pth", pickle.dumps(Trap(tmp_path / "sprung")))
    with pytest.raises(Exception, match=r"[Ww]eights"):
        sb3.DQN.load(tmp_path / "bad")
    assert not (tmp_path / "sprung").exists()


def test_files_that_do_not_fit_are_refused(tmp_path):
    with pytest.raises(ValueError, match="model of DQN, not PPO"):
        sb3.PPO.load(FILES / "dqn.zip")
    with pytest.raises(ValueError, match="is of shape"):
        sb3.DQN.load(FILES / "dqn.zip", env="Acrobot-v1")
    with zipfile.ZipFile(tmp_path / "empty.zip", "w") as file:
        file.writestr("readme", "")
    with pytest.raises(ValueError, match="holds no model"):
        sb3.PPO.load(tmp_path / "empty.zip")


def test_spaces_of_whole_numbers_keep_their_dtype_and_start():
    kind = "<class 'gymnasium.spaces.multi_discrete.MultiDiscrete'>"
    about = {":type:": kind, "nvec": "[[3 2]\n [4 5]]", "start": "[[1 0]\n [0 2]]", "_shape": [2, 2], "dtype": "int32"}
    wanted = MultiDiscrete([[3, 2], [4, 5]], dtype=np.int32, start=[[1, 0], [0, 2]])
    assert foreign_zip._space(about) == wanted
    assert foreign_zip._space({":type:": kind, "nvec": "[3 2]", "dtype": "int64"}) == MultiDiscrete([3, 2])
    one = {":type:": "<class 'gymnasium.spaces.discrete.Discrete'>", "n": "3", "start": "-1", "dtype": "int32"}
    assert foreign_zip._space(one) == Discrete(3, start=-1, dtype=np.int32)
