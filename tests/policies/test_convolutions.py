"""Encoders of images: channels found, sizes, and policies that learn from pixels."""

import dataclasses

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict

from headrace.algorithms.ppo import PPO, PPOConfig
from headrace.algorithms.trpo import TRPO, TRPOConfig
from headrace.data.rollout import Group, Rollout
from headrace.data.spaces import Discrete, action_column, env_columns
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.convolutions import ImageEncoder, channels_first
from headrace.policies.networks import make_encoder


def images(*shape):
    return Box(0, 255, shape, np.uint8)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((84, 84), (True, (1, 84, 84))),
        ((4, 84, 84), (True, (4, 84, 84))),
        ((96, 96, 3), (False, (3, 96, 96))),
        ((2, 42, 42), (True, (2, 42, 42))),
        ((3, 64, 3), (False, (3, 3, 64))),  # in doubt the last
        ((10, 5, 7), (False, (7, 10, 5))),
        ((5, 10, 10), (True, (5, 10, 10))),
    ],
)
def test_channels_are_found(shape, expected):
    assert channels_first(shape) == expected


def test_shapes_that_are_no_images_are_named():
    with pytest.raises(TypeError, match=r"of shape \(2, 3, 4, 5\)"):
        ImageEncoder(images(2, 3, 4, 5), "auto", seeded())
    with pytest.raises(ValueError, match="10 x 5 pixels are too small for 'nature'"):
        ImageEncoder(images(10, 5), "nature", seeded())
    with pytest.raises(ValueError, match="unknown image network 'resnet'"):
        ImageEncoder(images(84, 84), "resnet", seeded())


@pytest.mark.parametrize(
    ("shape", "network", "size"),
    [((84, 84, 4), "auto", 512), ((2, 42, 42), "auto", 512), ((10, 5), "auto", 128), ((64, 64, 3), "impala", 256)],
)
def test_layouts_give_the_same_features(shape, network, size):
    encoder = ImageEncoder(images(*shape), network, seeded())
    pixels = torch.randint(0, 256, (3, *shape), generator=seeded(1), dtype=torch.uint8)
    features = encoder(pixels)
    assert features.shape == (3, size) and features.dtype == torch.float32
    if len(shape) == 3 and not encoder.in_front:
        turned = ImageEncoder(images(shape[2], *shape[:2]), network, seeded())
        torch.testing.assert_close(turned(pixels.permute(0, 3, 1, 2)), features)
    # pixels are seen from 0 to 1
    first = next(p for p in encoder.parameters() if p.dim() == 4)
    assert torch.equal(first, next(p for p in ImageEncoder(images(*shape), network, seeded()).parameters()))
    assert encoder(torch.zeros_like(pixels)).unique(dim=0).shape[0] == 1


def test_a_dict_may_hold_images():
    space = Dict({"picture": images(10, 10), "speed": Box(-1, 1, (2,))})
    encoder = make_encoder(space, True, seeded())
    observation = Group({"picture": torch.zeros(4, 10, 10, dtype=torch.uint8), "speed": torch.ones(4, 2)})
    assert encoder.size == 130 and encoder(observation).shape == (4, 130)


def test_a_policy_of_images_survives_its_config():
    policy = ActorCritic(images(12, 12, 3), Discrete(3), (16,), images="impala", seed=2)
    twin = ActorCritic.from_config(policy.config())
    twin.load_state_dict(policy.state_dict())
    picture = np.full((12, 12, 3), 7, np.uint8)
    assert policy.predict(picture)[0] == twin.predict(picture)[0]
    assert {id(p) for p in policy.shared_parameters()} == {id(p) for p in policy.encoder.parameters()}


@pytest.mark.parametrize("recurrent", ["none", "gru"])
@pytest.mark.parametrize(("kind", "config"), [(PPO, PPOConfig(epochs=1)), (TRPO, TRPOConfig(critic_epochs=1))])
def test_convolutions_learn_and_only_the_actors_step_moves_trpos(kind, config, recurrent):
    config = dataclasses.replace(config, num_steps=4, hidden=(8,), minibatch_size=16, recurrent=recurrent)
    algorithm = kind.build(config, images(8, 8), Discrete(2), 0, "cpu")
    rollout = Rollout(4, 6, env_columns(images(8, 8)) | {"action": action_column(Discrete(2))} | algorithm.columns())
    rollout.observation.random_(0, 255, generator=seeded())
    rollout.valid.fill_(True)
    rollout.reward.normal_(generator=seeded())
    before = [p.detach().clone() for p in algorithm.policy.encoder.parameters()]
    algorithm.update(rollout, 0.0)
    after = list(algorithm.policy.encoder.parameters())
    assert any(not torch.equal(a, b) for a, b in zip(before, after, strict=True))
    if kind is TRPO:
        # no advantage anywhere, yet a critic that is wrong
        rollout.reward.zero_()
        rollout.value.zero_()
        algorithm.policy.critic_out.bias.data += 1.0
        before = [p.detach().clone() for p in after]
        assert algorithm.update(rollout, 0.0)["value_loss"] > 0.1
        assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
