"""An actor with critics of its actions: the policy of DDPG, TD3 (deterministic) and SAC (stochastic)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headrace import rng
from headrace.policies.base import Decision, Policy
from headrace.policies.critics import Critics
from headrace.policies.distributions import box_muller
from headrace.policies.networks import MLP, Readout, make_encoder
from headrace.policies.numpy_shell import batch_size, pad
from headrace.policies.squashed import sample
from headrace.rollout import Rollout, flatten
from headrace.spaces import Box, Space, to_json

BLOCK = 64  # decisions are made in whole blocks of rows: see actor_critic.BLOCK


class ActorQ(Policy):
    """An actor and `critics` critics, each an MLP of its own. Actions are within a Box's bounds.

    Inside, actions are normalised: -1 and 1 are the bounds. deterministic: action = tanh(actor), and while exploring
    plus normal noise of deviation `exploration`; else tanh of a normal whose mean and deviation both are the actor's.
    Where `random` is 1, explored actions are drawn alike from the whole Box. Algorithms write both tensors.
    noise_memory: share of an env's noise that stays from one step to the next; it is the policy's memory. A weak push
    then lasts, where pushes that come and go would cancel out: Lillicrap et al. 2016, arXiv:1509.02971, section 3.
    Weights are a function of the seed, as ActorCritic's.
    Raises TypeError for spaces it has no network for, ValueError for unknown names.
    """

    exploration: Tensor  # [1]
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
        noise_memory: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.observation_space, self.action_space = observation_space, action_space
        self.hidden, self.activation = tuple(hidden), activation
        self.deterministic, self.normalize_observation = deterministic, normalize_observation
        self.noise_memory = noise_memory
        center, half_range = _bounds(action_space)
        self.action_size = len(center)
        self.num_draws = self.action_size + self.action_size % 2
        generator = rng.generator(seed, rng.Purpose.WEIGHTS)
        self.encoder = make_encoder(observation_space, normalize_observation, generator)
        if any(True for _ in self.encoder.parameters()):
            raise TypeError(f"no actor and critics for images yet, and observations are {observation_space}: use PPO")
        self.actor = MLP(self.encoder.size, hidden, activation, generator)
        self.actor_out = Readout(self.actor.outputs, self.action_size * (1 if deterministic else 2), 0.01, generator)
        self.critics = Critics(critics, self.encoder.size, self.action_size, hidden, activation, generator)
        self.register_buffer("center", center, persistent=False)
        self.register_buffer("half_range", half_range, persistent=False)
        self.register_buffer("exploration", torch.zeros(1))
        self.register_buffer("random", torch.zeros(1))

    def actor_parameters(self) -> list[nn.Parameter]:
        """What the actor learns."""
        return [*self.actor.parameters(), *self.actor_out.parameters()]

    def propose(self, encoded: Tensor) -> Tensor:
        """What the actor puts out for encoded observations [B, F]: [K, B], and 2 K of a stochastic one."""
        output: Tensor = self.actor_out(self.actor(encoded))
        return output

    def sample(self, encoded: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Normalised actions [B, K] of a stochastic actor, drawn with uniform `noise` [B, num_draws], and their
        log-density [B]. Differentiable in the actor: the reparameterisation of Haarnoja et al. 2018, appendix C."""
        action, log_prob = sample(self.propose(encoded), self._normal(noise))
        return action.t(), log_prob

    def _normal(self, noise: Tensor) -> Tensor:
        """Standard normals [K, B] from uniform draws [B, num_draws]."""
        return box_muller(noise.t(), self.action_size)

    def best(self, encoded: Tensor) -> Tensor:
        """Normalised actions [B, K] without noise. Differentiable in the actor."""
        return self.propose(encoded)[: self.action_size].tanh().t()

    def normalized(self, action: Tensor) -> Tensor:
        """Actions [B, K] of the space's units as the critics see them: clipped to the bounds, which are -1 and 1."""
        return ((action - self.center) / self.half_range).clamp(-1, 1)

    def decide(self, observation: Any, memory: Any, noise: Tensor | None) -> Decision:
        rows = batch_size(observation)
        if rows % BLOCK:
            padded = self.decide(*(pad(x, BLOCK) for x in (observation, memory, noise)))
            return Decision(padded.action[:rows], None, None, None if memory is None else padded.memory[:rows])
        encoded = self.encoder(observation)
        if noise is None:
            action = self.best(encoded)
        else:
            action, memory = self._explore(encoded, memory, noise)
        return Decision(torch.addcmul(self.center, action, self.half_range), None, None, memory)

    def _explore(self, encoded: Tensor, memory: Tensor | None, noise: Tensor) -> tuple[Tensor, Tensor | None]:
        """Normalised actions [N, K] with noise, and the noise to remember, [N, K]."""
        normal, uniform = self._normal(noise), noise[:, : self.action_size] * 2 - 1
        if memory is not None:
            fresh = math.sqrt(1 - self.noise_memory**2)  # so that the variance stays 1
            normal = self.noise_memory * memory.t() + fresh * normal
            memory = normal.t()
            uniform = torch.erf(memory * math.sqrt(0.5))  # uniform, where memory is normal
        if self.deterministic:
            action = torch.addcmul(self.best(encoded), normal.t(), self.exploration).clamp(-1, 1)
        else:
            action = sample(self.propose(encoded), normal)[0].t()
        return torch.where(self.random > 0, uniform, action), memory

    def initial_memory(self, num_envs: int) -> Tensor | None:
        """No noise yet, [N, K]; None where none is remembered."""
        return self.center.new_zeros(num_envs, self.action_size) if self.noise_memory else None

    def value(self, observation: Any, memory: Any = None) -> Tensor:
        """What the lowest of the critics gives for the actor's best actions, [N]."""
        encoded = self.encoder(observation)
        values: Tensor = self.critics(encoded, self.best(encoded))
        return values.amin(0)

    def update_statistics(self, rollout: Rollout, returns: Tensor) -> None:
        """Move the observations' statistics; returns are not looked at."""
        valid = rollout.valid[: rollout.num_steps].flatten()
        self.encoder.update_statistics(flatten(rollout.observation[: rollout.num_steps]), valid)

    def config(self) -> dict[str, Any]:
        return {
            "policy": "ActorQ",
            "observation_space": to_json(self.observation_space),
            "action_space": to_json(self.action_space),
            "hidden": list(self.hidden),
            "activation": self.activation,
            "critics": self.critics.number,
            "deterministic": self.deterministic,
            "normalize_observation": self.normalize_observation,
            "noise_memory": self.noise_memory,
        }


def _bounds(space: Space) -> tuple[Tensor, Tensor]:
    """Middle and half of the range of each dimension of a Box. Raises TypeError for a space without."""
    if not isinstance(space, Box) or len(space.shape) != 1:
        raise TypeError(f"these actions are of a Box of one dimension, got {space}: for others there are ppo and dqn")
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    if not (np.isfinite(low).all() and np.isfinite(high).all() and (low < high).all()):
        raise TypeError(f"every dimension of an action needs bounds, low < high, got {space}: ppo can do without")
    return tuple(torch.tensor(x, dtype=torch.float32) for x in ((low + high) / 2, (high - low) / 2))  # type: ignore[return-value]
