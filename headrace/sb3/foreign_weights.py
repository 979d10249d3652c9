"""Convert the tensors of Stable-Baselines3's policies to Headrace's: MLPs of PPO, A2C, DQN, SAC, TD3, DDPG, and of
sb3-contrib's TRPO, TQC and QRDQN. The other direction also supports CrossQ and RecurrentPPO."""

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
ACTORS = {  # by algorithm, the folder of the actor's layers
    "ppo": "mlp_extractor.policy_net",
    "a2c": "mlp_extractor.policy_net",
    "dqn": "q_net.q_net",
    "sac": "actor.latent_pi",
    "td3": "actor.mu",
    "ddpg": "actor.mu",
    "trpo": "mlp_extractor.policy_net",
    "tqc": "actor.latent_pi",
    "qrdqn": "quantile_net.quantile_net",
}
ON_POLICY, DISCRETE, DETERMINISTIC = ("ppo", "a2c", "trpo"), ("dqn", "qrdqn"), ("td3", "ddpg")


# all tensors of MlpPolicy's networks; those of target networks are not read
READ = re.compile(
    r"(?:(?:mlp_extractor\.(?:policy|value)_net|q_net\.q_net|quantile_net\.quantile_net|actor\.latent_pi|actor\.mu|critic\.qf\d+)\.\d+\.|"
    r"(?:action_net|value_net|actor\.mu|actor\.log_std)\.)(?:weight|bias)|(?:actor\.)?log_std|(?:actor|critic|q_net|quantile_net)_target\..*"
)
RENORM_EPS = 1e-3  # of batch renormalisation: included in the deviations here, added to the variances there
READ_OF_CONTRIB = ("tqc", "qrdqn")  # folders of sb3_contrib whose networks are read
FOLDERS = {  # other folders -> the algorithm, and what to use instead
    "crossq": ("CrossQ", "headrace.sb3.CrossQ(...)"),
    "recurrent": ("RecurrentPPO", "headrace.sb3.RecurrentPPO(...), whose layers come before the lstm,"),
    "maskable": ("MaskablePPO", 'headrace.train("ppo", ...) with a member action_mask of observations'),
    "ars": ("ARS", 'headrace.train("ppo", ...)'),
}


def kind_of(weights: Weights, data: Json) -> str:
    """The algorithm whose policy has these weights. Raises ValueError for one without counterpart."""
    folder = _check_class(data)
    if any("features_extractor.cnn" in name or "lstm" in name for name in weights):
        raise ValueError("the file has a convolutional or recurrent policy, and only MlpPolicy is read")
    if unknown := [name for name in weights if not READ.fullmatch(name)]:
        names = ", ".join(unknown[:4])
        raise ValueError(f"the file has a policy of another kind, with {names}: only networks of MlpPolicy are read")
    if folder:
        return folder
    if "action_net.weight" in weights:
        return "trpo" if "cg_max_steps" in data else "ppo" if "n_epochs" in data else "a2c"
    firsts = {"q_net.q_net.0.weight": "dqn", "actor.log_std.weight": "sac", "actor.log_std": "sac"}
    firsts["actor.mu.0.weight"] = "td3" if "critic.qf1.0.weight" in weights else "ddpg"
    found = next((name for first, name in firsts.items() if first in weights), None)
    if found is None:
        raise ValueError(f"the file has a policy of another kind: its first tensors are {', '.join(list(weights)[:4])}")
    return found


def _check_class(data: Json) -> str:
    """The folder of sb3_contrib that a policy's class is from; empty for Stable-Baselines3's own. Raises ValueError for
    policies of other packages, whose code may use the same tensors in any way."""
    module = str((data.get("policy_class") or {}).get("__module__", "stable_baselines3"))
    if module.startswith("sb3_contrib"):
        parts = module.split(".")
        if found := next((part for part in parts if part in READ_OF_CONTRIB), ""):
            return found
        name, instead = next((FOLDERS[part] for part in parts if part in FOLDERS), (module, "headrace.train(...)"))
        raise ValueError(
            f"the file is a model of sb3_contrib's {name}, whose networks are not read: load it with "
            f"sb3_contrib; {instead} trains another"
        )
    if not module.startswith("stable_baselines3"):
        raise ValueError(
            f"the file has a policy class of the module {module}, whose code is not in the file: only networks of "
            "Stable-Baselines3's own MlpPolicy are read"
        )
    return ""


