"""Other libraries' PPO on the same work as ours: a file for each, `ppo_<library>.py`, all with the same function.

    train(work, seed, every, after) -> facts

trains on CartPole-v1 until after(steps, act) is true, which is asked after every iteration, or after every `every`
steps where the library has to be told beforehand. steps: of the environment so far; act(observations [N, 4]) ->
actions [N], deterministic. facts: what the library's own objects say they did, to see that the work was the same.
Importing a file imports its library, so that a clock started afterwards has training alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

Act = Callable[[Any], Any]
After = Callable[[int, Act], bool]
ENV = "CartPole-v1"


class Work(NamedTuple):
    """One PPO on CartPole-v1: actor and critic apart, tanh, Adam. Everybody is given the same."""

    num_envs: int
    num_steps: int  # of each environment in a rollout
    minibatch_size: int
    epochs: int
    gamma: float
    gae_lambda: float
    entropy_coef: float
    learning_rate: float = 1e-3
    clip: float = 0.2
    value_coef: float = 0.5
    max_grad_norm: float = 0.5
    hidden: tuple[int, ...] = (64, 64)
    falling_over: int | None = None  # steps over which learning rate and clip fall to 0; None: they do not

    @property
    def minibatches(self) -> int:
        """Number of minibatches in an epoch."""
        return self.num_envs * self.num_steps // self.minibatch_size


WORKS = {
    "large": Work(256, 32, 2048, 4, gamma=0.99, gae_lambda=0.95, entropy_coef=0.01),
    "zoo": Work(8, 32, 256, 20, gamma=0.98, gae_lambda=0.8, entropy_coef=0.0),  # SB3's zoo, without its schedule
}
BUDGET = 100_000  # steps over which the zoo's learning rate and clip fall to 0


def scheduled(config: str) -> Work:
    """A work with the schedules it was tuned with: the zoo's (rejax has no such schedules, and Headrace's clip does not
    fall)."""
    return WORKS[config]._replace(falling_over=BUDGET) if config == "zoo" else WORKS[config]


class Peer(NamedTuple):
    """Place where a library is found."""

    module: str  # that must be importable
    home: str  # virtual environment of setup.sh that has it
    label: str  # in tables and figures


PEERS = {
    "headrace": Peer("headrace", "", "Headrace"),
    "sb3": Peer("stable_baselines3", "torch", "Stable-Baselines3"),
    "sbx": Peer("sbx", "jax", "SBX"),
    "cleanrl": Peer("torch", "torch", "plain torch, CleanRL's style"),
    "compiled": Peer("torch", "torch", "torch.compile, LeanRL's style"),
    "rlox": Peer("rlox", "rlox", "rlox"),
    "rejax": Peer("rejax", "rejax", "rejax"),
}


def facts(
    num_envs: int, num_steps: int, minibatch_size: int, epochs: int, discounts: tuple[float, float], parameters: int
) -> dict[str, Any]:
    """Quantities that have to be equal for a ratio of throughputs to mean something. discounts: gamma, lambda."""
    gamma, gae_lambda = (round(float(x), 6) for x in discounts)
    amounts = {"num_envs": num_envs, "num_steps": num_steps, "minibatch_size": minibatch_size, "epochs": epochs}
    return {name: int(n) for name, n in amounts.items()} | {
        "gamma": gamma,
        "gae_lambda": gae_lambda,
        "parameters": int(parameters),
    }
