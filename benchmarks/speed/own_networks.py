"""Steps per second of trainings on compiled environments: Headrace's own network, the same one as a class of a user's,
other networks, and other losses; compiled, and in plain PyTorch, in turns in one process.

A turn is some iterations of a training, as `headrace train` runs them: collecting and learning. `of_own` compares with
Headrace's own network, and `over_plain` with the same training in plain PyTorch, of each of which a turn is taken next
to it: medians of the turns' ratios, because machines that are shared change their speed within a minute.
"""

from __future__ import annotations

import statistics
import time
from typing import Any, NamedTuple

import torch
from torch import nn

import headrace as hr
from benchmarks.common import Neighbours, Row, finish, parser, table
from headrace.algorithms import dqn, sac
from headrace.algorithms.ppo import ppo_loss
from headrace.core.fused import plain_only
from headrace.training.loop import looked_at_once

COLUMNS = ("training", "steps_per_s", "of_own", "plain", "over_plain")
FIXED: dict[str, Any] = {"num_envs": 256, "num_steps": 64, "minibatch_size": 2048, "epochs": 4}
FIXED |= {"normalize_observation": False, "normalize_return": False}


class Same(hr.ActorCritic):
    """Headrace's own network, as a class of a user's with a method of its own: no kernel was written for it."""

    def act(self, observation: Any, rnn_state: Any, random: Any) -> Any:
        return super().act(observation, rnn_state, random)


class Residual(hr.ActorCritic):
    """LayerNorm and a residual block in actor and critic."""

    def __init__(
        self,
        observation_space: Any,
        action_space: Any,
        hidden: Any = (64,),
        seed: int = 0,
        normalize_observation: bool = False,
        normalize_return: bool = False,
    ) -> None:
        more = {"normalize_observation": normalize_observation, "normalize_return": normalize_return}
        super().__init__(observation_space, action_space, hidden=hidden, seed=seed, **more)
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


def of_sac(networks: Any, batch: Any, config: Any) -> Any:
    """SAC's critics, and a penalty for large values."""
    loss, found = sac.critic_loss(networks, batch, config)
    policy = networks.policy
    values = policy.critics(policy.encoder(batch["observation"]), policy.normalize_action(batch["action"]))
    return loss + 0.01 * (values.square() @ batch["weight"]).sum(), found


def conservative(networks: Any, batch: Any, config: Any) -> Any:
    """DQN's loss, and the term of Kumar et al. 2020, eq. 4."""
    loss, found = dqn.dqn_loss(networks, batch, config)
    values = networks.policy(batch["observation"])
    taken = networks.policy.action_value(batch["observation"], batch["action"])
    return loss + 0.1 * ((values.logsumexp(0) - taken) @ batch["weight"]), found


class Actor(hr.ActorQ):
    """LayerNorm and a residual block in SAC's actor."""

    def __init__(self, observation_space: Any, action_space: Any, hidden: Any = (64, 64), seed: int = 0) -> None:
        super().__init__(observation_space, action_space, hidden=hidden, seed=seed)
        width = self.hidden[-1]
        self.actor = Block(nn.Linear(self.encoder.size, width), width)  # type: ignore[assignment]
        self.actor.norms = ()  # type: ignore[assignment]


class Case(NamedTuple):
    """A training. losses: in place of the algorithm's, by their names. registered: with the settings that Headrace has
    for the environment, whose rollouts are short."""

    settings: dict[str, Any]
    losses: dict[str, Any] = {}  # noqa: RUF012
    policy: Any = None
    algorithm: str = "ppo"
    env: str = "CartPole-v1"
    registered: bool = False

    @property
    def kind(self) -> tuple[str, bool]:
        """Key of the cases that are compared with each other."""
        return self.algorithm, self.registered


