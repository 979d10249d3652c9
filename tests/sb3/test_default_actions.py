"""Default of predict() of a model, as in Stable-Baselines3: SAC samples, TD3 does not, DQN explores by its rate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.sb3 import DQN, PPO, SAC, TD3

FILES = Path(__file__).parent / "files"
SMALL = {"seed": 0, "device": "cpu", "policy_kwargs": {"net_arch": [16]}}


class NormalActionNoise:
    def __init__(self, sigma: float) -> None:
        self._mu, self._sigma = np.zeros(1), np.full(1, sigma)


def actions(model: Any, number: int = 200) -> np.ndarray:
    """Actions by default at one observation, one by one and in a batch."""
    seen = np.full(model.observation_space.shape, 0.1, np.float32)
    one = [np.ravel(model.predict(seen)[0]) for _ in range(number)]
    many = model.predict(np.stack([seen] * number))[0].reshape(number, -1)
    return np.concatenate([one, many])


def made(kind: type, **arguments: Any) -> Any:
    env = "CartPole-v1" if kind is DQN else "Pendulum-v1"
    return kind("MlpPolicy", env, learning_starts=40, batch_size=16, **SMALL | arguments)


def versions(kind: type, folder: Path, steps: int) -> dict[str, Any]:
    """A model after learn(steps), and all that can be made of it."""
    model = made(kind, **({"action_noise": NormalActionNoise(0.5)} if kind is TD3 else {}))
    found = {"fresh": made(kind), "trained": model.learn(steps)}
    model.save(folder / "model")
    found["loaded"] = kind.load(folder / "model")
    found["loaded with an env"] = kind.load(folder / "model", env=model.get_env())
    found["given parameters"] = made(kind)
    found["given parameters"].set_parameters(model.get_parameters())
    found["given a file"] = made(kind)
    found["given a file"].set_parameters(folder / "model.zip")
    return found


@pytest.mark.parametrize("steps", [20, 80])  # before learning starts, and after
def test_td3_has_one_action(steps, tmp_path):
    for name, model in (versions(TD3, tmp_path, steps) | {"theirs": TD3.load(FILES / "td3.zip")}).items():
        found = actions(model, 20)
        assert np.ptp(found) == 0, name
        assert found[0] == model.predict(np.full(3, 0.1, np.float32), deterministic=True)[0], name


@pytest.mark.parametrize("steps", [20, 80])
def test_sac_samples_its_distribution(steps, tmp_path):
    found = versions(SAC, tmp_path, steps)
    spread = {name: actions(model).std() for name, model in found.items()}
    of_policy = {name: model.policy.sample for name, model in found.items()}
    assert len(of_policy) == 6 and all(0.3 < value < 1.3 for value in spread.values()), spread
    theirs = SAC.load(FILES / "sac.zip")
    best = theirs.predict(np.full(3, 0.1, np.float32), deterministic=True)[0]
    assert abs(np.median(actions(theirs, 400)) - best) < 0.35


def test_dqn_explores_by_its_rate(tmp_path):
    found = versions(DQN, tmp_path, 400)
    model = found["trained"]
    assert model.exploration_rate == pytest.approx(0.05) and found["fresh"].exploration_rate == 0.0
    assert np.ptp(actions(found["fresh"])) == 0
    for name in ("trained", "loaded", "loaded with an env"):
        assert found[name].exploration_rate == pytest.approx(0.05)
        drawn = np.array([np.ravel(found[name].predict(np.full(4, 0.1, np.float32))[0])[0] for _ in range(1000)])
        assert 0.005 < min(drawn.mean(), 1 - drawn.mean()) < 0.06, name  # half of the random ones are the best action
    for name in ("given parameters", "given a file"):
        assert np.ptp(actions(found[name])) == 0
    theirs = DQN.load(FILES / "dqn.zip")
    assert 0 < theirs.exploration_rate <= 1
    fresh = made(DQN)
    for rate, expected in ((1.0, 2), (0.0, 1)):
        fresh.exploration_rate = rate
        assert fresh.exploration_rate == rate and len(np.unique(actions(fresh))) == expected
    rates = []
    model.learn(200, callback=lambda local, _: rates.append(local["self"].exploration_rate))
    assert rates[0] == 1.0 and rates[-1] == pytest.approx(0.05) and sorted(rates, reverse=True) == rates


def test_exploration_is_no_parameter(tmp_path):
    trained, fresh = made(SAC).learn(80), made(SAC)
    assert trained.get_parameters()["policy"].keys() & {"random", "exploration"} == set()
    fresh.set_parameters(trained.get_parameters())
    assert fresh.policy.random.item() == 1.0  # its own training begins with random actions
    assert PPO("MlpPolicy", "CartPole-v1", n_steps=16, **SMALL).policy.samples
    with pytest.raises(AttributeError):
        _ = fresh.exploration_rate
