"""Steps per second of PPO on a compiled environment: Headrace's own network, the same one as a class of a user's, other
networks, and other losses; compiled, and in plain PyTorch, in turns in one process.

A turn is some iterations of a training: collecting and learning. `of_own` compares with Headrace's own network, and
`over_plain` with the same training in plain PyTorch, of which a turn is taken after each.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch
from common import Neighbours, Row, finish, parser, table
from torch import nn

import headrace as hr
from headrace.algorithms.ppo import PPO, ppo_loss
from headrace.core.fused import plain_only

COLUMNS = ("training", "steps_per_s", "of_own", "plain", "over_plain")
FIXED: dict[str, Any] = {"num_envs": 256, "num_steps": 64, "minibatch_size": 2048, "epochs": 4}
FIXED |= {"normalize_observation": False, "normalize_return": False}


class Same(hr.ActorCritic):
    """Headrace's own network, as a class of a user's: no kernel was written for it."""


class Residual(hr.ActorCritic):
    """LayerNorm and a residual block in actor and critic."""

    def __init__(self, observation_space: Any, action_space: Any, hidden: Any = (64,), seed: int = 0) -> None:
        super().__init__(observation_space, action_space, hidden=hidden, seed=seed)
        self.actor, self.critic = (Block(part, hidden[-1]) for part in (self.actor, self.critic))


class Block(nn.Module):
    """A layer, and one around it."""

    def __init__(self, inner: nn.Module, size: int) -> None:
        super().__init__()
        self.inner, self.norm, self.linear = inner, nn.LayerNorm(size), nn.Linear(size, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.inner(x)
        return x + nn.functional.silu(self.linear(self.norm(x)))


def value_penalty(policy: Any, batch: Any, config: Any) -> Any:
    """PPO's loss, and a penalty for large values."""
    loss, metrics = ppo_loss(policy, batch, config)
    return loss + 0.01 * (policy(batch["inputs"])[1].square() @ batch["weight"]), metrics


def weight_decay(policy: Any, batch: Any, config: Any) -> Any:
    """PPO's loss, and a penalty for large weights."""
    loss, metrics = ppo_loss(policy, batch, config)
    return loss + 1e-4 * sum(p.square().sum() for p in policy.parameters()), metrics


def imitation(policy: Any, batch: Any, config: Any) -> Any:
    """PPO's loss, and the likelihood of the actions taken where they did well."""
    loss, metrics = ppo_loss(policy, batch, config)
    log_prob = policy.log_prob_entropy_value(batch["inputs"], batch["action"]).log_prob
    return loss - 0.01 * ((log_prob * batch["advantage"].clamp(min=0)) @ batch["weight"]), metrics


CASES: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "own network, 2 x 64": (None, None, {"hidden": (64, 64)}),
    "the same as a user's class": (Same, None, {"hidden": (64, 64)}),
    "value penalty": (None, value_penalty, {"hidden": (64, 64)}),
    "weight decay": (None, weight_decay, {"hidden": (64, 64)}),
    "imitation": (None, imitation, {"hidden": (64, 64)}),
    "residual, LayerNorm, 64": (Residual, None, {"hidden": (64,)}),
    "user's class, 2 x 256": (Same, None, {"hidden": (256, 256)}),
    "GRU of 64": (None, None, {"recurrent": "gru", "rnn_size": 64, "hidden": (64,), "sequence_length": 16}),
    "LSTM of 64": (None, None, {"recurrent": "lstm", "rnn_size": 64, "hidden": (64,), "sequence_length": 16}),
}


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--only", default="", help="parts of names, separated by commas")
    flags.add_argument("--seconds", type=float, default=1.0, help="of a turn")
    flags.add_argument("--turns", type=int, default=3)
    options = flags.parse_args()
    if options.quick:
        options.seconds, options.turns = 0.05, 1
    neighbours, rows = Neighbours(), list[Row]()
    for name, (policy, loss, settings) in CASES.items():
        if any(part in name for part in options.only.split(",")):
            rows.append({"training": name} | measure(policy, loss, settings, options))
            rows[-1]["of_own"] = rows[-1]["steps_per_s"] / rows[0]["steps_per_s"]
            print(table(rows[-1:], COLUMNS), flush=True)
    finish("own_networks", rows, options, neighbours)


def measure(policy: Any, loss: Any, settings: dict[str, Any], options: Any) -> Row:
    """Steps per second of a training, compiled and plain: medians over turns."""
    ways = {plain: trainer(policy, loss, settings, plain) for plain in (False, True)}
    found: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(options.turns + 1):  # the first compiles, and is not counted
        for plain, each in ways.items():
            with plain_only(plain):
                took = steps_per_second(each, options.seconds)
            if turn:
                found[plain].append(took)
    ours, plain = (statistics.median(found[way]) for way in (False, True))
    return {"steps_per_s": ours, "plain": plain, "over_plain": ours / plain}


def trainer(policy: Any, loss: Any, settings: dict[str, Any], plain: bool) -> hr.Trainer:
    """A training of PPO."""
    with plain_only(plain):
        made = hr.Trainer("ppo", "CartPole-v1", policy=policy, seed=0, **FIXED, **settings)
    algorithm = made.algorithm
    assert isinstance(algorithm, PPO)
    algorithm.loss = loss
    return made


def steps_per_second(trainer: hr.Trainer, seconds: float) -> float:
    """Steps of environments in a second of iterations."""
    iterations, began, elapsed = 0, time.perf_counter(), 0.0
    while elapsed < seconds:
        trainer.iterate()
        iterations += 1
        elapsed = time.perf_counter() - began
    return iterations * FIXED["num_envs"] * FIXED["num_steps"] / elapsed


if __name__ == "__main__":
    main()
