"""Samples a second on the CPU: PPO's learning call and acting, the kernels compared with plain torch.

Both do the same work on the same rollout: all epochs and minibatches of one learning call, with clipping and Adam; or
one decision for N observations, sampled. The kernels' results equal torch's within rounding (tested).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import NamedTuple

import torch

from benchmarks.common import Neighbours, Row, cores, finish, parser, table, throughput
from headrace.algorithms import ppo
from headrace.algorithms.on_policy import Targets
from headrace.algorithms.ppo import PPO, PPOConfig
from headrace.core import fused
from headrace.data.rollout import Rollout
from headrace.data.spaces import Box, Discrete, action_column, env_columns


class Case(NamedTuple):
    """Case that is measured. rows: of the rollout, or observations that are acted on at once (then minibatch is 0)."""

    task: str
    rows: int
    minibatch: int
    hidden: tuple[int, ...] = (64, 64)
    activation: str = "tanh"
    quick: bool = False


CASES = [
    Case("learn", 256, 256, quick=True),
    Case("learn", 8192, 256),
    Case("learn", 8192, 2048, quick=True),
    Case("learn", 32768, 4096),
    Case("learn", 8192, 2048, (32, 32)),
    Case("learn", 8192, 2048, (128, 128)),
    Case("learn", 8192, 2048, (256, 256)),
    Case("learn", 8192, 2048, (64, 64), "relu"),
    Case("learn", 8192, 2048, (64, 64), "gelu"),
    *(Case("act", rows, 0, quick=rows == 64) for rows in (1, 64, 1024, 16_384)),
]
OBSERVATIONS, CHOICES, EPOCHS = 4, 2, 4
COLUMNS = ("task", "rows", "minibatch", "hidden", "activation", "backend", "threads", "sps", "sps_min", "others_cpu")


def main() -> None:
    flags = parser(__doc__.splitlines()[0])
    flags.add_argument("--seconds", type=float, default=0.5, help="of each of the three windows")
    options = flags.parse_args()
    if options.quick:
        options.seconds = 0.02
    neighbours, rows = Neighbours(), list[Row]()
    for case in CASES:
        if options.quick and not case.quick:
            continue
        for backend in ("torch", "kernel"):
            for threads in sorted({1, cores()}):
                rows.append(measure(case, backend, threads, options.seconds))
                print(table(rows[-1:], COLUMNS).splitlines()[-1], flush=True)
    print(table(rows, COLUMNS))
    print(f"sps: samples a second, median of three windows; a learning call goes {EPOCHS} times over its rows")
    finish("learn_cpu", rows, options, neighbours)


def measure(case: Case, backend: str, threads: int, seconds: float) -> Row:
    """Throughput of one case."""
    torch.set_num_threads(threads)
    os.environ["HEADRACE_THREADS"] = str(threads)
    call, samples = work(case)
    busy = Neighbours()
    with fused.plain_only() if backend == "torch" else contextlib.nullcontext():
        result = throughput(call, samples, seconds)
    described = case._asdict() | {"hidden": "x".join(map(str, case.hidden))}
    del described["quick"]
    library = {"library": "headrace" if backend == "kernel" else "torch", "config": case.task}
    return {**library, **described, "backend": backend, "threads": threads, **result, "others_cpu": busy.busy()}


def work(case: Case) -> tuple[Callable[[], object], int]:
    """A call to measure, and how many samples it works on."""
    observations, actions = Box(-1, 1, (OBSERVATIONS,)), Discrete(CHOICES)
    config = PPOConfig(
        epochs=EPOCHS, minibatch_size=case.minibatch or 64, hidden=case.hidden, activation=case.activation
    )
    learner = PPO.build(config, observations, actions, 0, "cpu")
    if case.task == "act":
        seen = torch.randn(OBSERVATIONS, case.rows).t()
        noise = torch.rand(case.rows, learner.policy.num_draws)
        return torch.no_grad()(lambda: learner.policy.act(seen, None, noise)), case.rows
    columns = env_columns(observations) | {"action": action_column(actions)} | learner.columns()
    rollout = Rollout(case.rows // 32, 32, columns)
    rollout.observation.copy_(torch.randn(rollout.observation.shape))
    rollout.valid.fill_(True)
    rollout.log_prob.fill_(-0.69)
    rollout.action.copy_(torch.randint(0, CHOICES, rollout.action.shape))
    advantage, returns = torch.randn(rollout.reward.shape), torch.randn(rollout.reward.shape)
    order = torch.stack([torch.randperm(case.rows) for _ in range(EPOCHS)])
    arguments = (
        learner.policy,
        learner.optimizer,
        rollout,
        Targets(advantage, returns, rollout.valid[:-1]),
        order,
        config,
    )
    return lambda: ppo.learn(*arguments), case.rows * EPOCHS


if __name__ == "__main__":
    main()
