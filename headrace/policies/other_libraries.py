"""Members of Stable-Baselines3's policies, actors and critics: their counterparts here, or what to use instead."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributions, nn

from headrace.policies.distributions import Bernoulli, Categorical, Gaussian, MultiCategorical
from headrace.policies.numpy_io import to_batch

MADE_OF = "it is made from Headrace's settings: for parts of your own see docs/own-policy.md"
ACTOR = "policy.actor_output(policy.encoder(tensor)) has means and log standard deviations"
CRITICS = "policy.critics(policy.encoder(tensor), action) has the values of all critics, [C, N]"
VECTOR = "torch.nn.utils.parameters_to_vector(policy.parameters()), and vector_to_parameters(), are PyTorch's"
INSTEAD = {  # members of policies and their parts -> what to use instead
    **dict.fromkeys(
        ("save", "load"), "model.save(path) writes all; torch.save(model.policy.state_dict(), path) this alone"
    ),
    "mlp_extractor": "the layers are policy.actor and policy.critic",
    "action_net": "the layer is policy.actor_out",
    "value_net": "the layer is policy.critic_out",
    "log_std": "it is policy.head.log_std, where actions are of a Box",
    "optimizer": "it is model.algorithm.optimizer, or one of model.algorithm.optimizers",
    "activation_fn": "its name is policy.activation",
    **dict.fromkeys(("features_extractor", "pi_features_extractor", "vf_features_extractor"), "it is policy.encoder"),
    **dict.fromkeys(("extract_features", "features_dim"), "policy.encoder(tensor) has the features"),
    **dict.fromkeys(("q_net", "q_net_target"), "policy(tensor) has the Q-values [A, N]"),
    **dict.fromkeys(("critic", "critic_target", "actor_target"), "the critics are policy.critics"),
    "_predict": "policy.act(tensor, None, None).action has the actions without noise",
    **dict.fromkeys(
        ("action_dist", "_get_action_dist_from_latent"),
        "policy.get_distribution(tensor) has the distribution over actions",
    ),
    **dict.fromkeys(("parameters_to_vector", "load_from_vector"), VECTOR),
    "normalize_images": "the encoder takes images as bytes",
    **dict.fromkeys(("features_extractor_class", "features_extractor_kwargs", "share_features_extractor"), MADE_OF),
    **dict.fromkeys(("make_features_extractor", "make_actor", "make_critic", "make_q_net", "init_weights"), MADE_OF),
    **dict.fromkeys(("optimizer_class", "optimizer_kwargs", "ortho_init", "log_std_init", "net_args"), MADE_OF),
    **dict.fromkeys(("actor_kwargs", "critic_kwargs", "dist_kwargs", "reset_noise"), MADE_OF),
    **dict.fromkeys(("_build", "_build_mlp_extractor", "_get_constructor_parameters", "_dummy_schedule"), MADE_OF),
    **dict.fromkeys(("_update_features_extractor", "sde_features_extractor", "full_std"), MADE_OF),
    **dict.fromkeys(("squash_output", "_squash_output"), "policy.predict() gives actions within the space's bounds"),
    **dict.fromkeys(("latent_pi", "mu", "get_action_dist_params", "clip_mean", "get_std"), ACTOR),
    "action_log_prob": "policy.sample(policy.encoder(tensor), random) has actions and their log-densities",
    **dict.fromkeys(("q1_forward", "q_networks", "qf0", "qf1"), CRITICS),
    "n_critics": "it is policy.critics.number",
    **dict.fromkeys(("forward_actor", "latent_dim_pi", "policy_net"), "the layers are policy.actor"),
    **dict.fromkeys(("forward_critic", "latent_dim_vf"), "the layers are policy.critic"),
    **dict.fromkeys(("_features_dim", "n_flatten"), "it is policy.encoder.size"),
    "reset_parameters": "torch.nn.init.orthogonal_(layer.weight) draws new weights, as the policy did",
    **dict.fromkeys(("in_features", "out_features"), "policy.actor_out.weight is of shape [outputs, inputs]"),
}


class ActionDistribution:
    """The distribution over N actions, with the methods of Stable-Baselines3's. of_policy: forward()'s distribution."""

    def __init__(self, of_policy: Any, num_draws: int) -> None:
        self._of_policy, self._num_draws = of_policy, num_draws
        self.log_prob, self.entropy, self.mode = of_policy.log_prob, of_policy.entropy, of_policy.mode

    def sample(self) -> Tensor:
        """Actions drawn with PyTorch's generator."""
        actions = self.mode()
        return self._of_policy.sample(torch.rand(len(actions), self._num_draws, device=actions.device))  # type: ignore[no-any-return]

    def get_actions(self, deterministic: bool = False) -> Tensor:
        """The most likely actions, or drawn ones."""
        return self.mode() if deterministic else self.sample()

    @property
    def distribution(self) -> Any:
        """The distribution of torch.distributions; for MultiDiscrete actions a list of them.

        Raises TypeError for a distribution that PyTorch does not have.
        """
        return _of_torch(self._of_policy)


