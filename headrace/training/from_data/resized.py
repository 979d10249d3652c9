"""Resume a run with another number of environments: the rows of its replay buffer are divided among them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gymnasium.spaces import Space

from headrace.algorithms.base import is_offline
from headrace.algorithms.off_policy import OffPolicy
from headrace.core.types import Json, StateDict
from headrace.data.rollout import Rollout
from headrace.training.from_data import first_rows

KEEP = {"recurrent": "none", "hindsight": 0, "learners": 1, "shards": 1, "self_play": False}


def check(algorithm: Any, settings: Json, state: StateDict, changed: Sequence[str]) -> None:
    """Raise ValueError for a training whose replay buffer is tied to its number of environments.

    settings: the saved settings, with given ones in their place. state: the learner's. changed: names of settings that
    changed."""
    what, name = " and ".join(changed), algorithm.name
    given = [f"{key}={settings[key]!r}" for key, usual in KEEP.items() if settings.get(key, usual) not in (usual, None)]
    if not isinstance(algorithm, OffPolicy) or is_offline(algorithm) or given or "ranks" in state:
        kind = f"{name} with {', '.join(given)}" if given else name
        raise ValueError(
            f"{what} cannot change on resuming with {kind}: algorithms that learn from rollouts, and those with a "
            "replay buffer of single rows, of one group of agents, go on with other sizes; begin another run with "
            "init_from"
        )


def refill(
    algorithm: Any, path: Path, spaces: tuple[Space, Space], like: Rollout, scale: float, before: Json
) -> StateDict:
    """Fill the replay buffer of an OffPolicy with the newest rows of a run's buffer, as far as it has room. Returns the
    state to continue from.

    like: a rollout of the present environments. scale: reward_scale. before: the saved settings and, as "state", the
    saved state of the algorithm. Iterations are counted as if all rollouts had had the present size."""
    state, replay = before["state"], algorithm.replay
    assert replay is not None
    room = (replay.length - 1 - replay.least) * replay.num_envs
    first_rows.fill(algorithm, str(path), spaces, scale, like, room)
    steps = before.get("train_freq") or before.get("num_steps") or algorithm.num_steps
    rows = int(state["iteration"]) * steps * len(state["replay"]["written"])
    own = algorithm.buffers
    # rates of random actions of each environment are set again after the first rollout: until then all have the first
    saved = state["buffers"].items()
    buffers = {name: x if x.shape == own[name].shape else x[:1].expand_as(own[name]) for name, x in saved}
    return {**state, "replay": None, "buffers": buffers, "iteration": -(-rows // algorithm.rows_per_iteration)}
