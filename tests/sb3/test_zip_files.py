"""Files by paths of all kinds, and files that are open; files of Stable-Baselines3 that need a word."""

from __future__ import annotations

import io
import json
import os
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headrace.sb3 import A2C, DQN, PPO, SAC, TD3

FILES = Path(__file__).parent / "files"
SMALL = {"n_steps": 16, "batch_size": 16, "n_epochs": 1, "device": "cpu"}


def weights(model: Any) -> torch.Tensor:
    return torch.cat([x.detach().flatten() for x in model.policy.parameters()])


def test_open_files_and_paths_of_all_kinds(tmp_path, monkeypatch):
    model = PPO("MlpPolicy", "CartPole-v1", seed=3, **SMALL).learn(16)
    memory = io.BytesIO()
    model.save(memory)
    files: list[Any] = [memory, io.BytesIO(memory.getvalue())]
    with tempfile.TemporaryFile() as both, open(tmp_path / "own", "wb") as written:
        model.save(both)
        model.save(written)
        assert torch.equal(weights(PPO.load(both)), weights(model)) and not (both.closed or written.closed)
    files.append(open(tmp_path / "own", "rb"))  # noqa: SIM115
    for name in ("plain", "with.zip", "version.2", Path("path"), os.fspath(tmp_path / "deep" / "er" / "x")):
        path = tmp_path / name
        model.save(path if isinstance(name, Path) else str(path))
        files += [path, str(path)]
    assert {p.name for p in tmp_path.iterdir() if p.is_file()} == {
        "own",
        "plain.zip",
        "with.zip",
        "version.2",
        "path.zip",
    }
    (tmp_path / "dotted.v1.zip").write_bytes(memory.getvalue())
    files.append(str(tmp_path / "dotted.v1"))
    monkeypatch.chdir(tmp_path)
    files.append("plain")
    for file in files:
        assert torch.equal(weights(PPO.load(file, device="cpu")), weights(model))
        fresh = PPO("MlpPolicy", "CartPole-v1", seed=4, **SMALL)
        fresh.set_parameters(file)
        assert torch.equal(weights(fresh), weights(model))
    files[2].close()


def test_files_that_cannot_be_used_are_refused(tmp_path):
    model, closed = PPO("MlpPolicy", "CartPole-v1", **SMALL), io.BytesIO()
    closed.close()
    (tmp_path / "a").touch()
    for use in (model.save, PPO.load):
        with pytest.raises(TypeError, match="binary mode"):
            use(io.StringIO())
        with pytest.raises(TypeError, match="give a path, or a file that is open"):
            use(3)
        with pytest.raises(ValueError, match="closed"):
            use(closed)
    with open(tmp_path / "a", "rb") as file, pytest.raises(ValueError, match="not writable"):
        model.save(file)
    with open(tmp_path / "a", "wb") as file, pytest.raises(ValueError, match="not readable"):
        PPO.load(file)
    with pytest.raises(ValueError, match="wasn't a zip-file"):
        PPO.load(io.BytesIO(b"text"))
    with pytest.raises(FileNotFoundError):
        PPO.load(tmp_path / "missing")
    with pytest.raises(ValueError, match=r"is a pickle, .*VecNormalize.load\(path, venv\)"):
        PPO.load(tmp_path / "vec_normalize.pkl")


def changed(name: str, data: dict[str, Any] | None = None, rename: Any = None) -> io.BytesIO:
    """A file of Stable-Baselines3 with other data, and with other tensors: rename(name, tensor) gives a dict."""
    with zipfile.ZipFile(FILES / f"{name}.zip") as file:
        about = json.loads(file.read("data")) | (data or {})
        tensors = torch.load(io.BytesIO(file.read("policy.pth")), weights_only=True)
    if rename is not None:
        tensors = {key: x for old, tensor in tensors.items() for key, x in rename(old, tensor).items()}
    stored, made = io.BytesIO(), io.BytesIO()
    torch.save(tensors, stored)
    with zipfile.ZipFile(made, "w") as file:
        file.writestr("data", json.dumps(about))
        file.writestr("policy.pth", stored.getvalue())
    return made


