"""The tensors of Stable-Baselines3's policies as those of Headrace's: MLPs of PPO, A2C, DQN, SAC, TD3."""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from headrace.core.types import Json
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.base import Policy
from headrace.policies.heads import GaussianHead

Weights = dict[str, Tensor]
ACTORS = {  # where the actor's layers are, by algorithm
    "ppo": "mlp_extractor.policy_net",
    "a2c": "mlp_extractor.policy_net",
    "dqn": "q_net.q_net",
    "sac": "actor.latent_pi",
    "td3": "actor.mu",
}


def kind_of(weights: Weights, data: Json) -> str:
    """The algorithm whose policy these are. Raises ValueError for one without counterpart."""
    if any("features_extractor.cnn" in name or "lstm" in name for name in weights):
        raise ValueError("the file has a convolutional or recurrent policy, and only MlpPolicy is read")
    if any(name.startswith("mlp_extractor") for name in weights):
        return "ppo" if "n_epochs" in data else "a2c"
    found = next((name for name in ("dqn", "sac", "td3") if f"{ACTORS[name]}.0.weight" in weights), None)
    if found is None:
        raise ValueError(f"the file has a policy of another kind: its first tensors are {', '.join(list(weights)[:4])}")
    return found


def layers(weights: Weights, prefix: str) -> list[tuple[Tensor, Tensor]]:
    """Weight and bias of each linear layer of a torch.nn.Sequential."""
    numbers = sorted(int(match[1]) for name in weights if (match := re.fullmatch(rf"{prefix}\.(\d+)\.weight", name)))
    return [(weights[f"{prefix}.{number}.weight"], weights[f"{prefix}.{number}.bias"]) for number in numbers]


def hidden_sizes(algorithm: str, weights: Weights) -> tuple[int, ...]:
    """Sizes of the actor's hidden layers. Raises ValueError where the critic's differ."""
    has_output = algorithm in ("dqn", "td3")
    sizes = tuple(len(bias) for _, bias in layers(weights, ACTORS[algorithm]))
    sizes = sizes[:-1] if has_output else sizes
    if algorithm in ("ppo", "a2c"):
        others = tuple(len(bias) for _, bias in layers(weights, "mlp_extractor.value_net"))
    elif algorithm == "dqn":
        others = sizes
    else:
        others = tuple(len(bias) for _, bias in layers(weights, "critic.qf0"))[:-1]
    if others != sizes:
        raise ValueError(f"actor and critic have hidden layers of different sizes, {sizes} and {others}: not supported")
    return sizes


def converted(algorithm: str, weights: Weights, policy: Policy) -> Weights:
    """The state_dict of a policy of Headrace that acts as these weights do. Raises ValueError for another shape."""
    own: Weights = dict(policy.state_dict())
    if algorithm in ("ppo", "a2c"):
        named = _actor_critic(weights, policy)
    elif algorithm == "dqn":
        *hidden, out = layers(weights, ACTORS["dqn"])
        named = _mlp("trunk", hidden) | _layer("out", out)
    else:
        named = _actor_q(algorithm, weights)
    for name, tensor in named.items():
        if name not in own or own[name].shape != tensor.shape:
            shape = list(own[name].shape) if name in own else "none"
            raise ValueError(f"{name} is of shape {list(tensor.shape)} in the file, and {shape} for these spaces")
    return own | named


def _layer(name: str, layer: tuple[Tensor, Tensor]) -> Weights:
    return {f"{name}.weight": layer[0], f"{name}.bias": layer[1]}


def _mlp(name: str, hidden: list[tuple[Tensor, Tensor]]) -> Weights:
    return {key: x for k, layer in enumerate(hidden) for key, x in _layer(f"{name}.layers.{k}", layer).items()}


def _actor_critic(weights: Weights, policy: Policy) -> Weights:
    named = _mlp("actor", layers(weights, ACTORS["ppo"])) | _mlp("critic", layers(weights, "mlp_extractor.value_net"))
    action = weights["action_net.weight"], weights["action_net.bias"]
    if isinstance(policy, ActorCritic) and isinstance(policy.head, GaussianHead):
        named["head.log_std"] = weights["log_std"]
    critic = weights["value_net.weight"], weights["value_net.bias"]
    return named | _layer("actor_out", action) | _layer("critic_out", critic)


def _actor_q(algorithm: str, weights: Weights) -> Weights:
    hidden = layers(weights, ACTORS[algorithm])
    if algorithm == "td3":
        *hidden, out = hidden
    else:
        parts = [[weights[f"actor.{name}.{kind}"] for name in ("mu", "log_std")] for kind in ("weight", "bias")]
        out = torch.cat(parts[0]), torch.cat(parts[1])
    critics: list[Any] = [layers(weights, f"critic.qf{k}") for k in range(2)]
    named = _mlp("actor", hidden) | _layer("actor_out", out)
    for k, pair in enumerate(zip(*critics, strict=True)):
        named[f"critics.weights.{k}"] = torch.stack([weight.t() for weight, _ in pair])
        named[f"critics.biases.{k}"] = torch.stack([bias.unsqueeze(0) for _, bias in pair])
    return named
