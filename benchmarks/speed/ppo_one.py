"""One library training PPO with one seed, timed: started by ppo_throughput.py in a fresh process for each."""

from __future__ import annotations

import argparse
import json
import os
import time
from importlib import import_module
from typing import Any

from benchmarks.common import Neighbours, cores, versions
from benchmarks.peers import PEERS, WORKS

CHUNK = 65_536  # steps a call, of a library that needs the number in advance
XLA = ("sbx", "rejax")  # take a thread for each core they see


class Stopwatch:
    """Steps a second from `warm` seconds after the end of the first iteration, which compiles, for `seconds`."""

    def __init__(self, warm: float, seconds: float) -> None:
        self.warm, self.seconds = warm, seconds
        self.made = time.perf_counter()
        self.first: float | None = None
        self.began: float | None = None
        self.row: dict[str, Any] = {}

    def over(self, steps: int, act: Any) -> bool:
        """Take the time after an iteration. True once enough time has passed."""
        now = time.perf_counter()
        if self.first is None:
            self.first = now
        elif self.began is not None and now - self.began >= self.seconds:
            elapsed = now - self.began
            others = self.neighbours.busy()
            self.row = {
                "sps": (steps - self.steps) / elapsed,
                "measured_s": elapsed,
                "first_iteration_s": self.first - self.made,
                "others_cpu": others,
            }
            return True
        if self.began is None and now - self.first >= self.warm:
            self.neighbours, self.steps, self.began = Neighbours(), steps, time.perf_counter()
        return False


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("library", choices=PEERS)
    flags.add_argument("--config", choices=WORKS, required=True)
    flags.add_argument("--seed", type=int, required=True)
    flags.add_argument("--threads", type=int, required=True)
    flags.add_argument("--num-envs", type=int, help="in place of those of the config")
    flags.add_argument("--minibatch-size", type=int, help="in place of that of the config")
    flags.add_argument(
        "--every", type=int, default=CHUNK, help="steps a call, of a library that needs the number in advance"
    )
    flags.add_argument("--warm", type=float, required=True)
    flags.add_argument("--seconds", type=float, required=True)
    options = flags.parse_args()
    if options.library in XLA and options.threads < cores():
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])
    peer = import_module(f"benchmarks.peers.ppo_{options.library}")
    stopwatch = Stopwatch(options.warm, options.seconds)
    given = {"num_envs": options.num_envs, "minibatch_size": options.minibatch_size}
    work = WORKS[options.config]._replace(**{name: value for name, value in given.items() if value})
    facts = peer.train(work, options.seed, options.every, stopwatch.over)
    about = {"library": options.library, "config": options.config, "seed": options.seed, "threads": options.threads}
    print(json.dumps({**about, **stopwatch.row, "work": facts, "versions": versions()}))


if __name__ == "__main__":
    main()
