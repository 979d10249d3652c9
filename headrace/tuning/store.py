"""Measurements on this machine, stored in the cache folder: speeds of trainings by environment and algorithm.

They are in one JSON file that only its owner can read or write. An entry is for one machine, source of an environment,
network and set of versions. If one of these changes it is another entry, so outdated measurements are never used.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from gymnasium.envs.registration import EnvSpec, load_env_creator

from headrace.core.cores import cores, processor
from headrace.core.packages import installed
from headrace.core.types import Json, Settings
from headrace.envs import spec
from headrace.envs.construct import entry_of
from headrace.kernels.runtime.cache_folder import PRIVATE, folder, json_table, trusted
from headrace.training.plan import TrainPlan

FILE = "tuned.json"
MOST = 200  # largest number of entries; older ones are removed
PACKAGES = ("headrace", "torch", "numpy", "numba", "gymnasium")
# settings of an algorithm that determine the time of an iteration, apart from its number of steps
NETWORK = ("hidden", "activation", "images", "recurrent", "rnn_size", "epochs", "utd_ratio", "gradient_steps")


@dataclass(frozen=True)
class Measured:
    """A combination of settings that was tried, and its speed."""

    settings: Settings
    steps_per_second: float


@dataclass(frozen=True)
class Entry:
    """Measurements of one environment and algorithm."""

    when: str  # a date, 2026-11-22
    choice: Settings  # the settings that were chosen
    measured: tuple[Measured, ...]

    def fastest(self, **wanted: Any) -> Measured | None:
        """The fastest measurement with these values of settings; None if there is none."""
        rows = [row for row in self.measured if all(row.settings.get(name) == wanted[name] for name in wanted)]
        return max(rows, key=lambda row: row.steps_per_second, default=None)


def load(plan: TrainPlan) -> Entry | None:
    """Load the measurements for a training like this; None if there are none."""
    content = trusted(folder() / FILE)
    if content is None or not _has_a_name(plan):
        return None
    try:
        found = json.loads(content).get(key(plan))
        return None if found is None else _entry(found)
    except (ValueError, TypeError, KeyError, AttributeError):  # damaged, or of a version with another format
        return None


def save(plan: TrainPlan, entry: Entry) -> Path | None:
    """Store measurements, replacing earlier ones with the same number of environments. Returns the file, or None for
    environments without a name, or if the file cannot be written."""
    if not _has_a_name(plan):
        return None
    path = folder() / FILE
    with json_table(path, PRIVATE) as table:
        earlier = load(plan)  # within the lock: another process may be adding to it
        if earlier is not None:
            now = {row.settings["num_envs"] for row in entry.measured}
            others = (row for row in earlier.measured if row.settings["num_envs"] not in now)
            entry = replace(entry, measured=(*entry.measured, *others))
        content: Json = {
            "when": entry.when,
            "choice": dict(entry.choice),
            "measured": [{"settings": dict(row.settings), "sps": row.steps_per_second} for row in entry.measured],
        }
        table.pop(key(plan), None)
        table[key(plan)] = content
        for oldest in list(table)[:-MOST]:
            del table[oldest]
        written = _entry(json.loads(json.dumps(content)))
    return path if load(plan) == written else None


def _entry(found: Json) -> Entry:
    rows = tuple(Measured(dict(row["settings"]), float(row["sps"])) for row in found["measured"])
    return Entry(str(found["when"]), dict(found["choice"]), rows)


def _has_a_name(plan: TrainPlan) -> bool:
    """Tell whether environments and algorithm are given by name, rather than made by the user."""
    return plan.source is not None and isinstance(plan.algorithm, str)


def key(plan: TrainPlan) -> str:
    """Machine, environment, algorithm, network and versions, in one line of JSON."""
    own = plan.algorithm_config
    network = {name: getattr(own, name) for name in NETWORK if hasattr(own, name)}
    env = {**_source(plan), **plan.config.eval_env_kwargs()}
    return json.dumps({"env": env, "algorithm": plan.algorithm, **network, "machine": machine()}, sort_keys=True)


@functools.cache
def machine() -> Json:
    """Processor, cores, GPU and versions."""
    return {
        "processor": processor(),
        "cores": cores(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        **{package: installed(package, otherwise="none") for package in PACKAGES},
    }


def _source(plan: TrainPlan) -> Json:
    """An environment's name, and a digest of the file of its class or function, and of its arguments."""
    assert plan.source is not None
    entry: Any = entry_of(plan.source)
    about: list[str] = []
    if isinstance(entry, EnvSpec):
        about = [entry.id, repr(entry.entry_point), repr(entry.kwargs), repr(entry.additional_wrappers)]
        creator = entry.entry_point
        entry = load_env_creator(creator) if isinstance(creator, str) else creator
    while isinstance(entry, functools.partial):
        about += [repr(entry.args), repr(sorted(entry.keywords.items()))]
        entry = entry.func
    code = getattr(entry, "__code__", None)
    if isinstance(code, CodeType):
        about += [str(code.co_firstlineno), *_held(entry)]
    digest = hashlib.sha256("\0".join([*about, _text(entry)]).encode()).hexdigest()[:16]
    return {"name": spec(plan.source).name, "source": digest}


def _held(function: Any) -> list[str]:
    """The values in a function's closure, and its defaults."""
    found = inspect.getclosurevars(function).nonlocals
    defaults: Mapping[str, Any] = function.__kwdefaults__ or {}
    return [repr(value) for value in (*found.items(), *(function.__defaults__ or ()), *defaults.items())]


def _text(thing: Any) -> str:
    """The source file of a class or function; its name if there is none."""
    try:
        return Path(inspect.getsourcefile(thing) or "").read_text(encoding="utf-8")
    except (OSError, TypeError, ValueError):
        return repr(getattr(thing, "__qualname__", type(thing)))
