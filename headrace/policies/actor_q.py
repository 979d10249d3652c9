"""An actor and critics Q(observation, action): the policy of DDPG, TD3 (deterministic), SAC, TQC and CrossQ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headrace.core import rng
from headrace.core.fused import fused
from headrace.data.rollout import Rollout, flatten
from headrace.data.spaces import FARTHEST, Box, Space, bounds
from headrace.policies.base import Policy, PolicyOutput, inference_block
from headrace.policies.critics import Critics, NormalizedCritics, RenormCritics
from headrace.policies.distributions import Tanh, box_muller, sample_squashed
from headrace.policies.flat_parameters import flatten as flatten_parameters
from headrace.policies.heads import SDE_STATE, NoiseMatrix, noise
from headrace.policies.masks import is_masked
from headrace.policies.networks import MLP, NORMS, Readout, RenormMLP, make_encoder, read_out
from headrace.policies.normalization import update_encoder
from headrace.policies.numpy_io import batch_size, needs_padding, pad
from headrace.policies.rnn import make_recurrent, step, width


class ActorQ(Policy):
    """An actor and `critics` critics, each with its own MLP. Actions are within the bounds of a Box.

    Actor and critics share one encoder. Only the critic loss trains its weights (convolutions of images, an RNN cell):
    Yarats et al. 2021, arXiv:1910.01741, section 4.3.
    images: see convolutions.ImageEncoder. recurrent, rnn_size, sequence_length, burn_in: see QNetwork.
    Networks use normalised actions: -1 and 1 are the bounds. deterministic: action = tanh(actor), plus normal noise of
    standard deviation `exploration` while exploring; otherwise tanh of a normal whose mean and standard deviation the
    actor outputs. Where the buffer `random` is 1, explored actions are uniform in the Box. Algorithms write both.
    noise_autocorrelation: correlation of an environment's noise between consecutive steps, so that exploration is
    correlated in time (Lillicrap et al. 2016, arXiv:1509.02971, section 3).
    The last noise is part of the recurrent state. exploration_per_episode: the standard deviation of an environment's
    noise is drawn between `exploration` and the buffer `exploration_max` at the beginning of an episode (Seo et al.
    2025, arXiv:2505.22642, section 3). Its position between the two is part of the recurrent state.
    critic_init_scale: factor of the critics' initial weights. initial_std: initial standard deviation of a stochastic
    actor, before tanh; None for 1. use_sde, sde_sample_freq, use_expln: see heads.py; initial_std is then the deviation
    of the noise matrix.
    critic_hidden: sizes of the critics' hidden layers; None: the actor's. quantiles: outputs of a critic, see Critics.
    support: the lowest and the highest return. The outputs of a critic are then logits for the probabilities of evenly
    spaced returns (atoms) from one to the other. norm: "layer" or "rms" normalisation before each activation.
    batch_renorm: None, or the number of initial batches with plain batch normalisation: see normalization.BatchRenorm.
    Weights are a function of the seed, as ActorCritic's.
    Raises TypeError for unsupported spaces, ValueError for unknown names.
    """

    exploration: Tensor  # [1]
    exploration_max: Tensor | None  # [1]
    atoms: Tensor | None  # [quantiles]
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
        deterministic: bool = False,
        normalize_observation: bool = False,
        noise_autocorrelation: float = 0.0,
        seed: int = 0,
        images: str = "auto",
        recurrent: str = "none",
        rnn_size: int = 64,
        sequence_length: int = 1,
        burn_in: int = 0,
        quantiles: int = 1,
        critic_hidden: Sequence[int] | None = None,
        batch_renorm: int | None = None,
        critic_init_scale: float = 1.0,
        initial_std: float | None = None,
        use_sde: bool = False,
        sde_sample_freq: int = 1,
        use_expln: bool = False,
        norm: str = "none",
        support: Sequence[float] | None = None,
        exploration_per_episode: bool = False,
    ) -> None:
        super().__init__()
        self._keep(locals())
        self.observation_space, self.action_space = observation_space, action_space
        is_masked(observation_space, action_space)  # which it refuses for such actions
        self.hidden, self.activation, self.deterministic = tuple(hidden), activation, deterministic
        self.samples = not deterministic
        self.noise_autocorrelation, self.recurrent, self.quantiles = noise_autocorrelation, recurrent, quantiles
        self.sequence_length = 1 if recurrent == "none" else sequence_length
        self.block = inference_block(observation_space, recurrent)
        center, half_range = action_bounds(action_space)
        self.action_size = len(center)
        self.num_draws = self.action_size + self.action_size % 2 + 2 * exploration_per_episode
        generator = rng.generator(seed, rng.Purpose.WEIGHTS)
        encoder = make_encoder(observation_space, normalize_observation, generator, images)
        self.encoder = make_recurrent(encoder, recurrent, rnn_size, burn_in, generator)
        self.use_sde = use_sde
        if use_sde and (deterministic or noise_autocorrelation):
            other = "deterministic=True" if deterministic else f"noise_autocorrelation={noise_autocorrelation}"
            raise ValueError(f"use_sde does not go with {other}: leave one of them out")
        if exploration_per_episode and not deterministic:
            raise ValueError("exploration_per_episode is for deterministic=True: a stochastic actor learns its noise")
        noise_width = SDE_STATE if use_sde else self.action_size * (noise_autocorrelation > 0) + exploration_per_episode
        self.state_width = width(self.encoder) + noise_width
        sizes, of_critics = (self.encoder.size, self.action_size), hidden if critic_hidden is None else critic_hidden
        self.actor = _actor(sizes[0], hidden, activation, generator, batch_renorm, norm)
        outputs = self.action_size * (1 if deterministic or use_sde else 2)
        self.actor_out = Readout(self.actor.outputs, outputs, 0.01, generator)
        of_noise = (self.actor.outputs, self.action_size, sde_sample_freq, use_expln)
        self.noise_matrix = NoiseMatrix(*of_noise) if use_sde else None
        if not deterministic:
            log_std = (
                self.actor_out.bias[self.action_size :] if self.noise_matrix is None else self.noise_matrix.log_std
            )
            nn.init.constant_(log_std, math.log(initial_std or 1.0))
        self.critics = _critics((critics, *sizes), of_critics, activation, generator, quantiles, batch_renorm, norm)
        self.support = None if support is None else (float(support[0]), float(support[1]))
        atoms = None if self.support is None else torch.linspace(self.support[0], self.support[1], quantiles)
        self.register_buffer("atoms", atoms, persistent=False)
        with torch.no_grad():
            for weight in self.critics.weights:
                weight.mul_(critic_init_scale)
        self.register_buffer("center", center, persistent=False)
        self.register_buffer("half_range", half_range, persistent=False)
        self.register_buffer("exploration", torch.zeros(1))
        self.register_buffer("exploration_max", torch.zeros(1) if exploration_per_episode else None)
        self.register_buffer("random", torch.zeros(1))
        flatten_parameters(self.actor_parameters())  # kernels serve parameters in one buffer

    def actor_parameters(self) -> list[nn.Parameter]:
        """Parameters trained by the actor loss."""
        of_noise = () if self.noise_matrix is None else self.noise_matrix.parameters()
        return [*self.actor.parameters(), *self.actor_out.parameters(), *of_noise]

    def critic_parameters(self) -> list[nn.Parameter]:
        """Parameters trained by the critic loss: those of the encoder and the critics."""
        return [*self.encoder.parameters(), *self.critics.parameters()]

    def set_exploration(self, deviation: float, highest: float) -> None:
        """Let a deterministic actor explore with this standard deviation, or one between it and `highest`, if that is
        larger. Raises ValueError for `highest` and an actor without exploration_per_episode."""
        self.exploration.fill_(deviation)
        if self.exploration_max is not None:
            self.exploration_max.fill_(max(deviation, highest))
        elif highest > deviation:
            raise ValueError(
                f"exploration_max is {highest}, and this policy has no noise for each episode: make it with "
                "exploration_per_episode=True"
            )

    def actor_output(self, encoded: Tensor, weight: Tensor | None = None) -> Tensor:
        """The actor's output for encoded observations [B, F]: [K, B], or [2 K, B] for a stochastic actor. weight: the
        rows' weights, for learning from them with batch renormalisation."""
        features = self.actor(encoded) if weight is None else self.actor(encoded, weight)
        outputs = self.action_size * (1 if self.deterministic or self.use_sde else 2)
        output = read_out(self.actor_out, features, outputs, "actor_out")
        return output if self.noise_matrix is None else self.noise_matrix(output, features)  # type: ignore[no-any-return]

    def sample(self, encoded: Tensor, random: Tensor) -> tuple[Tensor, Tensor]:
        """Normalised actions [B, K] of a stochastic actor, from uniform draws `random` [B, num_draws], and their
        log-density [B]. Differentiable in the actor by reparameterisation: Haarnoja et al. 2018, appendix C."""
        action, log_prob = sample_squashed(self.actor_output(encoded), self._normal(random))
        return action.t(), log_prob

    def _normal(self, random: Tensor) -> Tensor:
        """Standard normals [K, B] from uniform draws [B, num_draws], whose last two may be for the noise's
        deviation."""
        return box_muller(random[:, : self.action_size + self.action_size % 2].t(), self.action_size)

    def best_action(self, encoded: Tensor, invert_gradients: bool = False) -> Tensor:
        """Normalised actions [B, K] without noise. Differentiable in the actor. invert_gradients: see InvertedTanh."""
        output = self.actor_output(encoded)[: self.action_size]
        action: Tensor = (InvertedTanh if invert_gradients else Tanh).apply(output)  # type: ignore[no-untyped-call]
        return action.t()

    def critic_values(self, encoded: Tensor, action: Tensor) -> Tensor:
        """The value of each critic, [C, B], for encoded observations and normalised actions. It is the mean of
        quantiles, or the mean of atoms under the critic's probabilities."""
        found: Tensor = self.critics(encoded, action)
        if self.atoms is not None:
            return (found.softmax(2) * self.atoms).sum(2)
        return found if self.quantiles == 1 else found.mean(2)

    def normalize_action(self, action: Tensor) -> Tensor:
        """Actions [B, K] in the space's units, clipped to the bounds and scaled to [-1, 1]."""
        return ((action - self.center) / self.half_range).clamp(-1, 1)

    @fused("actor_q.act", "headrace.bindings.collecting.acting")
    def act(self, observation: Any, rnn_state: Any, random: Tensor | None) -> PolicyOutput:
        rows = batch_size(observation)
        if rnn_state is None and self.recurrent != "none":
            rnn_state = self.initial_state(rows)
        if needs_padding(rows, self.block):
            return self.act(*pad(self.block, observation, rnn_state, random)).first(rows)
        encoded, encoder_state = step(self.encoder, observation, rnn_state)
        if random is None:
            action = self.best_action(encoded)
        else:
            action, rnn_state = self._explore(encoded, rnn_state, random)
        action = torch.addcmul(self.center, action, self.half_range)
        if encoder_state is not None and rnn_state is not None:
            rnn_state = torch.cat((encoder_state, rnn_state[:, self.encoder.width :]), 1)
        return PolicyOutput(action, None, None, rnn_state)

    def act_without_exploration(self, observation: Any, rnn_state: Any, random: Tensor | None) -> PolicyOutput:
        if random is None or not self.samples or not bool(self.random):
            return super().act_without_exploration(observation, rnn_state, random)
        sampling = copy(self)  # shares all tensors but one: training may continue meanwhile
        sampling._buffers = {**self._buffers, "random": torch.zeros_like(self.random)}
        return sampling.act(observation, rnn_state, random)

    def _explore(self, encoded: Tensor, rnn_state: Tensor | None, random: Tensor) -> tuple[Tensor, Tensor | None]:
        """Normalised actions [N, K] with noise, and the next recurrent state, which ends with the noise's state."""
        normal, uniform = self._normal(random), random[:, : self.action_size] * 2 - 1
        exploration = self.exploration
        if rnn_state is not None and self.exploration_max is not None:
            rnn_state, drawn = rnn_state.split((rnn_state.shape[1] - 1, 1), 1)
            drawn = torch.where(drawn > 0, drawn, 1 - random[:, -1:])  # in (0, 1]: 0 is the start of an episode
            exploration = torch.lerp(exploration, self.exploration_max, drawn)
        if rnn_state is not None and self.noise_matrix is not None:
            before, own = rnn_state.split((rnn_state.shape[1] - SDE_STATE, SDE_STATE), 1)
            normal, own = noise(self.noise_matrix, self.actor(encoded), own, random)
            rnn_state = torch.cat((before, own), 1)
        elif rnn_state is not None and self.noise_autocorrelation:
            before, last = rnn_state.split((rnn_state.shape[1] - self.action_size, self.action_size), 1)
            fresh = math.sqrt(1 - self.noise_autocorrelation**2)  # so that the variance stays 1
            normal = self.noise_autocorrelation * last.t() + fresh * normal
            rnn_state = torch.cat((before, normal.t()), 1)
            uniform = torch.erf(normal.t() * math.sqrt(0.5))  # normal to uniform
        if self.deterministic:
            action = torch.addcmul(self.best_action(encoded), normal.t(), exploration).clamp(-1, 1)
        else:
            action = sample_squashed(self.actor_output(encoded), normal)[0].t()
        if rnn_state is not None and self.exploration_max is not None:
            rnn_state = torch.cat((rnn_state, drawn), 1)
        return torch.where(self.random > 0, uniform, action), rnn_state

    def value(self, observation: Any, rnn_state: Any = None) -> Tensor:
        """The value of the actor's best actions, [N]: the minimum over the critics, or for quantiles without atoms
        their mean."""
        rows = batch_size(observation)
        rnn_state = self.initial_state(rows) if rnn_state is None else rnn_state
        if needs_padding(rows, self.block):
            return self.value(*pad(self.block, observation, rnn_state))[:rows]
        encoded, _ = step(self.encoder, observation, rnn_state)
        values: Tensor = self.critic_values(encoded, self.best_action(encoded))
        return values.amin(0) if self.quantiles == 1 or self.atoms is not None else values.mean(0)

    def update_statistics(self, rollout: Rollout, returns: Tensor) -> None:
        """Update the observations' statistics; returns are not used."""
        valid = rollout.valid[: rollout.num_steps].flatten()
        update_encoder(self.encoder, flatten(rollout.observation[: rollout.num_steps]), valid)


