"""The registry of environments: a dict by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import gymnasium

from headrace.core.types import Settings
from headrace.core.user_names import absolute_reference
from headrace.envs import sources
from headrace.envs.gym.several import Several

PREFIX = "headrace/"  # of the ids under which Gymnasium knows registered environments, see headrace.gym
Maker = str | type | Callable[..., gymnasium.Env]
Source = Maker | list | tuple  # several of them, in turn


@dataclass(frozen=True)
class Spec:
    """A name, the entry that makes its environments, and settings for training on it.

    entry: `module:Class` or `file.py:Class` (imported when first made), `module:Id-v0` of Gymnasium, a class, or a
    function that gives a gymnasium.Env. defaults: per algorithm, values for fields of its config or of TrainConfig.
    listed: whether listings show it; False for environments of other packages, registered only for their settings.
    published: who published the settings, if they were not tuned here.
    """

    name: str
    entry: Maker
    defaults: Mapping[str, Settings] = field(default_factory=dict)
    listed: bool = True
    published: str = ""


_specs: dict[str, Spec] = {}
_families: dict[str, tuple[Mapping[str, Settings], str]] = {}  # settings by a pattern of names, and who published them


def register(
    name: str,
    entry: Maker,
    defaults: Mapping[str, Settings] | None = None,
    listed: bool = True,
    published: str = "",
) -> Spec:
    """Register `entry` as `name`, with default settings per algorithm. Registering a name again replaces it. See Spec.

        register("Maze-v0", "my_package.maze:Maze", defaults={"ppo": {"total_steps": 2_000_000, "num_steps": 64}})

    Raises ValueError for a name with a colon, which would read as `file.py:Class`, TypeError for an entry that is
    neither a name nor can be called.
    """
    if not name or ":" in name:
        raise ValueError(f"an environment cannot be called {name!r}: a colon is for `file.py:Class`")
    if not isinstance(entry, str) and not callable(entry):
        raise TypeError(f"{entry!r} does not make environments: give 'module:Class', a class or a function")
    entry = absolute_reference(entry) if isinstance(entry, str) else entry
    _specs[name] = Spec(name, entry, defaults or {}, listed, published)
    return _specs[name]


def register_family(pattern: str, defaults: Mapping[str, Settings], published: str) -> None:
    """Settings for all environments of other packages whose ids match a pattern, such as "ALE/*", and that are not
    registered themselves."""
    _families[pattern] = defaults, published


def spec(source: Source) -> Spec:
    """The Spec registered under a name, or for a class; for anything else a Spec with the defaults of its family, if
    any.

    Raises TypeError unless `source` is a name, a class, a function, or a list of them.
    """
    if isinstance(source, str):
        source = source.removeprefix(PREFIX) if source.removeprefix(PREFIX) in _specs else source
        entry = absolute_reference(source)
        if source.startswith(sources.MUJOCO):  # with the settings of Gymnasium's id
            known = spec(source.removeprefix(sources.MUJOCO))
            return Spec(source, entry, known.defaults, False, known.published)
        return _specs.get(source) or _of_entry(entry) or Spec(source, entry, *_of_family(source))
    if isinstance(source, list | tuple) and source:
        inside = dict.fromkeys(spec(kind).name.rpartition(":")[2].strip("<>") for kind in source)
        return Spec(f"<{' | '.join(inside)}>", Several(source))
    if not callable(source):
        raise TypeError(
            f"{source!r} does not make environments: give a name, a class, or a function such as "
            "`lambda: gymnasium.make(...)`"
        )
    name = sources.reference(source)
    return _of_entry(source) or _of_entry(name) or Spec(name, source)


def names() -> list[str]:
    """Every registered name, in the order of registration."""
    return list(_specs)


def _of_family(name: str) -> tuple[Mapping[str, Settings], bool, str]:
    """Defaults, whether it is listed, and who published them, for an id, or `module:Id-v0`."""
    matching = (found for pattern, found in _families.items() if fnmatchcase(name.rpartition(":")[2], pattern))
    defaults, published = next(matching, ({}, ""))
    return defaults, not defaults, published


def _of_entry(entry: Maker) -> Spec | None:
    return next((known for known in _specs.values() if known.entry == entry), None)