def _of_torch(distribution: Any) -> Any:
    kind = type(distribution)
    if kind is Categorical:
        return distributions.Categorical(logits=distribution.log_probs.t())
    if kind is MultiCategorical:
        return [_of_torch(part) for part in distribution.parts]
    if kind is Bernoulli:
        return distributions.Bernoulli(logits=distribution.logits.t())
    if kind is Gaussian:
        mean = distribution.mean.t()
        return distributions.Normal(mean, distribution.log_std.exp().t().expand_as(mean))
    raise TypeError(f"{kind.__name__} is no distribution of PyTorch: use log_prob(), entropy(), mode() and sample()")


def _obs_to_tensor(policy: Any, observation: Any) -> tuple[Any, bool]:
    """Observations as tensors [N, ...], and whether they were a batch."""
    batch, single = to_batch(policy.observation_space, observation, policy.device)
    return batch, not single


def _evaluate_actions(policy: Any, obs: Any, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Values [N, 1] of observations, log-likelihood [N] of actions, entropy [N]. Differentiable."""
    log_prob, entropy, value = policy.log_prob_entropy_value(obs, actions)
    return value.unsqueeze(1), log_prob, entropy


def _scale_action(policy: Any, action: Any) -> Any:
    """Actions in the space's bounds as numbers in [-1, 1]."""
    low, high = policy.action_space.low, policy.action_space.high
    return 2.0 * ((np.asarray(action) - low) / (high - low)) - 1.0


def _unscale_action(policy: Any, scaled_action: Any) -> Any:
    """Numbers in [-1, 1] as actions in the space's bounds."""
    low, high = policy.action_space.low, policy.action_space.high
    return low + 0.5 * (np.asarray(scaled_action) + 1.0) * (high - low)


METHODS: dict[str, Callable[..., Any]] = {
    "obs_to_tensor": _obs_to_tensor,
    "is_vectorized_observation": lambda policy, observation: _obs_to_tensor(policy, observation)[1],
    "predict_values": lambda policy, obs: policy(obs)[1].unsqueeze(1),
    "evaluate_actions": _evaluate_actions,
    "get_distribution": lambda policy, obs: ActionDistribution(policy(obs)[0], policy.num_draws),
    "set_training_mode": lambda policy, mode: policy.train(mode),
    "scale_action": _scale_action,
    "unscale_action": _unscale_action,
}
OF_POLICIES_ALONE = {"predict", "net_arch", "device", "observation_space", "action_space"}


def member(part: nn.Module, name: str) -> Any:
    """A member of a policy, or of a part of one, that Headrace has under another name. Raises AttributeError, which
    says what to use instead if that is known."""
    is_policy = hasattr(type(part), "predict")
    if is_policy and name in METHODS:
        return partial(METHODS[name], part)
    if is_policy and name == "net_arch":
        return [*part.hidden]  # type: ignore[misc]
    raise AttributeError(missing(part, name))


def missing(part: nn.Module, name: str) -> str:
    """The message about a missing member."""
    instead = INSTEAD.get(name, "")
    if name in METHODS or name in OF_POLICIES_ALONE:
        instead = f"these are layers alone, and policy.{name} is what the policy has"
    return f"{type(part).__name__} has no attribute {name!r}" + (f": {instead}" if instead else "")
