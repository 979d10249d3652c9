"""One training on CartPole-v1, and what its policy reaches meanwhile: started by return_over_time.py for each."""

from __future__ import annotations

import argparse
import json
import time
from importlib import import_module
from typing import Any

from benchmarks.common import Neighbours, versions
from benchmarks.judge import TASKS, Evaluation
from benchmarks.peers import ENV, WORKS, scheduled

EPISODES = 20
SOONEST, NEXT = 0.03, 1.12  # s before the first look, and the factor from one look's time to the next


class Curve:
    """Mean return of 20 deterministic episodes on Gymnasium's environment, at times that grow by a factor.

    Times begin when this is made, and leave out what the looks themselves take.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds, self.due = seconds, SOONEST
        self.points: list[dict[str, float]] = []
        task = TASKS[ENV]._replace(threshold=float("-inf"))  # no episode is given up
        self.evaluation = Evaluation(ENV, task, EPISODES)
        self.began, self.spent = time.perf_counter(), 0.0

    def over(self, steps: int, act: Any) -> bool:
        """Evaluate the policy when it is due, after an iteration. True when the time is up."""
        now = time.perf_counter()
        seconds = now - self.began - self.spent
        if seconds >= min(self.due, self.seconds):
            mean, _ = self.evaluation.mean(act)
            self.points.append({"seconds": seconds, "steps": steps, "mean_return": mean})
            self.due = NEXT * seconds
            self.spent += time.perf_counter() - now
        return seconds >= self.seconds


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("library", choices=("headrace", "sb3"))
    flags.add_argument("--config", choices=("own", *WORKS), required=True)
    flags.add_argument("--backend", default="auto")
    flags.add_argument("--seed", type=int, required=True)
    flags.add_argument("--seconds", type=float, required=True)
    options = flags.parse_args()
    neighbours = Neighbours()
    curve = train(options)
    about = {"seed": options.seed, "points": curve.points, "others_cpu": neighbours.busy()}
    print(json.dumps({**about, "versions": versions()}))


def train(options: argparse.Namespace) -> Curve:
    """The whole training; the clock starts after the imports."""
    peer = import_module(f"benchmarks.peers.ppo_{options.library}")
    curve = Curve(options.seconds)
    if options.config == "own":
        own(options, curve)
        return curve
    others = {"backend": options.backend} if options.library == "headrace" else {}
    peer.train(scheduled(options.config), options.seed, 1, curve.over, **others)
    return curve


def own(options: argparse.Namespace, curve: Curve) -> None:
    """Headrace with its own settings for the environment."""
    from headrace import Trainer

    trainer = Trainer("ppo", ENV, seed=options.seed, backend=options.backend)
    trainer.iterate()
    while not curve.over(trainer.steps, lambda observation: trainer.policy.predict(observation, deterministic=True)[0]):
        trainer.iterate()
    trainer.close()


if __name__ == "__main__":
    main()
