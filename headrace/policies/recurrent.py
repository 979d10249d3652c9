"""Recurrent actor and critic, for partially observed environments."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headrace.core import rng
from headrace.core.fused import fused
from headrace.data.rollout import Group, Rollout, flatten
from headrace.data.spaces import Space
from headrace.policies.base import Policy, PolicyOutput, inference_block
from headrace.policies.heads import action_head
from headrace.policies.masks import is_masked, mask_of
from headrace.policies.networks import MLP, Readout, initialize_as_torch, make_encoder, read_out
from headrace.policies.normalization import ReturnNormalizer, update_encoder
from headrace.policies.numpy_io import batch_size, needs_padding, pad
from headrace.policies.rnn import RNNCell


class RecurrentActorCritic(Policy):
    """An actor and a critic, each an MLP, a GRU or LSTM, and an output layer; or (shared) two output layers on one.

    recurrent: "gru" or "lstm". rnn_size: size of its hidden state. sequence_length: steps of truncated backpropagation
    through time; must divide the rollout's num_steps. The rest as in ActorCritic.
    Raises TypeError for unsupported spaces, ValueError for unknown names.
    """

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        recurrent: str = "gru",
        rnn_size: int = 64,
        sequence_length: int = 16,
        hidden: Sequence[int] = (64,),
        activation: str = "tanh",
        shared: bool = False,
        distribution: str = "auto",
        normalize_observation: bool = False,
        normalize_return: bool = False,
        seed: int = 0,
        images: str = "auto",
        ortho_init: bool = True,
        state_std: bool = False,
    ) -> None:
        super().__init__()
        self._keep(locals())
        if sequence_length < 1:
            raise ValueError(f"sequence_length must be 1 or more, got {sequence_length}")
        self.observation_space, self.action_space = observation_space, action_space
        self.shared, self.sequence_length, self.recurrent = shared, sequence_length, recurrent
        generator = rng.generator(seed, rng.Purpose.WEIGHTS)
        copies = 1 if shared else 2
        self.encoder = make_encoder(observation_space, normalize_observation, generator, images)
        self.masked = is_masked(observation_space, action_space)
        self.mask_space = observation_space if self.masked else None
        self.head = action_head(action_space, distribution, state_std)
        self.num_draws, self.block = self.head.num_draws, inference_block(observation_space, recurrent)
        trunks = [MLP(self.encoder.size, hidden, activation, generator) for _ in range(copies)]
        self.trunks: Any = nn.ModuleList(trunks)
        self.rnn = RNNCell(recurrent, copies, trunks[0].outputs, rnn_size, generator)
        self.state_width = copies * self.rnn.width
        self.actor_out = Readout(rnn_size, self.head.num_parameters, 0.01, generator)
        self.critic_out = Readout(rnn_size, 1, 1.0, generator)
        self.return_normalizer = ReturnNormalizer() if normalize_return else None
        if not ortho_init:
            initialize_as_torch(self, generator)

    @fused("recurrent_actor_critic.act", "headrace.bindings.collecting.acting")
    def act(self, observation: Any, rnn_state: Any, random: Tensor | None) -> PolicyOutput:
        rows = batch_size(observation)
        rnn_state = self.initial_state(rows) if rnn_state is None else rnn_state
        if needs_padding(rows, self.block):
            return self.act(*pad(self.block, observation, rnn_state, random)).first(rows)
        features, after = self.rnn(self._features(observation), rnn_state)
        distribution, value = self._distribution(features, observation), self._value(features)
        action = distribution.mode() if random is None else distribution.sample(random)
        return PolicyOutput(action, distribution.log_prob(action), value, after)

    def forward(self, inputs: Any) -> tuple[Any, Tensor]:
        """The distribution over actions, and the value [R] in units of return, of rows of inputs()."""
        features = self._rnn_outputs(inputs)
        return self._distribution(features, inputs.observation), self._value(features)

    def distribution(self, inputs: Any) -> Any:
        """The distribution over actions, without the value."""
        return self._distribution(self._rnn_outputs(inputs), inputs.observation)

    def actor_parameters(self) -> list[nn.Parameter]:
        """Parameters of distribution(), including the whole RNN cell; the critic's copy in it has no gradient."""
        parts = (self.encoder, self.head, self.trunks[0], self.rnn, self.actor_out)
        return [p for part in parts for p in part.parameters()]

    def shared_parameters(self) -> list[nn.Parameter]:
        """Parameters of both distribution() and value()."""
        parts = (self.encoder, self.trunks[0], self.rnn) if self.shared else (self.encoder,)
        return [p for part in parts for p in part.parameters()]

    @fused("recurrent_actor_critic.value", "headrace.bindings.collecting.acting")
    def value(self, observation: Any, rnn_state: Any = None) -> Tensor:
        rows = batch_size(observation)
        rnn_state = self.initial_state(rows) if rnn_state is None else rnn_state
        if needs_padding(rows, self.block):
            return self.value(*pad(self.block, observation, rnn_state))[:rows]
        return self._value(self.rnn(self._features(observation), rnn_state)[0])

    def value_scale(self) -> Tensor | float:
        return 1.0 if self.return_normalizer is None else self.return_normalizer.scale

    def _features(self, observation: Any) -> Tensor:
        """Inputs of the RNN cells: [K, R, F]."""
        encoded = self.encoder(observation)
        return torch.stack([trunk(encoded) for trunk in self.trunks])

    def _rnn_outputs(self, inputs: Any) -> Tensor:
        """Outputs of the RNN cells, [K, R, size], of R rows in sequences, each from the state at its start."""
        length = self.sequence_length
        features = self._features(inputs.observation).unflatten(1, (-1, length)).transpose(1, 2)
        rnn_state = inputs.rnn_state.unflatten(0, (-1, length))[:, 0]
        valid = inputs.valid.unflatten(0, (-1, length)).t()
        return self.rnn.sequence(features, rnn_state, valid).transpose(1, 2).flatten(1, 2)

    def _distribution(self, features: Tensor, observation: Any) -> Any:
        """The distribution from the RNN cells' outputs [K, R, size], for R observations."""
        parameters = read_out(self.actor_out, features[0], self.head.num_parameters, "actor_out")
        return self.head(parameters, mask_of(self.mask_space, observation)) if self.masked else self.head(parameters)

    def _value(self, features: Tensor) -> Tensor:
        """The value from the RNN cells' outputs [K, R, size]."""
        value = self.critic_out(features[-1]).flatten()
        return value if self.return_normalizer is None else self.return_normalizer(value)

    def inputs(self, rollout: Rollout) -> Any:
        seen, valid = (column[: rollout.num_steps] for column in (rollout.observation, rollout.valid))
        return self.rows(Group({"observation": seen, "rnn_state": rollout.rnn_state, "valid": valid}))

    def bootstrap_value(self, rollout: Rollout) -> Tensor:
        """Value of the observation after a rollout's last step, [N]. The state is computed from the start of the last
        sequence, as in evaluate_rollout()."""
        start = rollout.num_steps - self.sequence_length
        features = self._features(flatten(rollout.observation[start:])).unflatten(1, (-1, rollout.num_envs))
        outputs = self.rnn.sequence(features, rollout.rnn_state[start], rollout.valid[start:])
        return self._value(outputs[:, -1])

    def update_statistics(self, rollout: Rollout, returns: Tensor) -> None:
        valid = rollout.valid[: rollout.num_steps].flatten()
        update_encoder(self.encoder, flatten(rollout.observation[: rollout.num_steps]), valid)
        if self.return_normalizer is not None:
            self.return_normalizer.update(returns.flatten(), valid, self.critic_out.weight, self.critic_out.bias)
