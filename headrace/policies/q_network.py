"""QNetwork: the value of each action, and epsilon-greedy actions. The policy of DQN, QR-DQN, C51 and PQN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from headrace.core import rng
from headrace.core.fused import fused
from headrace.data.rollout import Rollout, flatten, tree_map
from headrace.data.spaces import Discrete, Space, action_column
from headrace.policies.base import Policy, PolicyOutput, inference_block
from headrace.policies.flat_parameters import flatten as flatten_parameters
from headrace.policies.masks import best_value, is_masked, mask_of, random_choice
from headrace.policies.networks import (
    MLP,
    Dense,
    QuantileReadout,
    Readout,
    WeightNoise,
    initialize_as_torch,
    make_encoder,
    noisy_mlp,
    noisy_readout,
    read_out,
)
from headrace.policies.normalization import update_encoder
from headrace.policies.numpy_io import batch_size, needs_padding, pad
from headrace.policies.rnn import make_recurrent, step, width


class QNetwork(Policy):
    """An MLP that computes the values of all actions, and acts epsilon-greedily.

    hidden: sizes of the hidden layers. activation, layer_norm: see networks.MLP. dueling: two last
    hidden layers, one for the value of the state and one for the advantages of the actions, minus their mean (Wang et
    al. 2016, arXiv:1511.06581, eq. 9). normalize_observation: see normalization.py. images: see
    convolutions.ImageEncoder. recurrent: "gru" or "lstm", an RNN cell of rnn_size before the layers, which learns from
    sequences of sequence_length steps after burn_in steps: see rnn.RecurrentEncoder. quantiles: number of quantiles of
    the return of each action, whose mean is its value; 1 for the value alone. support: the lowest and the highest
    return. The `quantiles` outputs of an action are then logits for the probabilities of evenly spaced returns (atoms)
    from one to the other. noisy: initial standard deviation of the weights' noise, times the root of a layer's inputs,
    see WeightNoise; 0 for none. With noise, means and biases begin as torch.nn.Linear's. The seed determines the
    weights. `exploration`, [1] or [N], is the probability of a random action in act(); it is not saved, and 0 once
    loaded. Raises TypeError for unsupported spaces, ValueError for an unknown activation.
    """

    num_draws = 2  # whether to explore, and the random action; then those of the weights' noise
    samples = False
    exploration: Tensor

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        hidden: Sequence[int] = (64, 64),
        activation: str = "relu",
        layer_norm: bool = False,
        dueling: bool = False,
        normalize_observation: bool = False,
        seed: int = 0,
        images: str = "auto",
        recurrent: str = "none",
        rnn_size: int = 64,
        sequence_length: int = 1,
        burn_in: int = 0,
        quantiles: int = 1,
        support: Sequence[float] | None = None,
        noisy: float = 0.0,
    ) -> None:
        super().__init__()
        self._keep(locals())
        if not isinstance(action_space, Discrete):
            raise TypeError(f"a Q-network has one output for each of a Discrete space's actions, got {action_space}")
        action_column(action_space)  # refuses numbers that do not fit into 32 bits, which would wrap around
        self.observation_space, self.action_space = observation_space, action_space
        self.masked = is_masked(observation_space, action_space)
        self.mask_space = observation_space if self.masked else None
        if self.masked and recurrent != "none":
            raise ValueError(
                f"Q-networks with an action mask are not recurrent, got recurrent={recurrent!r}: leave it out"
            )
        self.hidden, self.activation, self.layer_norm = tuple(hidden), activation, layer_norm
        self.dueling, self.normalize_observation = dueling, normalize_observation
        self.recurrent, self.sequence_length = recurrent, 1 if recurrent == "none" else sequence_length
        self.start, self.num_actions = int(action_space.start), int(action_space.n)
        self.block = inference_block(observation_space, recurrent)
        generator = rng.generator(seed, rng.Purpose.WEIGHTS)
        encoder = make_encoder(observation_space, normalize_observation, generator, images)
        self.encoder = make_recurrent(encoder, recurrent, rnn_size, burn_in, generator)
        self.state_width = width(self.encoder)
        shared = self.hidden[:-1] if dueling else self.hidden

        def mlp(inputs: int, sizes: Sequence[int]) -> MLP:
            return MLP(inputs, sizes, activation, generator, layer_norm)

        self.trunk = mlp(self.encoder.size, shared)
        self.branch = mlp(self.trunk.outputs, self.hidden[-1:]) if dueling else None
        self.value_branch = mlp(self.trunk.outputs, self.hidden[-1:]) if dueling else None
        features = self.trunk.outputs if self.branch is None else self.branch.outputs
        self.quantiles = quantiles

        def readout(outputs: int) -> Readout | QuantileReadout:
            if quantiles == 1:
                return Readout(features, outputs, 1.0, generator)
            return QuantileReadout(features, outputs, quantiles, 1.0, generator)

        self.out = readout(self.num_actions)
        self.value_out = readout(1) if dueling else None
        atoms = None if support is None else torch.linspace(support[0], support[1], quantiles).unsqueeze(1)
        self.register_buffer("atoms", atoms, persistent=False)
        self.noise = self._noise(noisy, generator) if noisy else None
        self.register_buffer("exploration", torch.zeros(1), persistent=False)
        flatten_parameters(self.parameters())  # kernels serve parameters in one buffer

    def _noise(self, scale: float, generator: torch.Generator) -> WeightNoise:
        """Make the noise of the layers, in their order, and set the initial weights of their means."""
        parts = (self.trunk, self.value_branch, self.value_out, self.branch, self.out)
        layers = [layer for part in parts if part is not None for layer in part.modules() if isinstance(layer, Dense)]
        for layer in layers:
            initialize_as_torch(layer, generator)
        noise = WeightNoise(layers, scale)
        self.num_draws += noise.num_draws
        return noise

    def forward(self, observation: Any, random: Tensor | None = None) -> Tensor:
        """The value of each action, [A, N], in units of return. observation: histories for a recurrent policy. random:
        uniform draws [N, noise.num_draws] for noisy weights; None: their means."""
        return self.values(self.encoder(observation), *given(random))

    def values(self, features: Tensor, random: Tensor | None = None) -> Tensor:
        """The value of each action, [A, N], of encoded observations [N, F]. random: see forward()."""
        found = self.outputs(features, *given(random))
        if self.atoms is not None:
            return (found.softmax(1) * self.atoms).sum(1)
        return found if self.quantiles == 1 else found.mean(1)

    def outputs(self, features: Tensor, random: Tensor | None = None) -> Tensor:
        """The outputs from which values() are computed, for encoded observations [N, F]: quantiles of each action's
        return, or logits of its atoms, [A, quantiles, N]; with one quantile the values [A, N] themselves. random: see
        forward()."""
        drawn = None if self.noise is None or random is None else self.noise.draw(random)

        def hidden(mlp: MLP, features: Tensor) -> Tensor:
            return mlp(features) if drawn is None else noisy_mlp(mlp, features, drawn)

        def read(name: str, features: Tensor) -> Tensor:
            out: Any = getattr(self, name)
            if drawn is None and not isinstance(out, QuantileReadout):
                outputs = self.num_actions if name == "out" else 1
                return read_out(out, features, outputs, name)
            last = out.of_all if isinstance(out, QuantileReadout) else out
            found = last(features) if drawn is None else noisy_readout(last, features, drawn)
            return found if last is out else found.unflatten(0, (-1, self.quantiles))

        features = hidden(self.trunk, features)
        if self.branch is None or self.value_branch is None or self.value_out is None:
            return read("out", features)
        value = read("value_out", hidden(self.value_branch, features))
        advantage = read("out", hidden(self.branch, features))
        return value + advantage - advantage.mean(0)

    def noise_draws(self, number: int) -> int:
        """Number of uniform draws of a row for `number` independent noises; 0 for a network without noise."""
        return 0 if self.noise is None else number * self.noise.num_draws

    def noise_of(self, random: Tensor | None, number: int) -> tuple[Tensor, ...]:
        """The draws of one of several independent noises, [N, noise.num_draws], from the draws of all [N, ...]; empty
        for a network without noise, whose methods may take none."""
        if self.noise is None or random is None:
            return ()
        width = self.noise.num_draws
        return (random[:, number * width : (number + 1) * width],)

    def best(self, values: Tensor, observation: Any) -> tuple[Tensor, Tensor]:
        """The largest of the values [A, N] of allowed actions, [N], and its action counted from 0, int64 [N]."""
        if not self.masked:
            return values.max(0)  # type: ignore[return-value]
        return best_value(values, mask_of(self.mask_space, observation))

    def action_value(self, observation: Any, action: Tensor, random: Tensor | None = None) -> Tensor:
        """The value of given actions, [N]. random: see forward()."""
        return self(observation, *given(random)).gather(0, (action - self.start).long().unsqueeze(0)).squeeze(0)

    @fused("q_network.act", "headrace.bindings.collecting.acting")
    def act(self, observation: Any, rnn_state: Any, random: Tensor | None) -> PolicyOutput:
        """The best action and its value; with `random`, a random action with probability `exploration`."""
        apart = len(self.exploration) not in (1, batch_size(observation))
        return self.explored(observation, rnn_state, random, self.exploration.mean() if apart else self.exploration)

    def explored(self, observation: Any, rnn_state: Any, random: Tensor | None, exploration: Tensor) -> PolicyOutput:
        """act() with this probability of a random action, or one for each row."""
        rows = batch_size(observation)
        if rnn_state is None:
            rnn_state = self.initial_state(rows)
        drawn = [*self.noise_of(None if random is None else random[:, 2:], 0)]
        padded = needs_padding(rows, self.block)
        if padded:
            observation, rnn_state, *drawn = pad(self.block, observation, rnn_state, *drawn)
        features, rnn_state = step(self.encoder, observation, rnn_state)
        value, action = self.best(self.values(features, *drawn), observation)
        if padded:
            value, action, rnn_state = (tree_map(lambda x: x[:rows], part) for part in (value, action, rnn_state))
        if random is not None:
            if self.masked:
                explored = random_choice(mask_of(self.mask_space, observation)[:, :rows], random[:, 1])
            else:
                explored = (random[:, 1] * self.num_actions).long()
            action = torch.where(random[:, 0] < exploration, explored, action)
        return PolicyOutput((action + self.start).to(torch.int32), None, value, rnn_state)

    def value(self, observation: Any, rnn_state: Any = None) -> Tensor:
        """Value of the best action, [N], in units of return."""
        return self.act(observation, rnn_state, None).value

    def update_statistics(self, rollout: Rollout, returns: Tensor) -> None:
        if self.normalize_observation:
            valid = rollout.valid[: rollout.num_steps].flatten()
            update_encoder(self.encoder, flatten(rollout.observation[: rollout.num_steps]), valid)


def given(random: Tensor | None) -> tuple[Tensor, ...]:
    """Draws as arguments of a method: none without draws, since a subclass's method may take only the observation."""
    return () if random is None else (random,)
