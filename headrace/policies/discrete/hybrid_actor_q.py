"""An actor and critics of actions with a choice and a vector: the policy of hybrid SAC."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import torch
from torch import Tensor, nn

from headrace.core import rng
from headrace.core.fused import fused
from headrace.data.flat_action import FlatAction, is_hybrid, whole
from headrace.data.rollout import Rollout, flatten
from headrace.data.spaces import Box, Discrete, Space, action_column
from headrace.policies.actor_q import action_bounds
from headrace.policies.base import Policy, PolicyOutput, inference_block
from headrace.policies.critics import Critics
from headrace.policies.distributions import Categorical, box_muller, sample_squashed
from headrace.policies.flat_parameters import flatten as flatten_parameters
from headrace.policies.masks import forbid, is_masked, mask_of, or_all, random_choice
from headrace.policies.networks import MLP, Readout, make_encoder, read_out
from headrace.policies.normalization import update_encoder
from headrace.policies.numpy_io import batch_size, needs_padding, pad
from headrace.policies.rnn import make_recurrent, step, width


class HybridActorQ(Policy):
    """An actor of a choice d and a vector x, and `critics` critics Q(observation, x) with an output for each choice.

    Actions are a Dict or Tuple of one Discrete space, D choices, and Boxes with bounds, K entries together. The choice
    is categorical; x is tanh of a normal whose mean and deviation the actor outputs for each choice: Delalleau et al.
    2019, arXiv:1912.11077. Networks use vectors in which -1 and 1 are the bounds.
    Actor and critics share one encoder, which only the critic loss trains, as an ActorQ's. Other arguments: see
    DiscreteActorQ. Where the buffer `random` is 1, explored actions are uniform; it is not saved, and 0 once loaded.
    Raises TypeError for unsupported spaces, ValueError for an unknown activation.
    """

    random: Tensor  # [1]: 0 or 1
    center: Tensor  # [K]
    half_range: Tensor  # [K]

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
        choice, self.place, (center, half_range) = _parts(action_space)
        self.observation_space, self.action_space = observation_space, action_space
        self.masked = is_masked(observation_space, action_space)
        self.mask_space = observation_space if self.masked else None
        if self.masked and recurrent != "none":
            raise ValueError(f"actors with an action mask are not recurrent here, got recurrent={recurrent!r}")
        self.recurrent, self.sequence_length = recurrent, 1 if recurrent == "none" else sequence_length
        self.start, self.num_actions, self.action_size = int(choice.start), int(choice.n), len(center)
        self.normal_draws = self.action_size + self.action_size % 2
        self.num_draws = 1 + self.normal_draws
        self.block = inference_block(observation_space, recurrent)
        generator = rng.generator(seed, rng.Purpose.WEIGHTS)
        encoder = make_encoder(observation_space, normalize_observation, generator, images)
        self.encoder = make_recurrent(encoder, recurrent, rnn_size, burn_in, generator)
        self.state_width = width(self.encoder)
        self.actor = MLP(self.encoder.size, hidden, activation, generator)
        outputs = self.num_actions * (1 + 2 * self.action_size)
        self.actor_out = Readout(self.actor.outputs, outputs, 0.01, generator)
        sizes, given = hidden if critic_hidden is None else critic_hidden, (self.encoder.size, self.action_size)
        self.critics = Critics(critics, *given, sizes, activation, generator, self.num_actions)
        self.register_buffer("center", center, persistent=False)
        self.register_buffer("half_range", half_range, persistent=False)
        self.register_buffer("random", torch.zeros(1), persistent=False)
        flatten_parameters(self.actor_parameters())
        flatten_parameters(self.critic_parameters())

    def actor_parameters(self) -> list[nn.Parameter]:
        """Parameters trained by the actor loss."""
        return [*self.actor.parameters(), *self.actor_out.parameters()]

    def critic_parameters(self) -> list[nn.Parameter]:
        """Parameters trained by the critic loss: those of the encoder and the critics."""
        return [*self.encoder.parameters(), *self.critics.parameters()]

    def actor_output(self, encoded: Tensor, observation: Any) -> tuple[Categorical, Tensor]:
        """The distribution over choices, and means and log deviations of each choice [D, 2 K, N], of encoded
        observations [N, F]. The probability of forbidden choices is 0."""
        size = self.num_actions * (1 + 2 * self.action_size)
        output = read_out(self.actor_out, self.actor(encoded), size, "actor_out")
        logits = output[: self.num_actions]
        if self.masked:
            logits = forbid(logits, or_all(mask_of(self.mask_space, observation)))
        normals = output[self.num_actions :]
        return Categorical(logits), normals.view(self.num_actions, 2 * self.action_size, -1)

    def sample(self, encoded: Tensor, observation: Any, random: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
        """Log-probabilities of all choices [D, N], a normalised vector [N, K] for each, and their log-densities [D, N].
        Differentiable in the actor by reparameterisation.

        random: uniform draws [N, normal_draws]. All choices share them, which does not bias the sums over choices."""
        choices, normals = self.actor_output(encoded, observation)
        normal = box_muller(random.t(), self.action_size)
        found = [sample_squashed(of_choice, normal) for of_choice in normals]
        return choices.log_probs, [x.t() for x, _ in found], torch.stack([density for _, density in found])

    def values(self, encoded: Tensor, vectors: list[Tensor]) -> Tensor:
        """The value of each choice with its own vector by each critic, [C, D, N]. vectors: D normalised ones [N, K]."""
        own = [self.all_values(encoded, x)[:, :, d] for d, x in enumerate(vectors)]
        return torch.stack(own, 1)

    def all_values(self, encoded: Tensor, vector: Tensor) -> Tensor:
        """The values of all choices with one normalised vector [N, K], [C, N, D]."""
        found: Tensor = self.critics(encoded, vector)
        return found.view(len(found), -1, self.num_actions)

    def split_action(self, action: Tensor) -> tuple[Tensor, Tensor]:
        """Choices int64 [B], counted from 0, and normalised vectors [B, K], clipped to the bounds, of actions
        [B, 1 + K]."""
        choice = action[:, self.place].long() - self.start
        vector = _side_by_side(action[:, : self.place], action[:, self.place + 1 :])
        return choice, ((vector - self.center) / self.half_range).clamp(-1, 1)

    def _joined(self, choice: Tensor, vector: Tensor) -> Tensor:
        """Actions [N, 1 + K] of choices [N] and normalised vectors [N, K]."""
        found = torch.addcmul(self.center, vector, self.half_range)
        number = (choice + self.start).unsqueeze(1).float()
        return _side_by_side(found[:, : self.place], number, found[:, self.place :])

    @fused("hybrid_actor_q.act", "headrace.bindings.collecting.acting")
    def act(self, observation: Any, rnn_state: Any, random: Tensor | None) -> PolicyOutput:
        rows = batch_size(observation)
        if rnn_state is None and self.recurrent != "none":
            rnn_state = self.initial_state(rows)
        if needs_padding(rows, self.block):
            return self.act(*pad(self.block, observation, rnn_state, random)).first(rows)
        encoded, rnn_state = step(self.encoder, observation, rnn_state)
        choices, normals = self.actor_output(encoded, observation)
        choice = (choices.mode() if random is None else choices.sample(random)).long()
        own = normals.gather(0, choice.expand(1, normals.shape[1], -1)).squeeze(0)
        if random is None:
            return PolicyOutput(self._joined(choice, own[: self.action_size].tanh().t()), None, None, rnn_state)
        vector, _ = sample_squashed(own, box_muller(random[:, 1:].t(), self.action_size))
        action = torch.where(self.random > 0, self._explored(observation, random), self._joined(choice, vector.t()))
        return PolicyOutput(action, None, None, rnn_state)

    def _explored(self, observation: Any, random: Tensor) -> Tensor:
        """Actions [N, 1 + K] that are uniform among allowed choices and in the Boxes."""
        if self.masked:
            choice = random_choice(or_all(mask_of(self.mask_space, observation)), random[:, 0])
        else:
            choice = (random[:, 0] * self.num_actions).long()
        return self._joined(choice, random[:, 1 : 1 + self.action_size] * 2 - 1)

    def act_without_exploration(self, observation: Any, rnn_state: Any, random: Tensor | None) -> PolicyOutput:
        if random is None or not bool(self.random):
            return super().act_without_exploration(observation, rnn_state, random)
        sampling = copy(self)  # on the same tensors but for one: a training may go on meanwhile
        sampling._buffers = {**self._buffers, "random": torch.zeros_like(self.random)}
        return sampling.act(observation, rnn_state, random)

    def value(self, observation: Any, rnn_state: Any = None) -> Tensor:
        """The expected value over the choices, each with its mean vector, [N], without entropy. For each choice the
        lower critic counts."""
        rows = batch_size(observation)
        rnn_state = self.initial_state(rows) if rnn_state is None else rnn_state
        if needs_padding(rows, self.block):
            return self.value(*pad(self.block, observation, rnn_state))[:rows]
        encoded, _ = step(self.encoder, observation, rnn_state)
        choices, normals = self.actor_output(encoded, observation)
        vectors = [of_choice[: self.action_size].tanh().t() for of_choice in normals]
        return (choices.log_probs.exp() * self.values(encoded, vectors).amin(0)).sum(0)

    def update_statistics(self, rollout: Rollout, returns: Tensor) -> None:
        """Update the observations' statistics; returns are not used."""
        valid = rollout.valid[: rollout.num_steps].flatten()
        update_encoder(self.encoder, flatten(rollout.observation[: rollout.num_steps]), valid)


def _side_by_side(*columns: Tensor) -> Tensor:
    """Concatenate columns [N, k], without empty ones, which programs do not support."""
    return torch.cat([x for x in columns if x.shape[1]], 1)


def _parts(space: Space) -> tuple[Discrete, int, tuple[Tensor, Tensor]]:
    """The Discrete part of a FlatAction, its position in the whole vector, and center and half range of the other
    entries. Raises TypeError for other spaces."""
    if not (isinstance(space, FlatAction) and is_hybrid(space)):
        raise TypeError(
            "actions must be a Dict or Tuple of one Discrete space and Boxes, got "
            f"{whole(space)}: use ppo for other ones"
        )
    action_column(space)  # refuses numbers that float32 does not hold
    (choice,) = (part for part in space.parts if isinstance(part.flat, Discrete))
    boxes = [part.flat for part in space.parts if isinstance(part.flat, Box)]
    center, half_range = zip(*map(action_bounds, boxes), strict=True)
    return choice.flat, choice.entries.start, (torch.cat(center), torch.cat(half_range))  # type: ignore[return-value]