def check_networks(
    policy: Any,
    deterministic: bool,
    critics: int | None = None,
    quantiles: int = 1,
    renorm: bool = False,
    support: tuple[float, float] | None = None,
) -> None:
    """Raise ValueError if an algorithm cannot learn a policy's actor or critics.

    critics: required number; None for any. quantiles: outputs of each. support: of their atoms."""
    if getattr(policy, "deterministic", deterministic) != deterministic:
        own, wanted = ("stochastic", "deterministic") if deterministic else ("deterministic", "stochastic")
        reason = f"the actor of this policy is {own}, and the algorithm learns a {wanted} one"
        raise ValueError(f"{reason}: make the policy with deterministic={deterministic}")
    number = getattr(policy.critics, "number", critics)  # a user's own critics need not have it
    if critics not in (None, number):
        reason = f"this policy has {number} critics, and the algorithm learns {critics}"
        raise ValueError(f"{reason}: make the policy with critics={critics}")
    found = getattr(policy, "quantiles", 1), getattr(policy.critics, "has_renorm", False)
    if found != (quantiles, renorm):
        own, wanted = (
            "batch renormalisation" if norm else f"{outputs} outputs each" if outputs > 1 else "one output each"
            for outputs, norm in (found, (quantiles, renorm))
        )
        raise ValueError(f"critics of this policy have {own}, and the algorithm learns critics with {wanted}")
    atoms = getattr(policy, "support", None)
    if atoms != support:
        raise ValueError(
            f"the atoms of this policy's critics lie in {atoms}, and the algorithm learns those in {support}: make the "
            f"policy with support={support}"
        )


