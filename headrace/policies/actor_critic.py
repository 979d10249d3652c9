"""Actor and critic as multi-layer perceptrons: the policy of PPO, A2C and the other on-policy algorithms.

The critic of an AsymmetricActorCritic sees more than its actor: members of a Dict observation that are only available
in training.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from headrace.core import rng
from headrace.core.fused import fused, kernel_of
from headrace.core.text import shown
from headrace.data.flat_dict import ACTION_MASK, CENTRAL, OBSERVATION, FlatDict
from headrace.data.rollout import Group, Rollout, flatten
from headrace.data.spaces import Dict, Space
from headrace.policies.base import Policy, PolicyOutput, inference_block, is_kind
from headrace.policies.examination import examine
from headrace.policies.flat_parameters import flatten as flatten_parameters
from headrace.policies.heads import SDE_STATE, action_head, state_dependent
from headrace.policies.masks import is_masked, mask_of
from headrace.policies.networks import MLP, Readout, VectorEncoder, initialize_as_torch, make_encoder, read_out
from headrace.policies.normalization import ReturnNormalizer, update_encoder
from headrace.policies.numpy_io import batch_size, needs_padding, pad


class ActorCritic(Policy):
    """An actor and a critic, each with its own MLP, or (shared) two output layers on one MLP.

    hidden: sizes of the hidden layers; critic_hidden: of the critic's, None: the same. activation, layer_norm: see
    networks.MLP. distribution: see heads.action_head.
    images: see convolutions.ImageEncoder; actor and critic share its convolutions. Action masks: see masks.py.
    Weights are a function of the seed: orthogonal, gain sqrt 2 in hidden layers, 0.01 for actions, 1 for the value
    (Andrychowicz et al. 2021, arXiv:2006.05990); ortho_init=False: the default weights of torch.nn.Linear and
    torch.nn.Conv2d. normalize_observation, normalize_return: see normalization.py. use_sde, sde_sample_freq, use_expln,
    state_std: see heads.py.
    Raises TypeError for unsupported spaces, ValueError for unknown names.
    """

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        hidden: Sequence[int] = (64, 64),
        activation: str = "tanh",
        shared: bool = False,
        distribution: str = "auto",
        normalize_observation: bool = False,
        normalize_return: bool = False,
        seed: int = 0,
        layer_norm: bool = False,
        images: str = "auto",
        critic_hidden: Sequence[int] | None = None,
        ortho_init: bool = True,
        use_sde: bool = False,
        sde_sample_freq: int = 64,
        use_expln: bool = False,
        state_std: bool = False,
    ) -> None:
        super().__init__()
        self._keep(locals())
        self.observation_space, self.action_space = observation_space, action_space
        self.hidden, self.activation, self.shared = tuple(hidden), activation, shared
        self.distribution_name, self.layer_norm = distribution, layer_norm
        generator = rng.generator(seed, rng.Purpose.WEIGHTS)
        self.encoder = make_encoder(observation_space, normalize_observation, generator, images)
        self.masked = is_masked(observation_space, action_space)
        self.mask_space = observation_space if self.masked else None
        features = [self.encoder.size, *hidden][-1]
        self.use_sde, self.state_width = use_sde, SDE_STATE * use_sde
        if state_std and use_sde:
            raise ValueError("state_std does not go with use_sde: leave one of them out")
        self.head = action_head(action_space, distribution, state_std)
        if use_sde:
            self.head = state_dependent(self.head, action_space, features, sde_sample_freq, use_expln)
        self.num_draws = self.head.num_draws
        self.block = inference_block(observation_space)
        self.actor = MLP(self.encoder.size, hidden, activation, generator, layer_norm)
        sizes = hidden if critic_hidden is None else critic_hidden
        if shared and critic_hidden is not None:
            raise ValueError(
                f"critic_hidden is {tuple(sizes)}, and shared layers are the actor's: leave one of them out"
            )
        self.critic_hidden = tuple(sizes)
        self.critic = self.actor if shared else MLP(self.encoder.size, sizes, activation, generator, layer_norm)
        self.actor_out = Readout(self.actor.outputs, self.head.num_parameters, 0.01, generator)
        self.critic_out = Readout(self.critic.outputs, 1, 1.0, generator)
        self.return_normalizer = ReturnNormalizer() if normalize_return else None
        if not ortho_init:
            initialize_as_torch(self, generator)
        flatten_parameters(self.parameters())  # kernels serve parameters in one buffer

    def forward(self, observation: Any) -> tuple[Any, Tensor]:
        """The distribution over actions, and the value [N] in units of return."""
        encoded = self.encoder(observation)
        features = self.actor(encoded)
        return self._distribution(features, observation), self._value(features if self.shared else self.critic(encoded))

    def _value(self, features: Tensor) -> Tensor:
        value = self.critic_out(features).flatten()
        return value if self.return_normalizer is None else self.return_normalizer(value)

    def distribution(self, observation: Any) -> Any:
        """The distribution over actions, without the value."""
        return self._distribution(self.actor(self.encoder(observation)), observation)

    def _distribution(self, features: Tensor, observation: Any) -> Any:
        parameters = read_out(self.actor_out, features, self.head.num_parameters, "actor_out")
        if self.masked:
            return self.head(parameters, mask_of(self.mask_space, observation))
        return self.head(parameters, features) if self.use_sde else self.head(parameters)

    def actor_parameters(self) -> list[nn.Parameter]:
        """Parameters of distribution()."""
        return [p for part in (self.encoder, self.head, self.actor, self.actor_out) for p in part.parameters()]

    def shared_parameters(self) -> list[nn.Parameter]:
        """Parameters of both distribution() and value()."""
        parts = (self.encoder, self.actor) if self.shared else (self.encoder,)
        return [p for part in parts for p in part.parameters()]

    @fused("actor_critic.act", "headrace.bindings.collecting.acting")
    def act(self, observation: Any, rnn_state: Any, random: Tensor | None) -> PolicyOutput:
        rows = batch_size(observation)
        if needs_padding(rows, self.block):
            return self.act(*pad(self.block, observation, rnn_state, random)).first(rows)
        if self.use_sde and rnn_state is not None and random is not None:
            return self._explore(observation, rnn_state, random)
        distribution, value = self(observation)
        action = distribution.mode() if random is None else distribution.sample(random)
        return PolicyOutput(action, distribution.log_prob(action), value, rnn_state)

    def _explore(self, observation: Any, state: Tensor, random: Tensor) -> PolicyOutput:
        """Act with the noise matrix of each environment. Without a state, act() draws a matrix for each row."""
        encoded = self.encoder(observation)
        features = self.actor(encoded)
        distribution, action, state = self.head.explore(self.actor_out(features), features, state, random)
        value = self._value(features if self.shared else self.critic(encoded))
        return PolicyOutput(action, distribution.log_prob(action), value, state)

    def most_likely(self, observation: Any, rnn_state: Any) -> tuple[Any, Any]:
        """Same as act() in its most likely action, with act()'s kernel. Without a kernel, the value and the
        log-likelihood are left out, which takes half the time."""
        if not is_kind(self, ActorCritic) or examine(self).altered:  # its act() may be a user's
            return super().most_likely(observation, rnn_state)
        kernel = kernel_of(ActorCritic.act, self, observation, rnn_state, None)
        if kernel is not None:
            return kernel(self, observation, rnn_state, None).action, rnn_state
        rows = batch_size(observation)
        if needs_padding(rows, self.block):
            return self.distribution(pad(self.block, observation)[0]).mode()[:rows], rnn_state
        return self.distribution(observation).mode(), rnn_state

    @fused("actor_critic.value", "headrace.bindings.collecting.acting")
    def value(self, observation: Any, rnn_state: Any = None) -> Tensor:
        rows = batch_size(observation)
        if needs_padding(rows, self.block):
            return self.value(*pad(self.block, observation))[:rows]
        return self._value(self.critic(self.encoder(observation)))

    def bootstrap_value(self, rollout: Rollout) -> Tensor:
        return self.value(rollout.observation[-1])

    def value_scale(self) -> Tensor | float:
        return 1.0 if self.return_normalizer is None else self.return_normalizer.scale

    def update_statistics(self, rollout: Rollout, returns: Tensor) -> None:
        if self.return_normalizer is None and type(self.encoder) is VectorEncoder and self.encoder.normalizer is None:
            return
        valid = rollout.valid[: rollout.num_steps].flatten()
        update_encoder(self.encoder, flatten(rollout.observation[: rollout.num_steps]), valid)
        if self.return_normalizer is not None:
            self.return_normalizer.update(returns.flatten(), valid, self.critic_out.weight, self.critic_out.bias)


class AsymmetricActorCritic(Policy):
    """An actor and a critic, each with its own encoder, normaliser and MLP. Only the critic sees `critic_members`.

    Pinto et al. 2018, arXiv:1710.06542. observation_space: of rollouts, a Dict or FlatDict with all members; kept as
    `critic_space`. The attribute observation_space has the actor's members, the only ones that predict() and exports
    take. For observations with the state of all agents (envs.wrappers.central) it is the space of the agent's own
    observation.
    The other arguments are those of ActorCritic.
    Raises TypeError for unsupported spaces, ValueError for members that observations do not have, and for unknown
    names.
    """

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        critic_members: Sequence[str],
        hidden: Sequence[int] = (64, 64),
        activation: str = "tanh",
        distribution: str = "auto",
        normalize_observation: bool = False,
        normalize_return: bool = False,
        seed: int = 0,
        layer_norm: bool = False,
        images: str = "auto",
        critic_hidden: Sequence[int] | None = None,
        ortho_init: bool = True,
        state_std: bool = False,
    ) -> None:
        super().__init__()
        self._keep(locals())
        self.critic_space, self.critic_members = observation_space, tuple(critic_members)
        self.observation_space = actor_space(observation_space, self.critic_members)
        self.action_space, self.hidden, self.activation, self.shared = action_space, tuple(hidden), activation, False
        generator = rng.generator(seed, rng.Purpose.WEIGHTS)
        self.encoder = make_encoder(self.observation_space, normalize_observation, generator, images)
        self.critic_encoder = make_encoder(observation_space, normalize_observation, generator, images)
        self.masked = is_masked(self.observation_space, action_space)
        self.mask_space = self.observation_space if self.masked else None
        self.head = action_head(action_space, distribution, state_std)
        self.num_draws, self.block = self.head.num_draws, inference_block(observation_space)
        self.actor = MLP(self.encoder.size, hidden, activation, generator, layer_norm)
        self.critic_hidden = tuple(hidden if critic_hidden is None else critic_hidden)
        self.critic = MLP(self.critic_encoder.size, self.critic_hidden, activation, generator, layer_norm)
        self.actor_out = Readout(self.actor.outputs, self.head.num_parameters, 0.01, generator)
        self.critic_out = Readout(self.critic.outputs, 1, 1.0, generator)
        self.return_normalizer = ReturnNormalizer() if normalize_return else None
        if not ortho_init:
            initialize_as_torch(self, generator)
        self.register_buffer("_entries", _entries(observation_space, self.observation_space), persistent=False)
        flatten_parameters(self.parameters())

    def forward(self, observation: Any) -> tuple[Any, Tensor]:
        """The distribution over actions, and the value [N] in units of return, for observations of critic_space."""
        return self.distribution(observation), self._value(observation)

    def distribution(self, observation: Any) -> Any:
        """The distribution over actions, for observations of either space."""
        seen = self._of_actor(observation)
        parameters = self.actor_out(self.actor(self.encoder(seen)))
        return self.head(parameters, mask_of(self.mask_space, seen)) if self.masked else self.head(parameters)

    def _value(self, observation: Any) -> Tensor:
        value = self.critic_out(self.critic(self.critic_encoder(observation))).flatten()
        return value if self.return_normalizer is None else self.return_normalizer(value)

    def _of_actor(self, observation: Any) -> Any:
        """The actor's part of observations of either space."""
        if isinstance(observation, Tensor) and self._is_whole(observation):
            return observation.index_select(1, self._entries)  # type: ignore[arg-type]
        if self.critic_members == (CENTRAL,) and self._is_whole(observation):
            return observation[OBSERVATION]
        return observation  # the actor's encoder selects its members

    def _is_whole(self, observation: Any) -> bool:
        """Tell whether these are observations of critic_space rather than of the actor's."""
        if isinstance(observation, Group):
            return all(hasattr(observation, name) for name in self.critic_members)
        return bool(observation.shape[1:] == self.critic_space.shape)

    def actor_parameters(self) -> list[nn.Parameter]:
        """Parameters of distribution()."""
        return [p for part in (self.encoder, self.head, self.actor, self.actor_out) for p in part.parameters()]

    def shared_parameters(self) -> list[nn.Parameter]:
        """Return none: actor and critic share no parameters."""
        return []

    def act(self, observation: Any, rnn_state: Any, random: Tensor | None) -> PolicyOutput:
        """Same as Policy.act(). Without the critic's members in the observations there is no value."""
        rows = batch_size(observation)
        if needs_padding(rows, self.block):
            return self.act(*pad(self.block, observation, rnn_state, random)).first(rows)
        distribution = self.distribution(observation)
        value = self._value(observation) if self._is_whole(observation) else None
        action = distribution.mode() if random is None else distribution.sample(random)
        return PolicyOutput(action, distribution.log_prob(action), value, rnn_state)

    def most_likely(self, observation: Any, rnn_state: Any) -> tuple[Any, Any]:
        rows = batch_size(observation)
        if needs_padding(rows, self.block):
            return self.distribution(*pad(self.block, observation)).mode()[:rows], rnn_state
        return self.distribution(observation).mode(), rnn_state

    def value(self, observation: Any, rnn_state: Any = None) -> Tensor:
        rows = batch_size(observation)
        if not self._is_whole(observation):
            names = ", ".join(self.critic_members)
            raise ValueError(f"the observation lacks {names}, which the critic sees: only training has values")
        if needs_padding(rows, self.block):
            return self._value(*pad(self.block, observation))[:rows]
        return self._value(observation)

    def value_scale(self) -> Tensor | float:
        return 1.0 if self.return_normalizer is None else self.return_normalizer.scale

    def update_statistics(self, rollout: Rollout, returns: Tensor) -> None:
        valid = rollout.valid[: rollout.num_steps].flatten()
        observation = flatten(rollout.observation[: rollout.num_steps])
        update_encoder(self.encoder, self._of_actor(observation), valid)
        update_encoder(self.critic_encoder, observation, valid)
        if self.return_normalizer is not None:
            self.return_normalizer.update(returns.flatten(), valid, self.critic_out.weight, self.critic_out.bias)