def actions(model: Any) -> np.ndarray:
    seen = np.random.default_rng(0).uniform(-1, 1, (30, *model.observation_space.shape)).astype(np.float32)
    return model.predict(seen, deterministic=True)[0]


@pytest.mark.parametrize("name", ["sac", "td3"])
def test_files_with_another_number_of_critics_act_alike(name, capsys):
    kind, expected = {"sac": SAC, "td3": TD3}[name], actions({"sac": SAC, "td3": TD3}[name].load(FILES / f"{name}.zip"))
    one = kind.load(changed(name, rename=lambda key, x: {} if ".qf1." in key else {key: x}))
    assert "1 critics (n_critics), and there are two here: both begin as that one" in capsys.readouterr().err
    np.testing.assert_array_equal(actions(one), expected)
    assert all(torch.equal(weight[0], weight[1]) for weight in one.policy.critics.weights)
    three = kind.load(
        changed(name, rename=lambda key, x: {key: x} | ({key.replace("qf1", "qf2"): x} if ".qf1." in key else {}))
    )
    assert "3 critics (n_critics), and there are two here: the first two are taken" in capsys.readouterr().err
    np.testing.assert_array_equal(actions(three), expected)


HIDDEN = ("policy_net", "value_net.", "latent_pi")


def of_linear(name: str, tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """Tensors of a policy with net_arch=[]: no hidden layers."""
    if "mlp_extractor" in name or "latent_pi" in name:
        return {}
    inputs = {"action_net.weight": 3, "value_net.weight": 3, "actor.mu.weight": 3, "actor.log_std.weight": 3}
    if name in inputs:
        tensor = torch.linspace(-1, 1, 3 * len(tensor)).view(-1, 3)
    if ".qf" in name:
        number = name.split(".")[2]
        size = {"weight": torch.ones(1, 4), "bias": torch.ones(1)}[name.rpartition(".")[2]]
        return {name: size} if number == "0" else {}
    return {name: tensor}


@pytest.mark.parametrize("name", ["ppo", "sac"])
def test_files_without_hidden_layers_are_read(name):
    model = {"ppo": PPO, "sac": SAC}[name].load(changed(name, rename=of_linear))
    assert model.algorithm.config.hidden == ()
    mean = torch.linspace(-1, 1, 3)
    seen = np.array([[0.1, 0.2, 0.3]], np.float32)
    acted = float((model.policy.actor_out(torch.from_numpy(seen))[0, 0] - model.policy.actor_out.bias[0]).detach())
    assert acted == pytest.approx(float(torch.from_numpy(seen)[0] @ mean), rel=1e-4)


@pytest.mark.parametrize(
    ("file", "kind", "message"),
    [
        (
            lambda: changed("ppo", {"policy_class": {"__module__": "sb3_contrib.common.maskable.policies"}}),
            PPO,
            "MaskablePPO.*action_mask",
        ),
        (
            lambda: changed("ppo", {"policy_class": {"__module__": "sb3_contrib.common.recurrent.policies"}}),
            PPO,
            "RecurrentPPO.*lstm",
        ),
        (lambda: changed("sac", {"policy_class": {"__module__": "sb3_contrib.crossq.policies"}}), SAC, "CrossQ"),
        (lambda: changed("a2c", {"cg_max_steps": 15}), A2C, r"a model of TRPO, not A2C: use TRPO.load\(\)"),
        (
            lambda: changed("dqn", {"policy_class": {"__module__": "my_project.nets"}}),
            DQN,
            "my_project.nets, whose code",
        ),
        (
            lambda: changed("dqn", rename=lambda k, x: {k: x, "features_extractor.linear.weight": x}),
            DQN,
            "features_extractor.linear",
        ),
        (lambda: changed("td3"), SAC, r"a model of TD3, not SAC: use TD3.load\(\)"),
    ],
)
def test_files_of_other_policies_are_refused_by_name(file, kind, message):
    with pytest.raises(ValueError, match=message):
        kind.load(file())
