"""Images in algorithms that learn from a replay: bytes in the ring, an encoder that the critics teach, and learning."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from helpers.plainly import compile_no_losses

import headrace as hr
from headrace.algorithms.ddpg import DDPG, DDPGConfig
from headrace.algorithms.dqn import DQNConfig
from headrace.algorithms.sac import SAC, SACConfig
from headrace.algorithms.td3 import TD3, TD3Config
from headrace.algorithms.tqc import TQC, TQCConfig
from headrace.data.replay import Batch

SIZE = 8
IMAGES = Box(0, 255, (1, SIZE, SIZE), np.uint8)
POINT = Box(-1.0, 3.0, (1,))
KINDS = {"sac": (SAC, SACConfig), "tqc": (TQC, TQCConfig), "td3": (TD3, TD3Config), "ddpg": (DDPG, DDPGConfig)}
OWN = {"tqc": {"critics": 2, "critic_hidden": (16,)}, "td3": {"policy_delay": 1}}


pytestmark = pytest.mark.usefixtures("one_thread")


class Look(gymnasium.Env):
    """One column of an image is bright: point at it. Episodes of one step."""

    observation_space = IMAGES

    def __init__(self, discrete: bool) -> None:
        self.action_space = Discrete(SIZE) if discrete else POINT

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = int(self.np_random.integers(SIZE))
        picture = np.zeros(IMAGES.shape, np.uint8)
        picture[:, :, self.place] = 200
        return picture, {}

    def step(self, action):
        if isinstance(self.action_space, Discrete):
            reward = float(action == self.place)
        else:
            reward = -abs(float(action[0]) - (4 * self.place / (SIZE - 1) - 1))
        return np.zeros(IMAGES.shape, np.uint8), reward, True, False, {}


def look_discrete():
    return Look(True)


def look():
    return Look(False)


def made_up(actions):
    source = torch.Generator().manual_seed(0)

    def images():
        return (torch.rand(1, 12, *IMAGES.shape, generator=source) * 255).to(torch.uint8)

    ones = torch.ones(1, 12)
    reward = torch.rand(1, 12, generator=source)
    return Batch(images(), actions(source), reward, 0.9 * ones, images(), ones, torch.zeros(1, 12).long())


@pytest.mark.parametrize("name", KINDS)
def test_the_critics_teach_the_encoder_and_the_actor_does_not(name, monkeypatch):
    if name != "sac":
        compile_no_losses(monkeypatch)
    kind, config = KINDS[name]
    algorithm = kind.build(config(hidden=(16,), tau=0.25, **OWN.get(name, {})), IMAGES, POINT, 0, "cpu")
    batch = made_up(lambda source: torch.rand(1, 12, 1, generator=source) * 4 - 1)
    random = torch.rand(1, 12, max(algorithm.num_draws(), 1), generator=torch.Generator().manual_seed(1))
    policy = algorithm.policy
    target = algorithm.networks.target

    def learned(rate):
        parts = (policy.encoder, policy.critics, policy.actor_out, target.encoder)
        before = [[x.detach().clone() for x in part.parameters()] for part in parts]
        algorithm.optimizers["critics"].learning_rate.fill_(rate)
        algorithm.learn(batch, random)
        return [
            [x.detach() - y for x, y in zip(p.parameters(), b, strict=True)] for p, b in zip(parts, before, strict=True)
        ]

    encoder, critics, actor, slow = learned(0.0)
    assert not any(x.any() for x in (*encoder, *critics, *slow)) and actor[0].any()
    encoder, critics, actor, slow = learned(1e-3)
    assert all(x.any() for x in encoder) and critics[0].any() and actor[0].any()
    for moved, following in zip(encoder, slow, strict=True):
        torch.testing.assert_close(following, 0.25 * moved, rtol=1e-3, atol=1e-6)


def test_the_ring_keeps_bytes_and_the_plan_counts_them(tmp_path, capsys):
    settings = {
        "num_envs": 2,
        "num_steps": 2,
        "learning_starts": 16,
        "batch_size": 8,
        "hidden": (8,),
        "total_steps": 40,
    }
    run = hr.train("sac", look, buffer_size=1000, log_folder=str(tmp_path), progress="plain", **settings)
    # 64 pixels, action, reward, valid, terminated, truncated
    assert "replay: 1,000 steps x 75 bytes" in capsys.readouterr().out
    picture = IMAGES.sample()
    assert (hr.load(run.path).predict(picture)[0] == run.policy.predict(picture)[0]).all()
    trainer = hr.Trainer("ddpg", look, buffer_size=1000, **settings)
    trainer.iterate()
    assert trainer.algorithm.replay.ring.observation.dtype == torch.uint8


def test_memory_and_images_together():
    algorithm = hr.Trainer(
        "dqn", look_discrete, num_envs=2, num_steps=4, recurrent="gru", rnn_size=8, sequence_length=4, burn_in=2,
        batch_size=8, learning_starts=24, hidden=(8,), total_steps=100,
    )  # fmt: skip
    for _ in range(6):
        metrics = algorithm.iterate().metrics
    assert metrics["loss"] > 0 and algorithm.policy.config()["images"] == "auto"


def pointing(name):
    """The mean reward after training."""
    settings = {
        "num_envs": 16, "num_steps": 4, "learning_starts": 128, "batch_size": 32, "utd_ratio": 0.25,
        "learning_rate": 3e-3, "hidden": (32,), "total_steps": 1200, "gamma": 0.5,
    }  # fmt: skip
    trainer = hr.Trainer(name, look_discrete if name == "dqn" else look, **settings)
    while not trainer.reason_to_stop():
        trainer.iterate()
    return hr.evaluate(trainer.policy, trainer.plan.env, 40).mean


def test_dqn_names_what_it_sees():
    assert pointing("dqn") > 0.9  # by chance 1 / 8


def test_sac_points_at_what_it_sees():
    assert pointing("sac") > -0.4  # by chance -4 / 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["td3", "ddpg"])
def test_they_point_at_what_they_see(name):
    assert pointing(name) > -0.4


@pytest.mark.parametrize("config", [DQNConfig, SACConfig])
def test_an_unknown_network_is_named(config):
    with pytest.raises(ValueError, match="images must be one of auto, nature, impala, small, got 'big'"):
        config(images="big")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "env", "least"), [("dqn", "PixelCatch", 0.9), ("sac", "PixelPendulum", -300)])
def test_worlds_are_mastered_by_looking(tmp_path, name, env, least):
    run = hr.train(name, env, log_folder=str(tmp_path), progress="none")
    assert run.evaluate(100).mean >= least