class InvertedTanh(torch.autograd.Function):
    """tanh that damps only gradients towards the bounds -1 and 1. Gradients away from them pass unchanged.

    With damping in both directions, an actor that has reached a bound in all states stays there: the slope at 8 is
    5e-7. These are the inverting gradients of Hausknecht & Stone 2016, arXiv:1511.04143, for outputs that end in tanh.
    """

    @staticmethod
    def forward(ctx: Any, output: Tensor) -> Tensor:
        ctx.save_for_backward(output)
        return output.tanh()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        (output,) = ctx.saved_tensors
        away = gradient * output > 0  # a step against the gradient
        return torch.where(away, gradient, gradient * (1 / output.cosh()).square())  # the slope as in Tanh


def _actor(
    inputs: int,
    hidden: Sequence[int],
    activation: str,
    generator: torch.Generator,
    batch_renorm: int | None,
    norm: str,
) -> MLP:
    """Raises ValueError for norm with batch_renorm, or an unknown one."""
    if norm != "none" and (batch_renorm is not None or norm not in NORMS):
        given = f"norm={norm!r} does not go with batch_renorm" if norm in NORMS else f"unknown norm {norm!r}"
        raise ValueError(f"{given}: use none" + f" or one of {', '.join(NORMS)}" * (norm not in NORMS))
    if batch_renorm is None:
        return MLP(inputs, hidden, activation, generator, norm=norm)
    return RenormMLP(inputs, hidden, activation, generator, batch_renorm)


