"""Parts of policies that users replace by modules of their own: plain ones work, others are named in an error."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import gymnasium
import pytest
import torch
from torch import Tensor, nn

import headrace as hr
from headrace.algorithms.a2c import A2C
from headrace.algorithms.dqn import DQN, DQNConfig
from headrace.algorithms.offline.iql import QCritics
from headrace.algorithms.sac import SAC, SACConfig
from headrace.data.rollout import Column, Rollout
from headrace.data.spaces import observation_column
from headrace.policies.normalization import update_encoder
from headrace.policies.own_parts import check_learnable

BOX, TWO = gymnasium.spaces.Box(-1.0, 1.0, (5,)), gymnasium.spaces.Discrete(2)
FORCE = gymnasium.spaces.Box(-1.0, 1.0, (3,))
PLAIN = SimpleNamespace()  # settings of no importance
Change = Callable[[Any], object]


class Wrapped(nn.Module):
    """Module that contains an encoder, and nothing else."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.inner = encoder

    def forward(self, observation: Tensor) -> Tensor:
        return self.inner(observation)  # type: ignore[no-any-return]


class TwoCritics(nn.Module):
    """Critics without a number, or anything else but forward()."""

    def __init__(self, inputs: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(inputs, 1) for _ in range(2))

    def forward(self, encoded: Tensor, action: Tensor) -> Tensor:
        return torch.stack([layer(torch.cat((encoded, action), 1)).squeeze(1) for layer in self.layers])


class Transposed(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs, outputs)

    def forward(self, features: Tensor) -> Tensor:
        return self.layer(features).t()  # type: ignore[no-any-return]


def changed(policy: Any, change: Change) -> Any:
    change(policy)
    return policy


def rollout_of(policy: Any, steps: int = 4, envs: int = 6) -> Rollout:
    seen, valid = observation_column(policy.observation_space), Column(dtype=torch.bool, bootstrap=True)
    rollout = Rollout(steps, envs, {"observation": seen, "valid": valid, **policy.columns()})
    rollout.observation.normal_(3.0, 2.0)
    rollout.valid.fill_(True)
    return rollout


@pytest.mark.parametrize("kind", [hr.ActorCritic, hr.QNetwork, hr.DiscreteActorQ])
def test_an_encoder_without_statistics_is_a_plain_module(kind: type[Any]) -> None:
    policy = kind(BOX, TWO, hidden=(8,), normalize_observation=True)
    policy.encoder = nn.Linear(5, 5)
    check_learnable(policy, "PPO", PLAIN)
    policy.update_statistics(rollout_of(policy), torch.zeros(4, 6))
    assert policy.act(torch.zeros(3, 5), None, None).action.shape == (3,)


def test_an_encoder_of_a_q_network_of_boxes_is_a_plain_module() -> None:
    policy = hr.ActorQ(BOX, FORCE, hidden=(8,))
    policy.encoder, policy.critics = nn.Linear(5, 5), TwoCritics(8)
    SAC(policy, SACConfig(hidden=(8,)))
    policy.update_statistics(rollout_of(policy), torch.zeros(4, 6))
    assert policy.value(torch.zeros(3, 5)).shape == (3,)


def test_the_first_of_a_sequence_is_given_the_observations() -> None:
    policy = hr.ActorCritic(BOX, TWO, hidden=(8,), normalize_observation=True)
    encoder = policy.encoder
    policy.encoder = nn.Sequential(nn.Sequential(encoder, nn.Linear(5, 5)), nn.Tanh())
    rollout = rollout_of(policy)
    policy.update_statistics(rollout, torch.zeros(4, 6))
    torch.testing.assert_close(encoder.normalizer.center, rollout.observation[:4].flatten(0, 1).mean(0))


def test_statistics_that_nothing_would_update_are_an_error() -> None:
    policy = hr.ActorCritic(BOX, TWO, hidden=(8,), normalize_observation=True)
    policy.encoder = Wrapped(policy.encoder)  # type: ignore[assignment]
    with pytest.raises(TypeError, match=r"Wrapped, in which nothing updates.*inner\.normalizer: write its update_stat"):
        A2C(policy)
    with pytest.raises(TypeError, match="nothing updates"):
        update_encoder(policy.encoder, torch.zeros(3, 5), torch.ones(3, dtype=torch.bool))


def test_nothing_is_asked_of_a_policy_that_updates_its_statistics_itself() -> None:
    class Own(hr.ActorCritic):
        def update_statistics(self, rollout: Rollout, returns: Tensor) -> None:
            """Update them otherwise."""

    policy = Own(BOX, TWO, hidden=(8,), normalize_observation=True, normalize_return=True)
    policy.encoder, policy.critic_out = Wrapped(policy.encoder), nn.Sequential(nn.Linear(8, 1))  # type: ignore[assignment]
    check_learnable(policy, "PPO", PLAIN)


@pytest.mark.parametrize("dueling", [False, True])
def test_a_last_layer_is_a_plain_module(dueling: bool) -> None:
    policy = hr.QNetwork(BOX, TWO, hidden=(8,), dueling=dueling)
    policy.out = Transposed(8, 2)  # type: ignore[assignment]
    DQN(policy, DQNConfig(hidden=(8,), dueling=dueling))
    seen = torch.randn(7, 5)
    assert policy(seen).shape == (2, 7)
    if not dueling:
        torch.testing.assert_close(policy(seen), policy.out(policy.trunk(seen)))


