"""One library on one environment with one seed: started by any_env.py in a fresh process for each."""

from __future__ import annotations

import argparse
import json
from importlib import import_module

from benchmarks.common import versions
from benchmarks.returns.any_env_tasks import TASKS

PROGRAMS = {"headrace": "benchmarks.peers.any_headrace", "stable_baselines3": "benchmarks.peers.any_sb3"}


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("library", choices=PROGRAMS)
    flags.add_argument("--env", required=True, choices=TASKS)
    flags.add_argument("--seed", type=int, required=True)
    flags.add_argument("--seconds", type=float, required=True, help="of training, after which to give up")
    flags.add_argument("--throughput", action="store_true", help="measure steps a second, and evaluate nothing")
    flags.add_argument("--set", nargs="*", default=[], help="settings for Headrace")
    options = flags.parse_args()
    row = import_module(PROGRAMS[options.library]).train(options)
    print(json.dumps({"seed": options.seed, **row, "versions": versions()}))


if __name__ == "__main__":
    main()
