"""An actor and critics of all actions of a Discrete space: the policy of discrete SAC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headrace.core import rng
from headrace.core.fused import fused
from headrace.data.rollout import Rollout, flatten
from headrace.data.spaces import Discrete, Space, action_column
from headrace.policies.base import Policy, PolicyOutput, inference_block
from headrace.policies.critics import Critics
from headrace.policies.distributions import Categorical
from headrace.policies.flat_parameters import flatten as flatten_parameters
from headrace.policies.masks import forbid, is_masked, mask_of, or_all, random_choice
from headrace.policies.networks import MLP, Readout, make_encoder, read_out
from headrace.policies.normalization import update_encoder
from headrace.policies.numpy_io import batch_size, needs_padding, pad
from headrace.policies.rnn import make_recurrent, step, width


class DiscreteActorQ(Policy):
    """An actor with a categorical distribution, and `critics` critics with a value for each action.

    Actor and critics share one encoder, which only the critic loss trains, as an ActorQ's.
    hidden: sizes of the actor's hidden layers; critic_hidden: of the critics', None: the same. images, recurrent,
    rnn_size, sequence_length, burn_in: see QNetwork. The seed determines the weights.
    `exploration`, [1], is the probability of a random action in act(); it is not saved, and 0 once loaded.
    Raises TypeError for unsupported spaces, ValueError for an unknown activation.
    """

    num_draws = 2  # whether to explore, and the action
    exploration: Tensor

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        hidden: Sequence[int] = (256, 256),
        activation: str = "relu",
        critics: int = 2,
        normalize_observation: bool = False,
        seed: int = 0,
        images: str = "auto",
        recurrent: str = "none",
        rnn_size: int = 64,
        sequence_length: int = 1,
        burn_in: int = 0,
        critic_hidden: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        self._keep(locals())
        if not isinstance(action_space, Discrete):
            raise TypeError(f"the actor has a logit for each of a Discrete space's actions, got {action_space}")
        action_column(action_space)  # refuses numbers that do not fit into 32 bits, which would wrap around
        self.observation_space, self.action_space = observation_space, action_space
        self.masked = is_masked(observation_space, action_space)
        self.mask_space = observation_space if self.masked else None
        if self.masked and recurrent != "none":
            raise ValueError(f"actors with an action mask are not recurrent here, got recurrent={recurrent!r}")
        self.recurrent, self.sequence_length = recurrent, 1 if recurrent == "none" else sequence_length
        self.start, self.num_actions = int(action_space.start), int(action_space.n)
        self.block = inference_block(observation_space, recurrent)
        generator = rng.generator(seed, rng.Purpose.WEIGHTS)
        encoder = make_encoder(observation_space, normalize_observation, generator, images)
        self.encoder = make_recurrent(encoder, recurrent, rnn_size, burn_in, generator)
        self.state_width = width(self.encoder)
        self.actor = MLP(self.encoder.size, hidden, activation, generator)
        self.actor_out = Readout(self.actor.outputs, self.num_actions, 0.01, generator)
        sizes = hidden if critic_hidden is None else critic_hidden
        self.critics = Critics(critics, self.encoder.size, 0, sizes, activation, generator, self.num_actions)
        self.register_buffer("exploration", torch.zeros(1), persistent=False)
        flatten_parameters(self.actor_parameters())
        flatten_parameters(self.critic_parameters())

    def actor_parameters(self) -> list[nn.Parameter]:
        """Parameters trained by the actor loss."""
        return [*self.actor.parameters(), *self.actor_out.parameters()]

    def critic_parameters(self) -> list[nn.Parameter]:
        """Parameters trained by the critic loss: those of the encoder and the critics."""
        return [*self.encoder.parameters(), *self.critics.parameters()]

    def distribution_of(self, encoded: Tensor, observation: Any) -> Categorical:
        """The distribution over actions for encoded observations [N, F]. Forbidden actions have probability 0."""
        logits = read_out(self.actor_out, self.actor(encoded), self.num_actions, "actor_out")
        if self.masked:
            logits = forbid(logits, or_all(mask_of(self.mask_space, observation)))
        return Categorical(logits, self.start)

    def distribution(self, observation: Any) -> Categorical:
        """The distribution over actions, of observations."""
        return self.distribution_of(self.encoder(observation), observation)

    def values(self, encoded: Tensor) -> Tensor:
        """The value of each action by each critic, [C, A, N], of encoded observations [N, F]."""
        found: Tensor = self.critics(encoded)
        return found.view(len(found), -1, self.num_actions).transpose(1, 2)

    @fused("discrete_actor_q.act", "headrace.bindings.collecting.acting")
    def act(self, observation: Any, rnn_state: Any, random: Tensor | None) -> PolicyOutput:
        rows = batch_size(observation)
        if rnn_state is None and self.recurrent != "none":
            rnn_state = self.initial_state(rows)
        if needs_padding(rows, self.block):
            return self.act(*pad(self.block, observation, rnn_state, random)).first(rows)
        encoded, rnn_state = step(self.encoder, observation, rnn_state)
        found = self.distribution_of(encoded, observation)
        if random is None:
            return PolicyOutput(found.mode(), None, None, rnn_state)
        action = found.sample(random[:, 1:])
        if self.masked:
            explored = random_choice(or_all(mask_of(self.mask_space, observation)), random[:, 1])
        else:
            explored = (random[:, 1] * self.num_actions).long()
        explored = (explored + self.start).to(torch.int32)
        return PolicyOutput(torch.where(random[:, 0] < self.exploration, explored, action), None, None, rnn_state)

    def act_without_exploration(self, observation: Any, rnn_state: Any, random: Tensor | None) -> PolicyOutput:
        if random is not None:
            random = torch.cat((torch.ones_like(random[:, :1]), random[:, 1:]), 1)
        return self.act(observation, rnn_state, random)

    def value(self, observation: Any, rnn_state: Any = None) -> Tensor:
        """The expected value of the actor's actions, [N], without entropy. For each action the lower critic counts."""
        rows = batch_size(observation)
        rnn_state = self.initial_state(rows) if rnn_state is None else rnn_state
        if needs_padding(rows, self.block):
            return self.value(*pad(self.block, observation, rnn_state))[:rows]
        encoded, _ = step(self.encoder, observation, rnn_state)
        return (self.distribution_of(encoded, observation).log_probs.exp() * self.values(encoded).amin(0)).sum(0)

    def update_statistics(self, rollout: Rollout, returns: Tensor) -> None:
        """Update the observations' statistics; returns are not used."""
        valid = rollout.valid[: rollout.num_steps].flatten()
        update_encoder(self.encoder, flatten(rollout.observation[: rollout.num_steps]), valid)
