"""The trainings of kill_runs.py: one goes on in a process of its own, and saves every 0.2 s."""

from __future__ import annotations

from pathlib import Path
from typing import Any

SAVE_EVERY = 0.2  # s
ROWS = 256  # of a replay buffer in a piece: a short run has several
COMMON = {"progress": "none", "target_return": None, "threads": 1, "hidden": (16,), "seed": 3, "scale": False}
KINDS: dict[str, dict[str, Any]] = {
    "ppo": {"env": "CartPole-v1", "num_envs": 32, "num_steps": 64, "total_steps": 300_000},
    "recurrent": {"env": "CartPoleHidden", "num_envs": 16, "num_steps": 16, "recurrent": "gru", "total_steps": 4_000},
    "sac": {"env": "Pendulum-v1", "num_envs": 4, "buffer_size": 20_000, "total_steps": 1_000},
    "dqn": {"env": "CartPole-v1", "num_envs": 8, "buffer_size": 20_000, "total_steps": 8_000},
    "workers": {"env": "CartPole-v1", "num_envs": 8, "num_steps": 32, "backend": "workers", "workers": 2},
}
KINDS["workers"]["total_steps"] = 8_000
ACTORS = {
    f"{kind}_{collection}": {**KINDS[kind], "actors": 2, "collection": collection}
    for kind in ("ppo", "recurrent", "sac", "dqn")
    for collection in ("sync", "overlapped")
}
ACTORS |= {
    f"{kind}_async": {**KINDS[{"appo": "ppo"}.get(kind, kind)], "actors": 2, "collection": "async"}
    for kind in ("appo", "sac", "dqn")
}
KINDS |= ACTORS


def train(kind: str, folder: Path, resumed: Path | None = None) -> None:
    """Train into a folder, or resume a run, to the end."""
    import headrace as hr
    from headrace.data import pieces
    from headrace.runs import recorder

    recorder.SAVE_EVERY, recorder.SAVE_SHARE, pieces.ROWS = SAVE_EVERY, 1e9, ROWS
    if resumed:
        hr.train(resume=resumed, progress="none")
    else:
        hr.train(algorithm(kind), log_folder=str(folder), **COMMON, **KINDS[kind])


def algorithm(kind: str) -> str:
    """The name of a training's algorithm."""
    first = kind.partition("_")[0]
    return {"recurrent": "ppo", "workers": "ppo", "gymnasium": "ppo"}.get(first, first)