def actor_space(space: Space, critic_members: Sequence[str]) -> Space:
    """An observation space without the members that only the critic sees. Raises ValueError if it has none of them."""
    given = f"critic_members is {', '.join(critic_members)}"
    if not isinstance(space, Dict | FlatDict):
        raise ValueError(
            f"{given}, and observations have no members: {shown(space)}; give a Dict of both, or leave it out"
        )
    members = dict(space.spaces if isinstance(space, Dict) else space.members)
    if missing := [name for name in critic_members if name not in members]:
        raise ValueError(f"{given}: observations have no {', '.join(missing)}, but {', '.join(members)}")
    if tuple(critic_members) == (CENTRAL,) and OBSERVATION in members:
        return members[OBSERVATION]
    if ACTION_MASK in critic_members:
        raise ValueError(f"{given}: the actor needs {ACTION_MASK}, leave it out of critic_members")
    rest = {name: member for name, member in members.items() if name not in critic_members}
    if not any(name != ACTION_MASK for name in rest):
        raise ValueError(f"{given}, and observations have no other members: nothing is left for the actor")
    return Dict(rest) if isinstance(space, Dict) else FlatDict(rest)


def _entries(space: Space, part: Space) -> Tensor | None:
    """Indices of the entries of some of a FlatDict's members in the whole vector; None for other spaces."""
    if not (isinstance(space, FlatDict) and isinstance(part, FlatDict)):
        return None
    return torch.cat([torch.arange(space.slices[name].start, space.slices[name].stop) for name in part.members])