def _critics(
    sizes: tuple[int, int, int],
    hidden: Sequence[int],
    activation: str,
    generator: torch.Generator,
    quantiles: int,
    batch_renorm: int | None,
    norm: str,
) -> Critics:
    """sizes: number of critics, of features and of dimensions of an action. Raises ValueError for quantiles with
    batch_renorm."""
    if norm != "none":
        return NormalizedCritics(*sizes, hidden, activation, generator, quantiles, norm)
    if batch_renorm is None:
        return Critics(*sizes, hidden, activation, generator, quantiles)
    if quantiles > 1:
        raise ValueError(f"quantiles={quantiles} does not go with batch_renorm={batch_renorm}: leave one of them out")
    return RenormCritics(*sizes, hidden, activation, generator, batch_renorm)


def action_bounds(space: Space) -> tuple[Tensor, Tensor]:
    """Center and half of the range of each dimension of a Box. Raises TypeError for other or unbounded spaces."""
    if not isinstance(space, Box) or len(space.shape) != 1:
        raise TypeError(f"actions must be of a Box of one dimension, got {space}: use ppo or dqn for other spaces")
    low, high = bounds(space)
    if not (np.isfinite((low, high)).all() and (low < high).all()):
        raise TypeError(
            f"every dimension of an action needs bounds, low < high, got {space}; {FARTHEST:g} and a dtype's largest "
            "number are none: use ppo for unbounded actions"
        )
    return tuple(torch.tensor(x, dtype=torch.float32) for x in ((low + high) / 2, (high - low) / 2))  # type: ignore[return-value]
