"""Do two checkouts learn the same bits? Weights are hashed after some updates of every algorithm on every kind of env.

    python -m benchmarks.bits.same_bits OLD NEW      # two checkouts, with the same Python
    python -m benchmarks.bits.same_bits . .          # one checkout against itself
    python -m benchmarks.bits.same_bits . . --threads 1 2 --only "ppo"

A setting that is called otherwise in the older checkout is found by RENAMED. Prints a line for each case that differs,
and exits with 1 where one does.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

RENAMED = {  # setting today -> the same setting in an older checkout
    "rnn_size": "memory_size",
    "utd_ratio": "update_ratio",
    "dueling": "duelling",
    "collection": "pace",
    "drop_slowest": "stragglers",
}
RENAMED_VALUES = {"sync": "together", "double_buffered": "halves", "async": "asynchronous"}
SMALL = {"hidden": (32, 32), "seed": 3}
ROLLOUTS = {"num_envs": 16, "num_steps": 16, **SMALL}  # of on-policy algorithms
REPLAY = {"num_envs": 8, "num_steps": 4, "learning_starts": 64, "buffer_size": 2000, "batch_size": 32, **SMALL}
SEQUENCES = {"recurrent": "gru", "rnn_size": 16, "sequence_length": 4, "burn_in": 2}
WORKERS = {"backend": "workers", "workers": 2}
ACTOR_CRITIC = ("ppo", "appo", "a2c", "impala", "reinforce", "trpo")
ON_POLICY, DISCRETE_REPLAY, BOX_REPLAY = (*ACTOR_CRITIC, "pqn"), ("dqn",), ("sac", "td3", "ddpg")
UPDATES = 12


def cases() -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Name -> algorithm, environment, settings."""
    found: dict[str, tuple[str, str, dict[str, Any]]] = {}
    for names, env, settings in (
        (ON_POLICY, "CartPole-v1", ROLLOUTS),
        (DISCRETE_REPLAY, "CartPole-v1", REPLAY),
        (BOX_REPLAY, "Pendulum-v1", REPLAY),
    ):
        for name in names:
            found[f"{name} kernel"] = name, env, settings
            found[f"{name} inline"] = name, env, {**settings, "backend": "inline"}
            found[f"{name} workers"] = name, env, {**settings, **WORKERS}
    for name in ACTOR_CRITIC:
        memory = {**ROLLOUTS, "recurrent": "gru", "rnn_size": 16}
        found[f"{name} gru"] = name, "CartPoleHidden", memory
        found[f"{name} Box"] = name, "Pendulum-v1", ROLLOUTS
    for name in DISCRETE_REPLAY:
        found[f"{name} gru"] = name, "CartPoleHidden", {**REPLAY, **SEQUENCES}
        found[f"{name} images"] = name, "PixelCatch", REPLAY
    for name in BOX_REPLAY:
        found[f"{name} gru"] = name, "PendulumHidden", {**REPLAY, **SEQUENCES}
        found[f"{name} images"] = name, "PixelPendulum", {**REPLAY, "batch_size": 8, "gradient_steps": 1}
    pursuit = {**ROLLOUTS, "num_envs": 8}
    tricks = {"dueling": True, "prioritized": True, "n_steps": 3, "double": True}
    return found | {
        "ppo lstm": ("ppo", "CartPoleHidden", {**ROLLOUTS, "recurrent": "lstm", "rnn_size": 16}),
        "ppo images": ("ppo", "PixelCatch", ROLLOUTS),
        "ppo wide": ("ppo", "CartPole-v1", {**ROLLOUTS, "hidden": (128, 128), "num_envs": 100, "shared": True}),
        "ppo squashed": ("ppo", "Pendulum-v1", {**ROLLOUTS, "distribution": "squashed", "layer_norm": True}),
        "ppo agents": ("ppo", "Pursuit", pursuit),
        "ppo groups": ("ppo", "Pursuit", {**pursuit, "group_by": "agents"}),
        "dqn tricks": ("dqn", "CartPole-v1", {**REPLAY, **tricks}),
        "sac wide": ("sac", "Pendulum-v1", {**REPLAY, "hidden": (256, 256), "batch_size": 256, "n_steps": 2}),
        "ppo double_buffered": ("ppo", "CartPole-v1", {**ROLLOUTS, **WORKERS, "collection": "double_buffered"}),
    }


def child(only: str) -> None:
    """Print the hash of the weights of each case, as the `headrace` on this process's path computes them."""
    import headrace

    for name, (algorithm, env, settings) in cases().items():
        # an older checkout may not have every algorithm
        if only in name and find_spec(f"headrace.algorithms.{algorithm}"):
            print(json.dumps([name, digest(headrace, algorithm, env, settings)]), flush=True)


def digest(headrace: Any, algorithm: str, env: str, settings: dict[str, Any]) -> str:
    """SHA-256 of all tensors of the policy after UPDATES updates, in the order of its state_dict()."""
    fixed = {"scale": False, "progress": "none", "device": "cpu", "total_steps": 100_000}
    trainer = headrace.Trainer(algorithm, env, **known(headrace, algorithm, {**settings, **fixed}))
    try:
        for _ in range(UPDATES):
            trainer.iterate()
        found = hashlib.sha256()
        for tensor in trainer.policy.state_dict().values():
            found.update(tensor.detach().cpu().contiguous().numpy().tobytes())
        return found.hexdigest()[:16]
    finally:
        trainer.close()


def known(headrace: Any, algorithm: str, settings: dict[str, Any]) -> dict[str, Any]:
    """The settings as this checkout calls them."""
    fields = set(headrace.TrainConfig.__dataclass_fields__)
    module = import_module(f"headrace.algorithms.{algorithm}")
    config = next(kind for name, kind in vars(module).items() if name.lower() == f"{algorithm}config")
    fields |= set(config.__dataclass_fields__)
    names = {name: name if name in fields else RENAMED.get(name, name) for name in settings}
    return {
        new: RENAMED_VALUES.get(settings[name], settings[name]) if new != name else settings[name]
        for name, new in names.items()
    }


def hashes(checkout: Path, threads: int, only: str) -> dict[str, str]:
    """Case -> hash, in a process that imports headrace from a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve()), "HEADRACE_THREADS": str(threads)}
    command = [sys.executable, str(Path(__file__).resolve()), "--child", "--only", only]
    done = subprocess.run(command, cwd=checkout, env=environment, stdout=subprocess.PIPE, text=True)
    found = dict(json.loads(line) for line in done.stdout.splitlines() if line.startswith("["))
    if done.returncode:
        raise SystemExit(f"{checkout} stopped after {list(found)[-1:]}: see above")
    return found


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    flags.add_argument("checkouts", nargs="*", type=Path, help="two folders that hold headrace/")
    flags.add_argument("--threads", nargs=2, type=int, default=(2, 2), help="of the kernels, in each of the two")
    flags.add_argument("--only", default="", help="cases whose name contains this")
    flags.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = flags.parse_args()
    if options.child:
        child(options.only)
        return
    if len(options.checkouts) != 2:
        flags.error("name two checkouts")
    pairs = zip(options.checkouts, options.threads, strict=True)
    old, new = (hashes(checkout, threads, options.only) for checkout, threads in pairs)
    different = [name for name in old if old[name] != new.get(name)]
    for name in different:
        print(f"{name}: {old[name]} and {new.get(name)}")
    print(f"{len(old) - len(different)} of {len(old)} cases have the same bits")
    sys.exit(bool(different) or not old)


if __name__ == "__main__":
    main()
