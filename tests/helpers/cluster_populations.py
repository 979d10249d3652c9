"""Populations on Ray clusters, in a process of its own: `python cluster_populations.py NAME` prints what came of it, as
JSON."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

from helpers.cluster_runs import until

POPULATION = {"num_envs": 4, "num_steps": 16, "hidden": (8,), "registered": False, "interval": 300}


def populations(folder: str) -> dict:
    """A population on a cluster and without one; on a cluster whose first worker dies; and one that is interrupted."""
    from headrace.populations.population_record import RECORD
    from headrace.populations.train_population import population
    from headrace.runs import checkpoint

    own = {"mutate": {"learning_rate": "1e-5..1e-2"}, "members": 3, "total_steps": 900, **POPULATION}

    def trained(name: str, **options: Any) -> list:
        found = population("ppo", "CartPole-v1", folder=f"{folder}/{name}", **own, **options)
        policies = [load_last(member.path) for member in sorted(found.members, key=lambda one: one.number)]
        rows = [json.loads(line) for line in (Path(folder) / name / RECORD).read_text().splitlines()]
        decided = [row for row in rows if "decisions" in row]
        results = sorted(
            (row["interval"], row["member"], row["score"]) for row in rows if "score" in row and "member" in row
        )
        return [policies, decided, results]

    def load_last(path: Path) -> str:
        state = checkpoint.load(path / "last", "training")["learner"]
        return hashlib.sha256(b"".join(x.numpy().tobytes() for x in tensors(state))).hexdigest()

    def tensors(state: Any) -> list:
        if isinstance(state, dict):
            return [x for key in sorted(state) for x in tensors(state[key])]
        return [state] if hasattr(state, "numpy") else []

    whole = trained("whole")
    found: dict[str, Any] = {"same": trained("cluster", cluster="local") == whole}
    found["one at a time"] = trained("one", cluster="local", jobs=1) == whole
    found["killed"] = trained("killed", cluster="local", each=partial(dies_once, f"{folder}/died")) == whole
    found["died"] = Path(f"{folder}/died").exists()
    command = [sys.executable, "-m", "headrace", "population", "ppo", "CartPole-v1", "--cluster", "local"]
    command += ["--mutate", "learning_rate=1e-5..1e-2", "--members", "3", "--total-steps", "900", "--interval", "300"]
    command += [
        "--num-envs",
        "4",
        "--num-steps",
        "16",
        "--hidden",
        "8",
        "--no-registered",
        "--folder",
        f"{folder}/stopped",
    ]
    process, record = subprocess.Popen(command, stdout=subprocess.PIPE, text=True), Path(folder) / "stopped" / RECORD
    until(lambda: record.exists() and '"score"' in record.read_text().partition("decisions")[2], 600)
    process.terminate()
    found["said"] = process.communicate()[0]
    found["rows"] = len(record.read_text().splitlines())
    found["gone on"] = trained("stopped") == whole
    return found


def dies_once(flag: str, training: Any, row: Any) -> None:
    """Kill this process in the first of all iterations."""
    if not Path(flag).exists():
        Path(flag).touch()
        os.kill(os.getpid(), 9)


if __name__ == "__main__":
    name, *arguments = sys.argv[1:]
    print(json.dumps(globals()[name](*arguments)), flush=True)
