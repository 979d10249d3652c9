"""Threads that ask one policy at once get the answers that one thread gets: questions asked, and answers that differ.

    python -m benchmarks.bits.thread_stress         # 8 threads, 10,000 questions each, of every kind of policy
    python -m benchmarks.bits.thread_stress --threads 4 --questions 200 --only GRU

Appends the counts to results/reliability.jsonl (see reliability.py), and exits with 1 where an answer differs.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch

from benchmarks.common import HERE
from benchmarks.faults import reliability
from headrace.data.flat_dict import FlatDict
from headrace.data.spaces import Box, Discrete, MultiBinary
from headrace.policies.actor_critic import ActorCritic
from headrace.policies.actor_q import ActorQ
from headrace.policies.base import Policy
from headrace.policies.flat_parameters import flatten
from headrace.policies.q_network import QNetwork
from headrace.policies.recurrent import RecurrentActorCritic

VECTOR, IMAGE, FORCES = Box(-3, 3, (6,)), Box(0, 255, (12, 12, 1), np.uint8), Box(-1, 1, (3,))
MASKED = FlatDict({"observation": VECTOR, "action_mask": MultiBinary(4)})
POLICIES: dict[str, Callable[[], Policy]] = {
    "discrete": lambda: ActorCritic(VECTOR, Discrete(4)),
    "Gaussian": lambda: ActorCritic(VECTOR, FORCES, normalize_observation=True, normalize_return=True),
    "squashed": lambda: ActorCritic(VECTOR, FORCES, distribution="squashed"),
    "masked": lambda: ActorCritic(MASKED, Discrete(4)),
    "Q": lambda: QNetwork(VECTOR, Discrete(4)),
    "actor-Q": lambda: ActorQ(VECTOR, FORCES, (64, 64)),
    "GRU": lambda: RecurrentActorCritic(VECTOR, Discrete(4), "gru", 16),
    "LSTM": lambda: RecurrentActorCritic(VECTOR, FORCES, "lstm", 16),
    "images": lambda: ActorCritic(IMAGE, Discrete(4), (32,), images="small"),
}
ASKED = 64  # different questions of each kind


def questions(policy: Policy) -> list[tuple[Any, Any]]:
    """Single observations and batches of one to 80 rows, and recurrent states for them."""
    random = np.random.default_rng(0)
    found = []
    for number in range(ASKED):
        rows = (1, 3, 17, 64, 80)[number % 5]
        space = policy.observation_space
        shape = (rows, *(space.shape or ()))
        seen = random.integers(0, 255, shape) if space.dtype == np.uint8 else random.normal(size=shape)
        seen = seen.astype(space.dtype)
        if isinstance(space, FlatDict):
            seen[:, space.features :] = seen[:, space.features :] > 0
        state = policy.initial_state(rows)
        state = None if state is None else state.numpy()
        found.append((seen[0] if number % 10 == 0 else seen, state))
    return found


def stress(policy: Policy, threads: int, number: int) -> int:
    """Answers that differ, of `number` questions asked by each of some threads at the same time."""
    flatten(policy.parameters())  # as an optimizer does: kernels serve parameters in one buffer
    asked = questions(policy)
    expected = [policy.predict(*question) for question in asked]
    policy = deepcopy(policy)  # that nobody has asked: the first questions come at once, too
    flatten(policy.parameters())
    ready = threading.Barrier(threads)

    def ask(thread: int) -> int:
        ready.wait()
        wrong = 0
        for i in range(number):
            which = (i * 7 + thread * 13) % len(asked)
            wrong += not all(map(_same, policy.predict(*asked[which]), expected[which]))
        return wrong

    with ThreadPoolExecutor(threads) as pool:
        return sum(pool.map(ask, range(threads)))


def _same(one: Any, other: Any) -> bool:
    return one is None and other is None if one is None or other is None else bool((one == other).all())


def main() -> None:
    """Stress every kind of policy, and print a row for each."""
    flags = argparse.ArgumentParser()
    flags.add_argument("--threads", type=int, default=8)
    flags.add_argument("--questions", type=int, default=10_000, help="asked by each thread, of each kind of policy")
    flags.add_argument("--only", default="", help="kinds whose name contains this")
    flags.add_argument("--results", type=Path, default=HERE / "results")
    options = flags.parse_args()
    torch.set_num_threads(1)
    asked, different = 0, 0
    for name in [name for name in POLICIES if options.only in name]:
        started, number = perf_counter(), options.threads * options.questions
        wrong = stress(POLICIES[name](), options.threads, options.questions)
        print(f"{name:10} {number:9,} questions {wrong:6,} different {perf_counter() - started:7.1f} s", flush=True)
        asked, different = asked + number, different + wrong
    fault = f"questions that {options.threads} threads ask one policy at once, of every kind"
    row = reliability.empty(fault) | {"tried": asked, "survived": asked - different}
    reliability.append(options.results, "thread_stress", [row])
    sys.exit(different > 0)


if __name__ == "__main__":
    main()