def layers(weights: Weights, prefix: str) -> list[tuple[Tensor, Tensor]]:
    """Weight and bias of each linear layer of a torch.nn.Sequential."""
    numbers = sorted(int(match[1]) for name in weights if (match := re.fullmatch(rf"{prefix}\.(\d+)\.weight", name)))
    return [(weights[f"{prefix}.{number}.weight"], weights[f"{prefix}.{number}.bias"]) for number in numbers]


def net_arch(algorithm: str, weights: Weights) -> list[int] | dict[str, list[int]]:
    """Sizes of the hidden layers; by name for actor and critic if they differ."""
    actor = _sizes(weights, ACTORS[algorithm], has_output=algorithm in (*DISCRETE, *DETERMINISTIC))
    if algorithm in DISCRETE:
        return actor
    if algorithm in ON_POLICY:
        name, critic = "vf", _sizes(weights, "mlp_extractor.value_net")
    else:
        name, critic = "qf", _sizes(weights, "critic.qf0", has_output=True)
    return actor if actor == critic else {"pi": actor, name: critic}


def _sizes(weights: Weights, prefix: str, has_output: bool = False) -> list[int]:
    sizes = [len(bias) for _, bias in layers(weights, prefix)]
    return sizes[:-1] if has_output else sizes


def converted(algorithm: str, weights: Weights, policy: Policy) -> Weights:
    """The state_dict with which a Headrace policy acts like these weights. Raises ValueError for wrong shapes."""
    own: Weights = dict(policy.state_dict())
    if algorithm in ON_POLICY:
        named = _actor_critic(weights, policy)
    elif algorithm in DISCRETE:
        *hidden, out = layers(weights, ACTORS[algorithm])
        named = _mlp("trunk", hidden) | _q_values(out, getattr(policy, "quantiles", 1))
    else:
        named = _actor_q(algorithm, weights, policy)
    for name, tensor in named.items():
        if name not in own or own[name].shape != tensor.shape:
            shape = list(own[name].shape) if name in own else "none"
            raise ValueError(f"{name} is of shape {list(tensor.shape)} in the file, and {shape} for these spaces")
    return own | named


def _layer(name: str, layer: tuple[Tensor, Tensor]) -> Weights:
    return {f"{name}.weight": layer[0], f"{name}.bias": layer[1]}


def _mlp(name: str, hidden: list[tuple[Tensor, Tensor]]) -> Weights:
    return {key: x for k, layer in enumerate(hidden) for key, x in _layer(f"{name}.layers.{k}", layer).items()}


def quantiles_of(algorithm: str, weights: Weights, data: Json) -> Json:
    """Numbers of critics and quantiles, as policy_kwargs."""
    if algorithm == "qrdqn":
        return {"n_quantiles": int(data["n_quantiles"])}
    if algorithm != "tqc":
        return {}
    return {"n_critics": _critics(weights), "n_quantiles": len(layers(weights, "critic.qf0")[-1][1])}


def _critics(weights: Weights) -> int:
    return next(k for k in range(len(weights)) if f"critic.qf{k}.0.weight" not in weights)


def _q_values(out: tuple[Tensor, Tensor], quantiles: int) -> Weights:
    """Convert the last layer of a Q-network: ordered by quantile in the file, by action here."""
    if quantiles == 1:
        return _layer("out", out)
    weight, bias = (x.unflatten(0, (quantiles, -1)).transpose(0, 1).flatten(0, 1) for x in out)
    return _layer("out.of_all", (weight, bias))


