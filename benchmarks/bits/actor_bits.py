"""The weights after 50 updates do not depend on who collects: the SHA-256 of the weights by mode and number of actors.

Synchronous actors and workers must give the bits of one process, whatever their number. Overlapped ones learn from
rollouts of the policy before, so they give other bits: the same for any number of actors. Each training is a row of
results/actor_bits.jsonl; those that are there already are not run again, so that the program can be stopped.

    python -m benchmarks.bits.actor_bits                # two minutes; prints the table of docs/parallel.md
    python -m benchmarks.bits.actor_bits --only dqn     # cases whose name contains this
    python -m benchmarks.bits.actor_bits --again        # all of them again

Exits with 1 where bits differ that must be the same.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks import common

UPDATES, QUICK = 50, 30  # DQN and SAC only collect in the first two
COMMON = {"progress": "none", "target_return": None, "threads": 1, "seed": 1, "scale": False, "num_envs": 8}
OFF_POLICY = {"learning_starts": 64, "buffer_size": 10_000}
GYMNASIUM = {"backend": "inline"}
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "ppo, CartPole": ("ppo", "CartPole-v1", {}),
    "ppo, Gymnasium's CartPole": ("ppo", "CartPole-v1", GYMNASIUM),
    "ppo, Pendulum": ("ppo", "Pendulum-v1", {}),
    "ppo, PixelCatch": ("ppo", "PixelCatch", {"num_steps": 16, "minibatch_size": 64}),
    "a2c, recurrent, CartPoleHidden": ("a2c", "CartPoleHidden", {"recurrent": "gru", "num_steps": 16}),
    "dqn, CartPole": ("dqn", "CartPole-v1", OFF_POLICY | {"num_steps": 4}),
    "sac, Pendulum": ("sac", "Pendulum-v1", OFF_POLICY | {"num_steps": 4}),
    "ppo, Pursuit, two groups": ("ppo", "Pursuit", {"group_by": "agents"}),
}
ACTORS = (1, 2, 4)
MODES = (("inline", 0), ("workers", 2), *((mode, actors) for mode in ("sync", "overlapped") for actors in ACTORS))
Key = tuple[str, str, int]  # case, mode, processes


def bits(case: str, mode: str, processes: int, updates: int) -> str:
    """The SHA-256 of all that a training has learned: parameters, and the normalisers' statistics."""
    import torch

    from headrace.training.trainer import Trainer

    algorithm, env, options = CASES[case]
    how: dict[str, Any] = {"actors": processes, "collection": mode} if mode in ("sync", "overlapped") else {}
    if mode == "workers":
        how = {"backend": "workers", "workers": processes}
    trainer = Trainer(algorithm, env, **COMMON | options | how)
    try:
        for _ in range(updates):
            trainer.iterate()
        digest = hashlib.sha256()
        for tensor in (*trainer.policy.parameters(), *trainer.policy.buffers()):
            digest.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
        return digest.hexdigest()
    finally:
        trainer.close()


def wanted(only: str) -> list[Key]:
    """List of the runs to make. Workers step Gymnasium's environments alone."""
    return [
        (case, mode, processes)
        for case, (_, _, options) in CASES.items()
        for mode, processes in MODES
        if only in case and (mode != "workers" or options is GYMNASIUM)
    ]


def known(file: Path, updates: int) -> dict[Key, str]:
    """The results of a file for so many updates, the last of each."""
    return {
        (row["case"], row["mode"], row["processes"]): row["sha256"]
        for row in common.read_rows(file)
        if row["updates"] == updates and row["machine"]["cpu"] == common.machine()["cpu"]
    }


def run(key: Key, updates: int, file: Path) -> str:
    """Train, append the row, and give the hash."""
    case, mode, processes = key
    began = time.perf_counter()
    found = bits(*key, updates)
    row = {"case": case, "mode": mode, "processes": processes, "updates": updates, "sha256": found}
    row |= {
        "seconds": round(time.perf_counter() - began, 1),
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    with open(file, "a") as rows:
        rows.write(json.dumps(row | {"machine": common.machine()}) + "\n")
    return found


def table(found: dict[Key, str]) -> str:
    """The first eight digits of the hashes, in Markdown."""
    names = [mode if mode == "inline" else f"{mode}, {processes}" for mode, processes in MODES]
    names[0] = "one process"
    lines = [f"| | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for case in dict.fromkeys(case for case, _, _ in found):
        hashes = [found.get((case, *mode), "")[:8] for mode in MODES]
        lines.append(f"| {case} | {' | '.join(hashes)} |")
    return "\n".join(lines)


def differing(found: dict[Key, str]) -> list[str]:
    """Describe results that must be the same and are not, or that must differ and are the same."""
    wrong = []
    for case in dict.fromkeys(case for case, _, _ in found):
        groups: dict[bool, set[str]] = {False: set(), True: set()}
        for (other, mode, _), digest in found.items():
            if other == case:
                groups[mode == "overlapped"].add(digest)
        for overlapped, digests in groups.items():
            if len(digests) > 1:
                wrong.append(f"{case}: {'overlapped' if overlapped else 'sync'} gave {len(digests)} different weights")
        if groups[True] & groups[False]:
            wrong.append(f"{case}: overlapped learned from rollouts of the same policy as sync")
    return wrong


def main() -> None:
    """Run what is missing, and print the table."""
    flags = common.parser(__doc__ or "")
    flags.add_argument("--only", default="", help="cases whose name contains this")
    flags.add_argument("--again", action="store_true", help="run those that are in the results, too")
    options: argparse.Namespace = flags.parse_args()
    file, keys, updates = options.results / "actor_bits.jsonl", wanted(options.only), UPDATES
    if options.quick:
        keys, updates = [key for key in keys if key[0] == "dqn, CartPole" and key[2] < 4], QUICK
    before = {} if options.again else known(file, updates)
    found = {}
    for key in keys:
        found[key] = before.get(key) or run(key, updates, file)
        print(*key, found[key][:8], file=sys.stderr, flush=True)
    print(table(found))
    wrong = differing(found)
    print("\n".join(wrong) or "all as they should be")
    raise SystemExit(bool(wrong))


if __name__ == "__main__":
    main()
