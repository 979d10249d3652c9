"""One library solving one environment with one seed: started by solve.py in a fresh process for each."""

from __future__ import annotations

import argparse
import ast
import json
from importlib import import_module
from typing import Any

from benchmarks.common import process_start, versions
from benchmarks.judge import TASKS, Judge
from benchmarks.peers import ENV, PEERS, WORKS, scheduled

START = process_start()


def headrace(options: argparse.Namespace) -> Judge:
    """Headrace's PPO with its defaults for the environment, and what --set says otherwise."""
    import llvmlite.binding  # noqa: F401  loaded when first used, but an import all the same

    from headrace import Trainer

    judge = Judge(options.env, START, options.max_steps)
    trainer = Trainer("ppo", options.env, seed=options.seed, **dict(map(setting, options.set)))
    while True:
        trainer.iterate()
        if judge.check(trainer.steps, lambda observation: trainer.policy.predict(observation, deterministic=True)[0]):
            return judge


def setting(text: str) -> tuple[str, Any]:
    """'learning_rate=1e-3' -> ('learning_rate', 0.001)."""
    name, _, value = text.partition("=")
    try:
        return name, ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return name, value


def equal_work(options: argparse.Namespace) -> Judge:
    """Any library on the settings that all are given alike (peers/__init__.py)."""
    if options.env != ENV:
        raise SystemExit(f"the settings {options.config!r} are for {ENV}, not for {options.env}")
    peer = import_module(f"benchmarks.peers.ppo_{options.library}")
    judge = Judge(options.env, START, options.max_steps)
    peer.train(scheduled(options.config), options.seed, TASKS[ENV].check_every, judge.check)
    return judge


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("library", choices=PEERS)
    flags.add_argument("--env", required=True)
    flags.add_argument("--seed", type=int, required=True)
    flags.add_argument("--config", choices=WORKS, help="settings that all are given alike; Headrace needs none")
    flags.add_argument("--set", nargs="*", default=[])
    flags.add_argument("--max-steps", type=int)
    options = flags.parse_args()
    judge = equal_work(options) if options.config else headrace(options)
    about = {"library": options.library, "algorithm": "ppo", "config": options.config, "env": options.env}
    print(json.dumps({**about, "seed": options.seed, **judge.row(), "versions": versions()}))


if __name__ == "__main__":
    main()