def _actor_critic(weights: Weights, policy: Policy) -> Weights:
    named = _mlp("actor", layers(weights, ACTORS["ppo"])) | _mlp("critic", layers(weights, "mlp_extractor.value_net"))
    action = weights["action_net.weight"], weights["action_net.bias"]
    if isinstance(policy, ActorCritic) and isinstance(policy.head, GaussianHead):
        named["head.log_std"] = weights["log_std"]
    critic = weights["value_net.weight"], weights["value_net.bias"]
    return named | _layer("actor_out", action) | _layer("critic_out", critic)


def _actor_q(algorithm: str, weights: Weights, policy: Any) -> Weights:
    hidden = layers(weights, ACTORS[algorithm])
    if algorithm in DETERMINISTIC:
        *hidden, out = hidden
    elif "actor.log_std" in weights:
        out = weights["actor.mu.0.weight"], weights["actor.mu.0.bias"]
    else:
        parts = [[weights[f"actor.{name}.{kind}"] for name in ("mu", "log_std")] for kind in ("weight", "bias")]
        out = torch.cat(parts[0]), torch.cat(parts[1])
    number, wanted = _critics(weights), policy.critics.number
    if number != wanted:
        which = "both begin as that one" if number == 1 else f"the first {'two are' if wanted == 2 else 'is'} taken"
        there = {1: "there is one", 2: "there are two"}[wanted]
        print(f"the file has {number} critics (n_critics), and {there} here: {which}", file=sys.stderr)
    critics: list[Any] = [layers(weights, f"critic.qf{k % number}") for k in range(wanted)]
    named = _mlp("actor", hidden) | _layer("actor_out", out)
    if "actor.log_std" in weights:
        named["noise_matrix.log_std"] = weights["actor.log_std"]
    for k, pair in enumerate(zip(*critics, strict=True)):
        named[f"critics.weights.{k}"] = torch.stack([weight.t() for weight, _ in pair])
        named[f"critics.biases.{k}"] = torch.stack([bias.unsqueeze(0) for _, bias in pair])
    return named


def exported(algorithm: str, own: Weights, quantiles: int = 1) -> Weights:
    """The tensors with which a policy of Stable-Baselines3 acts as a policy of Headrace with this state_dict. Target
    networks are copies of the networks. Raises ValueError for hidden layers before an LSTM, since sb3-contrib has them
    after it."""
    if algorithm == "recurrent_ppo":
        if any(name.startswith("trunks") for name in own):
            raise ValueError(
                "sb3-contrib has the hidden layers after the LSTM, and Headrace before it: only models without them "
                "are written for it, policy_kwargs={'net_arch': []}"
            )
        return _lstm(own, "lstm_actor", 0) | _lstm(own, "lstm_critic", -1) | _outputs(own)
    if algorithm in ON_POLICY:
        hidden = _numbered("mlp_extractor.policy_net", _hidden(own, "actor"))
        return hidden | _numbered("mlp_extractor.value_net", _hidden(own, "critic")) | _outputs(own)
    if algorithm in DISCRETE:
        named = _numbered(ACTORS[algorithm], [*_hidden(own, "trunk"), _q_outputs(own, quantiles)])
        folder = ACTORS[algorithm].partition(".")[0]
        return named | {name.replace(folder, f"{folder}_target", 1): x for name, x in named.items()}
    named = _actor(algorithm, own)
    for number in range(len(own["critics.weights.0"])):
        named |= _numbered(f"critic.qf{number}", _critic(own, number), _norms(own, "critics", number))
    targets = {"crossq": (), "sac": ("critic",), "tqc": ("critic",)}.get(algorithm, ("actor", "critic"))
    for folder in targets:
        its = {name: x for name, x in named.items() if name.startswith(f"{folder}.")}
        named |= {name.replace(folder, f"{folder}_target", 1): x for name, x in its.items()}
    return named


def _hidden(own: Weights, name: str) -> list[tuple[Tensor, Tensor]]:
    """Weight and bias of each hidden layer of an MLP."""
    numbers = sorted(int(match[1]) for key in own if (match := re.fullmatch(rf"{name}\.layers\.(\d+)\.weight", key)))
    return [(own[f"{name}.layers.{k}.weight"], own[f"{name}.layers.{k}.bias"]) for k in numbers]


