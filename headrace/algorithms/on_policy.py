"""What algorithms share that learn an ActorCritic from rollouts it has collected itself, each rollout once."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any, ClassVar, Self

import torch
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from torch import Tensor, nn

from headrace.algorithms.adam import Adam
from headrace.core import rng
from headrace.data.rollout import Column, Columns, Rollout, masked_mean
from headrace.data.spaces import Space
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.base import Policy
from headrace.policies.heads import GaussianHead
from headrace.policies.recurrent import RecurrentActorCritic

POLICY_SETTINGS = (
    "hidden",
    "activation",
    "shared",
    "distribution",
    "normalize_observation",
    "normalize_return",
    "layer_norm",
    "images",
)  # fields of a config that go to the ActorCritic under the same name


class OnPolicy:
    """A policy, one optimizer for all of it, and a learning rate that may fall. Subclasses bring update()."""

    name: ClassVar[str]
    # kinds of spaces it acts in
    actions: ClassVar[tuple[type[Space], ...]] = (Discrete, MultiDiscrete, MultiBinary, Box)

    def __init__(self, policy: Policy, config: Any, seed: int = 0) -> None:
        self.policy, self.config, self.seed = policy, config, seed
        self.num_steps: int = config.num_steps
        self.optimizer = Adam(policy.parameters(), config.learning_rate)
        self.iteration = 0

    @classmethod
    def build(
        cls, config: Any, observation_space: Space, action_space: Space, seed: int, device: torch.device | str
    ) -> Self:
        """This algorithm with an ActorCritic on a device. Raises TypeError for spaces it cannot learn on."""
        return cls(actor_critic(config, observation_space, action_space, seed).to(device), config, seed)

    def columns(self) -> dict[str, Column | Columns]:
        """log_prob and value of what was decided; value also of what is seen last; and what the policy needs."""
        return {"log_prob": Column(), "value": Column(bootstrap=True)} | self.policy.columns()

    def warm_up(self, rollout: Rollout) -> None:
        """Learn once from a made-up rollout and forget it."""
        before = self.state_dict()
        self.update(rollout, 0.0)
        self.load_state_dict(before)

    def prepare(self, rollout: Rollout) -> str:
        """Nothing depends on the number of environments."""
        return ""

    def update(self, rollout: Rollout, progress: float) -> dict[str, Tensor]:
        """Learn from a rollout of this policy. progress: share of the training done, 0 .. 1."""
        raise NotImplementedError

    def set_learning_rate(self, progress: float) -> None:
        """Constant, or falling linearly to 0 by the end of the training, as the config says."""
        if self.config.schedule == "linear":
            self.optimizer.learning_rate.fill_(self.config.learning_rate * (1 - progress))

    def permutation(self, rollout: Rollout, epochs: int) -> Tensor:
        """The order of rows in each epoch: int64 [epochs, T * N]. A function of seed and iteration.

        Rows that belong together, as the policy has them, stay so.
        """
        unit, shuffle = self.policy.sequence_length, rng.Purpose.SHUFFLE
        units = rollout.num_steps * rollout.num_envs // unit
        order = rng.permutations(self.seed, shuffle, self.iteration, epochs, units, rollout.device)
        if unit == 1:
            return order
        within = torch.arange(unit, device=rollout.device)
        return (order.unsqueeze(-1) * unit + within).flatten(1)

    def state_dict(self) -> dict[str, Any]:
        """Copies of the policy's tensors and the optimizer's, and the number of updates done."""
        policy = {name: tensor.clone() for name, tensor in self.policy.state_dict().items()}
        return {"policy": policy, "optimizer": self.optimizer.state_dict(), "iteration": self.iteration}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from state_dict(), bit for bit."""
        self.policy.load_state_dict(state["policy"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.iteration = int(state["iteration"])


def actor_critic(config: Any, observation_space: Space, action_space: Space, seed: int) -> Any:
    """The actor and critic that a config asks for: with memory where its `recurrent` is not "none"; actions of a Box
    spread by its `initial_std`."""
    policy = _networks(config, observation_space, action_space, seed)
    if isinstance(policy.head, GaussianHead):
        nn.init.constant_(policy.head.log_std, math.log(getattr(config, "initial_std", 1.0)))
    return policy


def _networks(config: Any, observation_space: Space, action_space: Space, seed: int) -> Any:
    names = {field.name for field in fields(config)}
    settings = {name: getattr(config, name) for name in POLICY_SETTINGS if name in names}
    recurrent = getattr(config, "recurrent", "none")
    if recurrent == "none":
        return ActorCritic(observation_space, action_space, seed=seed, **settings)
    if settings.pop("layer_norm", False):
        raise ValueError("layer_norm is for policies without memory: leave out recurrent, or layer_norm")
    return RecurrentActorCritic(
        observation_space,
        action_space,
        recurrent,
        config.rnn_size,
        config.sequence_length or config.num_steps,
        seed=seed,
        **settings,
    )


def normalized(x: Tensor, valid: Tensor) -> Tensor:
    """Mean 0 and variance 1 over valid rows."""
    centred = x - masked_mean(x, valid)
    return centred / (masked_mean(centred.square(), valid).sqrt() + 1e-8)


def check_ranges(config: Any, *, least_one: tuple[str, ...] = (), above_zero: tuple[str, ...] = ()) -> None:
    """Raise ValueError for a setting out of range: counts of 1 or more, numbers above 0, shares in [0, 1]."""
    for name in least_one:
        if getattr(config, name) < 1:
            raise ValueError(f"{name} must be 1 or more, got {getattr(config, name)}")
    for name in above_zero:
        if not getattr(config, name) > 0:
            raise ValueError(f"{name} must be above 0, got {getattr(config, name)}")
    for name in ("gamma", "gae_lambda"):
        if not 0 <= getattr(config, name, 0) <= 1:
            raise ValueError(f"{name} must lie in [0, 1], got {getattr(config, name)}")
    if getattr(config, "sequence_length", 0) and config.num_steps % config.sequence_length:
        raise ValueError(f"sequence_length is {config.sequence_length}: let it divide num_steps, {config.num_steps}")
    if config.schedule not in ("constant", "linear"):
        raise ValueError(f"schedule must be 'constant' or 'linear', got {config.schedule!r}")