def test_a_last_layer_of_quantiles_is_a_plain_module() -> None:
    policy = hr.QNetwork(BOX, TWO, hidden=(8,), quantiles=4)
    layer = nn.Linear(8, 8)
    policy.out = Wrapped(nn.Sequential(layer, nn.Unflatten(1, (2, 4))))  # type: ignore[assignment]
    with pytest.raises(ValueError, match=r"out is a Wrapped that returns \[7, 2, 4\]"):
        policy(torch.zeros(7, 5))
    policy.out.forward = lambda features: layer(features).t().unflatten(0, (2, 4))  # type: ignore[method-assign]
    assert policy(torch.zeros(7, 5)).shape == (2, 7)


@pytest.mark.parametrize(
    ("policy", "part", "outputs"),
    [
        (hr.ActorCritic(BOX, TWO, hidden=(8,)), "actor_out", 2),
        (hr.QNetwork(BOX, TWO, hidden=(8,)), "out", 2),
        (hr.QNetwork(BOX, TWO, hidden=(8,), dueling=True), "value_out", 1),
        (hr.DiscreteActorQ(BOX, TWO, hidden=(8,)), "actor_out", 2),
        (hr.ActorQ(BOX, FORCE, hidden=(8,)), "actor_out", 6),
        (hr.ActorQ(BOX, FORCE, hidden=(8,), deterministic=True), "actor_out", 3),
    ],
    ids=lambda x: type(x).__name__ if isinstance(x, nn.Module) else str(x),
)
def test_a_last_layer_of_another_shape_is_named(policy: Any, part: str, outputs: int) -> None:
    setattr(policy, part, nn.Linear(8, outputs))
    with pytest.raises(ValueError, match=rf"{part} is a Linear that returns \[\d+, {outputs}\] .*transpose it"):
        policy.act(torch.zeros(7, 5), None, None)
    setattr(policy, part, Transposed(8, outputs))
    assert len(policy.act(torch.zeros(7, 5), None, None).action) == 7
    setattr(policy, part, Transposed(8, outputs + 1))
    with pytest.raises(ValueError, match=rf"has to return {outputs} rows, one for each output"):
        policy.act(torch.zeros(7, 5), None, None)


@pytest.mark.parametrize(
    ("policy", "change", "message"),
    [
        (
            hr.ActorCritic(BOX, TWO, hidden=(8,), normalize_return=True),
            lambda p: setattr(p, "critic_out", nn.Sequential(nn.Linear(8, 1))),
            "critic_out of ActorCritic is a Sequential, which has no weight: normalize_return",
        ),
        (
            hr.QNetwork(BOX, TWO, hidden=(8,), noisy=0.5),
            lambda p: setattr(p, "trunk", nn.Linear(5, 8)),
            "trunk of QNetwork is a Linear, and noisy needs a MLP there: leave noisy out",
        ),
        (
            hr.QNetwork(BOX, TWO, hidden=(8,), noisy=0.5),
            lambda p: setattr(p, "out", Transposed(8, 2)),
            "out of QNetwork is a Transposed, and noisy needs a Readout or QuantileReadout",
        ),
        (
            hr.ActorQ(BOX, FORCE, hidden=(8,), recurrent="gru"),
            lambda p: setattr(p, "encoder", nn.Linear(5, 5)),
            "encoder of ActorQ is a Linear, and recurrent='gru' needs a RecurrentEncoder there: replace the encoder wi",
        ),
    ],
)
def test_what_a_part_lacks_is_said_before_the_training(policy: Any, change: Change, message: str) -> None:
    check_learnable(policy, "PPO", PLAIN)
    with pytest.raises(TypeError, match=message):
        check_learnable(changed(policy, change), "PPO", PLAIN)


def test_the_encoder_within_a_recurrent_one_is_a_plain_module() -> None:
    policy = hr.QNetwork(BOX, TWO, hidden=(8,), recurrent="gru", rnn_size=16, sequence_length=4)
    policy.encoder.encoder = nn.Linear(5, 5)
    check_learnable(policy, "DQN", DQNConfig(recurrent="gru", sequence_length=4))
    policy.update_statistics(rollout_of(policy), torch.zeros(4, 6))


def test_sequences_that_the_settings_do_not_draw_are_an_error() -> None:
    policy = hr.QNetwork(BOX, TWO, hidden=(8,), recurrent="gru", rnn_size=16, sequence_length=4)
    with pytest.raises(ValueError, match="prioritized draws single rows"):
        DQN(policy, DQNConfig(prioritized=True))
    with pytest.raises(ValueError, match="has a sequence_length of 4, and the algorithm's is 16"):
        DQN(policy, DQNConfig(recurrent="gru"))


def test_networks_on_features_need_their_number() -> None:
    policy = hr.ActorCritic(BOX, TWO, hidden=(8,))
    policy.encoder = nn.Linear(5, 7)
    with pytest.raises(TypeError, match=r"encoder of ActorCritic is a Linear, which has no size.*set encoder\.size"):
        QCritics(policy, (8,), 0)
    policy.encoder.size = 7  # type: ignore[assignment]
    assert QCritics(policy, (8,), 0)(torch.zeros(3, 5), torch.zeros(3)).shape == (2, 3)
