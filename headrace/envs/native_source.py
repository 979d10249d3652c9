"""Choose compiled loops in place of Gymnasium, with the same episodes, for MuJoCo's tasks."""

from __future__ import annotations

import importlib.util
from typing import Any

from headrace.core.types import Json, Settings
from headrace.envs.construct import entry_of
from headrace.envs.registry import Source
from headrace.envs.sources import MUJOCO, EnvSpec

PAYS = 8  # least number of environments for which compiled loops are faster than Gymnasium
LIGHT = ("InvertedPendulum", "InvertedDoublePendulum", "Reacher")  # tasks with too little physics for compiled loops
# options of make() that compiled loops have, or do not need
OWN = ("time_limit", "env_kwargs", "step_timeout", "first_env", "log_info")


def native(source: Source | None, num_envs: int, options: Settings) -> tuple[Any, Json, str]:
    """A source with the episodes of `source`, its options, and a message.

    The source is `mujoco/<id>` where the compiled loops support the task and are faster; otherwise it is `source`
    itself. The message says which was chosen, or which options the loops lack. It is empty if there is nothing to
    report.

    options: of make(), and others that are about environments. Those that are empty, None or the default do not count.
    """
    same = source, {**options}, ""
    if not isinstance(source, str) or not source.endswith("-v5") or source.startswith((*LIGHT, MUJOCO)):
        return same
    entry: Any = entry_of(source)
    if not isinstance(entry, EnvSpec) or num_envs < PAYS or importlib.util.find_spec("mujoco") is None:
        return same
    if ".mujoco." not in str(entry.entry_point):
        return same
    from headrace.envs.vector.mujoco import NOT_TAKEN, is_own  # which loads what compiles

    if not is_own(entry):
        return same
    arguments = {**(options.get("env_kwargs") or {})}
    lacking = [name for name, value in options.items() if name not in OWN and value not in DEFAULTS]
    lacking += [name for name in arguments if name in NOT_TAKEN]
    if lacking:
        return *same[:2], f"{source} is stepped by Gymnasium: compiled loops have no {', '.join(lacking)}"
    if (limit := options.get("time_limit")) is not None:
        arguments = {"max_episode_steps": limit, **arguments}
    line = f"{source} is stepped by compiled loops that call MuJoCo, as {MUJOCO}{entry.id}: the same episodes; with "
    own = {**options, "time_limit": None, "env_kwargs": arguments}
    return MUJOCO + entry.id, own, f"{line}backend='inline' Gymnasium steps it"


DEFAULTS: tuple[Any, ...] = (None, (), [], {}, "", 1, False, "raise", "spaces")  # of the other options