SMALL = {"hidden": (64, 64)}
REPLAY: dict[str, Any] = {"num_envs": 1, "num_steps": 64, "train_freq": 1, "learning_starts": 500, **SMALL}
GRU: dict[str, Any] = {"recurrent": "gru", "rnn_size": 64, "hidden": (64,), "sequence_length": 16}
ALL_STEPS = {"target_kl": 0.0}  # it would end updates after other numbers of steps
CASES = {
    "own network, 2 x 64": Case(SMALL),
    "the same as a user's class": Case(SMALL, policy=Same),
    "value penalty": Case(SMALL, {"loss": value_penalty}),
    "weight decay": Case(SMALL, {"loss": weight_decay}),
    "imitation": Case(SMALL, {"loss": imitation}),
    "residual, LayerNorm, 64": Case({"hidden": (64,)}, policy=Residual),
    "user's class, 2 x 256": Case({"hidden": (256, 256)}, policy=Same),
    "GRU of 64": Case(GRU),
    "LSTM of 64": Case(GRU | {"recurrent": "lstm"}),
    "GRU of 128": Case(GRU | {"rnn_size": 128, "hidden": (128,)}),
    "LSTM of 128": Case(GRU | {"recurrent": "lstm", "rnn_size": 128, "hidden": (128,)}),
    "SAC, 2 x 64": Case(REPLAY, algorithm="sac", env="Pendulum-v1"),
    "SAC, its own loss as a user's": Case(REPLAY, {"critic_loss": sac.critic_loss}, None, "sac", "Pendulum-v1"),
    "SAC, value penalty": Case(REPLAY, {"critic_loss": of_sac}, None, "sac", "Pendulum-v1"),
    "SAC, residual actor": Case(REPLAY, {}, Actor, "sac", "Pendulum-v1"),
    "DQN, 2 x 64": Case(REPLAY, algorithm="dqn"),
    "DQN, conservative": Case(REPLAY, {"loss": conservative}, None, "dqn"),
    "own network, registered settings": Case(ALL_STEPS, registered=True),
    "user's class, registered settings": Case(ALL_STEPS, policy=Same, registered=True),
    "value penalty, registered settings": Case(ALL_STEPS, {"loss": value_penalty}, registered=True),
}


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--only", default="", help="parts of names, separated by commas")
    flags.add_argument("--seconds", type=float, default=0.2, help="of a turn: short, for a machine changes its speed")
    flags.add_argument("--turns", type=int, default=15)
    options = flags.parse_args()
    if options.quick:
        options.seconds, options.turns = 0.05, 1
    neighbours, rows, own = Neighbours(), list[Row](), dict[Any, hr.Trainer]()
    for name, case in CASES.items():
        if any(part in name for part in options.only.split(",")):
            if case.kind not in own:
                own[case.kind] = trainer(next(c for c in CASES.values() if c.kind == case.kind), plain=False)
            rows.append({"training": name} | measure(case, own[case.kind], options))
            print(table(rows[-1:], COLUMNS), flush=True)
    finish("own_networks", rows, options, neighbours)


def measure(case: Case, own: hr.Trainer, options: Any) -> Row:
    """Steps per second of a training, compiled and plain, beside one with Headrace's own network."""
    ways = {"own": own, "ours": trainer(case, plain=False), "plain": trainer(case, plain=True)}
    found: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(options.turns + 1):  # the first compiles, and is not counted
        for way, each in ways.items():
            with plain_only(way == "plain"), looked_at_once(each, {}):
                took = steps_per_second(each, options.seconds)
            if turn:
                found[way].append(took)
    ratios = {way: [x / y for x, y in zip(found["ours"], found[way], strict=True)] for way in ("own", "plain")}
    return {
        "steps_per_s": statistics.median(found["ours"]),
        "of_own": statistics.median(ratios["own"]),
        "plain": statistics.median(found["plain"]),
        "over_plain": statistics.median(ratios["plain"]),
    }


def trainer(case: Case, plain: bool) -> hr.Trainer:
    """A training."""
    fixed = FIXED if case.algorithm == "ppo" and not case.registered else {}
    options = fixed | case.settings | {"policy": case.policy, "registered": case.registered, "seed": 0}
    with plain_only(plain):
        made = hr.Trainer(case.algorithm, case.env, total_steps=10**9, **options)
        for name, loss in case.losses.items():
            setattr(made.algorithm, name, loss)
        while case.algorithm != "ppo" and not made.algorithm.past_warm_up():  # type: ignore[attr-defined]
            made.iterate()
    return made


def steps_per_second(trainer: hr.Trainer, seconds: float) -> float:
    """Steps of environments in a second of iterations."""
    rollout, iterations, began, elapsed = trainer.collector.rollout, 0, time.perf_counter(), 0.0
    while elapsed < seconds:
        trainer.iterate()
        iterations += 1
        elapsed = time.perf_counter() - began
    return iterations * rollout.num_envs * rollout.num_steps / elapsed


if __name__ == "__main__":
    main()
