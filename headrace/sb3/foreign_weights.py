"""The tensors of Stable-Baselines3's policies as those of Headrace's: MLPs of PPO, A2C, DQN, SAC, TD3."""

from __future__ import annotations

import re
import sys
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


# all tensors of MlpPolicy's networks; those of target networks are not read
READ = re.compile(
    r"(?:(?:mlp_extractor\.(?:policy|value)_net|q_net\.q_net|actor\.latent_pi|actor\.mu|critic\.qf\d+)\.\d+\.|"
    r"(?:action_net|value_net|actor\.mu|actor\.log_std)\.)(?:weight|bias)|(?:actor\.)?log_std|(?:actor|critic|q_net)_target\..*"
)
FOLDERS = {  # of sb3_contrib.* -> the algorithm, and what there is in its place
    "tqc": ("TQC", 'headrace.train("tqc", ...)'),
    "crossq": ("CrossQ", 'headrace.train("crossq", ...)'),
    "trpo": ("TRPO", 'headrace.train("trpo", ...)'),
    "recurrent": ("RecurrentPPO", 'headrace.train("ppo", ..., recurrent="lstm")'),
    "maskable": ("MaskablePPO", 'headrace.train("ppo", ...) with a member action_mask of observations'),
    "qrdqn": ("QRDQN", 'headrace.train("dqn", ...)'),
    "ars": ("ARS", 'headrace.train("ppo", ...)'),
}


def kind_of(weights: Weights, data: Json) -> str:
    """The algorithm whose policy these are. Raises ValueError for one without counterpart."""
    _check_class(data)
    if any("features_extractor.cnn" in name or "lstm" in name for name in weights):
        raise ValueError("the file has a convolutional or recurrent policy, and only MlpPolicy is read")
    if unknown := [name for name in weights if not READ.fullmatch(name)]:
        names = ", ".join(unknown[:4])
        raise ValueError(f"the file has a policy of another kind, with {names}: only networks of MlpPolicy are read")
    if "action_net.weight" in weights:
        return "ppo" if "n_epochs" in data else "a2c"
    firsts = {"q_net.q_net.0.weight": "dqn", "actor.log_std.weight": "sac", "actor.log_std": "sac"}
    firsts["actor.mu.0.weight"] = "td3"
    found = next((name for first, name in firsts.items() if first in weights), None)
    if found is None:
        raise ValueError(f"the file has a policy of another kind: its first tensors are {', '.join(list(weights)[:4])}")
    return found


def _check_class(data: Json) -> None:
    """Raise ValueError for policies of other packages, whose code may do anything with the same tensors."""
    module = str((data.get("policy_class") or {}).get("__module__", "stable_baselines3"))
    if module.startswith("sb3_contrib") or "cg_max_steps" in data:
        folder = next((part for part in module.split(".") if part in FOLDERS), "trpo")
        name, instead = FOLDERS[folder]
        raise ValueError(
            f"the file is a model of sb3_contrib's {name}, and PPO, A2C, SAC, TD3, DDPG and DQN are read: load it with "
            f"sb3_contrib; {instead} trains another"
        )
    if not module.startswith("stable_baselines3"):
        raise ValueError(
            f"the file has a policy class of the module {module}, whose code is not in the file: only networks of "
            "Stable-Baselines3's own MlpPolicy are read"
        )


def layers(weights: Weights, prefix: str) -> list[tuple[Tensor, Tensor]]:
    """Weight and bias of each linear layer of a torch.nn.Sequential."""
    numbers = sorted(int(match[1]) for name in weights if (match := re.fullmatch(rf"{prefix}\.(\d+)\.weight", name)))
    return [(weights[f"{prefix}.{number}.weight"], weights[f"{prefix}.{number}.bias"]) for number in numbers]


def net_arch(algorithm: str, weights: Weights) -> list[int] | dict[str, list[int]]:
    """Sizes of the hidden layers, those of actor and critic by name where they differ."""
    actor = _sizes(weights, ACTORS[algorithm], has_output=algorithm in ("dqn", "td3"))
    if algorithm == "dqn":
        return actor
    if algorithm in ("ppo", "a2c"):
        name, critic = "vf", _sizes(weights, "mlp_extractor.value_net")
    else:
        name, critic = "qf", _sizes(weights, "critic.qf0", has_output=True)
    return actor if actor == critic else {"pi": actor, name: critic}


def _sizes(weights: Weights, prefix: str, has_output: bool = False) -> list[int]:
    sizes = [len(bias) for _, bias in layers(weights, prefix)]
    return sizes[:-1] if has_output else sizes


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
    elif "actor.log_std" in weights:
        out = weights["actor.mu.0.weight"], weights["actor.mu.0.bias"]
    else:
        parts = [[weights[f"actor.{name}.{kind}"] for name in ("mu", "log_std")] for kind in ("weight", "bias")]
        out = torch.cat(parts[0]), torch.cat(parts[1])
    number = next(k for k in range(len(weights)) if f"critic.qf{k}.0.weight" not in weights)
    if number != 2:
        which = "both begin as that one" if number == 1 else "the first two are taken"
        print(f"the file has {number} critics (n_critics), and there are two here: {which}", file=sys.stderr)
    critics: list[Any] = [layers(weights, f"critic.qf{k % number}") for k in range(2)]
    named = _mlp("actor", hidden) | _layer("actor_out", out)
    if "actor.log_std" in weights:
        named["noise_matrix.log_std"] = weights["actor.log_std"]
    for k, pair in enumerate(zip(*critics, strict=True)):
        named[f"critics.weights.{k}"] = torch.stack([weight.t() for weight, _ in pair])
        named[f"critics.biases.{k}"] = torch.stack([bias.unsqueeze(0) for _, bias in pair])
    return named