def _numbered(folder: str, layers: list[tuple[Tensor, Tensor]], norms: list[Weights] | None = None) -> Weights:
    """Name layers as in a torch.nn.Sequential with an activation after each layer, and with norms one before each."""
    step, first = (3, 1) if norms else (2, 0)
    named = {
        key: x for k, layer in enumerate(layers) for key, x in _layer(f"{folder}.{step * k + first}", layer).items()
    }
    return named | {f"{folder}.{3 * k}.{key}": x for k, norm in enumerate(norms or ()) for key, x in norm.items()}


def _norms(own: Weights, name: str, number: int | None = None) -> list[Weights]:
    """Convert batch renormalisation: running deviations become variances. number: the critic's."""
    found = list[Weights]()
    while f"{name}.norms.{len(found)}.std" in own:
        at = f"{name}.norms.{len(found)}"
        scale, bias, mean, std = (own[f"{at}.{part}"] for part in ("weight", "bias", "mean", "std"))
        if number is not None:
            scale, bias, mean, std = (x[number].flatten() for x in (scale, bias, mean, std))
        steps = own[f"{at}.batches"].to(torch.int64)
        found.append(
            {"scale": scale, "bias": bias, "ra_mean": mean, "ra_var": std.square() - RENORM_EPS, "steps": steps}
        )
    return found


def _lstm(own: Weights, name: str, copy: int) -> Weights:
    """Weights of a torch.nn.LSTM, [4 * size, inputs]."""
    weights = {f"{name}.weight_{a}h_l0": own[f"rnn.weight_{b}"][copy].t() for a, b in (("i", "input"), ("h", "hidden"))}
    return weights | {
        f"{name}.bias_{a}h_l0": own[f"rnn.bias_{b}"][copy, 0] for a, b in (("i", "input"), ("h", "hidden"))
    }


def _outputs(own: Weights) -> Weights:
    """Convert the last layers of an actor and a critic, and the deviation of Box actions."""
    names = {"action_net.weight": "actor_out.weight", "action_net.bias": "actor_out.bias", "log_std": "head.log_std"}
    names |= {"value_net.weight": "critic_out.weight", "value_net.bias": "critic_out.bias"}
    return {name: own[of_own] for name, of_own in names.items() if of_own in own}


def _q_outputs(own: Weights, quantiles: int) -> tuple[Tensor, Tensor]:
    """Convert the last layer of a Q-network: ordered by action here, by quantile in a file."""
    if quantiles == 1:
        return own["out.weight"], own["out.bias"]
    parts = own["out.of_all.weight"], own["out.of_all.bias"]
    weight, bias = (x.unflatten(0, (-1, quantiles)).transpose(0, 1).flatten(0, 1) for x in parts)
    return weight, bias


def _actor(algorithm: str, own: Weights) -> Weights:
    """Convert an actor of Box actions: Stable-Baselines3 has separate layers for means and deviations."""
    out = own["actor_out.weight"], own["actor_out.bias"]
    if algorithm in DETERMINISTIC:
        return _numbered(ACTORS[algorithm], [*_hidden(own, "actor"), out])
    named = _numbered("actor.latent_pi", _hidden(own, "actor"), _norms(own, "actor"))
    (mean, deviation), (bias, other) = (x.chunk(2) for x in out)
    return named | _layer("actor.mu", (mean, bias)) | _layer("actor.log_std", (deviation, other))


def _critic(own: Weights, number: int) -> list[tuple[Tensor, Tensor]]:
    """Weight and bias of each layer of one of the critics."""
    count = sum(name.startswith("critics.weights.") for name in own)
    pairs = ((own[f"critics.weights.{k}"], own[f"critics.biases.{k}"]) for k in range(count))
    return [(weight[number].t(), bias[number, 0]) for weight, bias in pairs]
