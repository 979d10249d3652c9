"""One algorithm learning one environment with one seed: started by algorithms.py in a fresh process for each."""

from __future__ import annotations

import argparse
import json

from benchmarks.common import versions


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("algorithm")
    flags.add_argument("env")
    flags.add_argument("--seed", type=int, default=0)
    flags.add_argument("--total-steps", type=int, help="instead of the environment's own")
    flags.add_argument("--episodes", type=int, default=100, help="of the evaluation")
    options = flags.parse_args()

    from headrace import Trainer, evaluate

    limits = {"total_steps": options.total_steps} if options.total_steps else {}
    trainer = Trainer(options.algorithm, options.env, seed=options.seed, **limits)
    while not (reason := trainer.reason_to_stop()):
        trainer.iterate()
    result = evaluate(trainer.policy, options.env, options.episodes, options.seed)
    row = {
        "algorithm": options.algorithm,
        "env": options.env,
        "seed": options.seed,
        "return": result.mean,
        "std": result.std,
        "steps": trainer.steps,
        "seconds": trainer.seconds,
        "stopped_by": reason,
        "versions": versions(),
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main()
