"""Write and read episodes in Minari's format: a folder with main_data.hdf5, a group for each episode, and
metadata.json.

https://minari.farama.org/content/dataset_standards/ describes it. Images are stored as they are, not as JPEG.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium import spaces

from headrace import envs
from headrace.core.packages import require
from headrace.core.stopping import closed
from headrace.core.types import Json
from headrace.core.writing import check_file, free, writing
from headrace.envs import Source
from headrace.envs.construct import named
from headrace.envs.gym.learned import carried
from headrace.envs.wrappers.conditioning import seen_in
from headrace.policies.base import Policy

MINARI = "0.5.4"  # the version that has this format
DATA, METADATA = "main_data.hdf5", "metadata.json"
COLUMNS = ("rewards", "terminations", "truncations")


class Recorded(NamedTuple):
    """A folder of recorded episodes."""

    path: Path
    returns: tuple[float, ...]
    steps: int


class Episode(NamedTuple):
    """An episode of T steps. Its T + 1 observations and its actions are arrays, or dicts or tuples of arrays."""

    observations: Any
    actions: Any
    rewards: np.ndarray
    terminations: np.ndarray
    truncations: np.ndarray


class EpisodeRecorder(gymnasium.Wrapper):
    """A wrapper that writes an environment's episodes to a folder, whether a policy or a script steps it.

    An episode is written when it ends. If reset() or close() cuts it short, it is truncated at its last step.
    Raises FileExistsError if the folder has episodes, ValueError for spaces that the format does not have, ImportError
    without h5py.
    """

    def __init__(self, env: gymnasium.Env, folder: str | Path) -> None:
        super().__init__(env)
        require("h5py", "recording needs h5py: pip install 'headrace[data]'")
        self.folder, self.returns, self.steps = Path(folder), list[float](), 0
        described = {name: json.dumps(_described(getattr(env, name))) for name in ("observation_space", "action_space")}
        name = re.sub(r"\W+", "-", self.folder.name).strip("-") or "episodes"
        self._metadata: Json = {"dataset_id": f"headrace/{name}-v0", "minari_version": MINARI, "data_format": "hdf5"}
        self._metadata |= {"jpeg_encoding": False, **described, **_spec(env)}
        self._rows: list[tuple[Any, ...]] = []  # action, reward, terminated, truncated, observation after it
        self._first: Any = None
        self._seed: int | None = None
        if (self.folder / DATA).exists():
            raise FileExistsError(f"{self.folder} has episodes already: name another folder")
        with writing(self.folder, "the episodes"):
            self.folder.mkdir(parents=True, exist_ok=True)

    def reset(self, *, seed: int | None = None, options: Json | None = None) -> tuple[Any, Json]:
        """Begin an episode."""
        self._write()
        observation, info = super().reset(seed=seed, options=options)
        self._first, self._seed = deepcopy(observation), seed
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Json]:
        """Take and record a step."""
        found = observation, reward, terminated, truncated, _ = super().step(action)
        outcome = float(reward), bool(terminated), bool(truncated)
        self._rows.append((deepcopy(action), *outcome, deepcopy(observation)))  # the next step may write into both
        if terminated or truncated:
            self._write()
        return found

    def close(self) -> None:
        """Write an episode that has not ended, and close the environment."""
        self._write()
        super().close()

    def _write(self) -> None:
        if not self._rows:
            return
        import h5py

        actions, rewards, terminated, truncated, after = zip(*self._rows, strict=True)
        truncated = (*truncated[:-1], truncated[-1] or not terminated[-1])
        number = len(self.returns)
        with writing(self.folder / DATA, "the episodes"), h5py.File(self.folder / DATA, "a", track_order=True) as file:
            group = file.create_group(f"episode_{number}")
            group.attrs.update({"id": number, "total_steps": len(rewards)})
            group.attrs.update({} if self._seed is None else {"seed": self._seed})
            _store(group, "observations", self.env.observation_space, (self._first, *after))
            _store(group, "actions", self.env.action_space, actions)
            for name, column in zip(COLUMNS, (rewards, terminated, truncated), strict=True):
                group[name] = np.array(column)
        self.returns.append(sum(rewards))
        self.steps += len(rewards)
        self._rows, self._seed = [], None
        counts = {"total_episodes": number + 1, "total_steps": self.steps}
        with writing(self.folder / METADATA, "the episodes"):
            (self.folder / METADATA).write_text(json.dumps({**self._metadata, **counts}))


def record(
    policy: Policy,
    env: Source | gymnasium.Env,
    output: str | Path | None = None,
    episodes: int = 100,
    seed: int = 0,
    deterministic: bool = False,
    agent_info: Any = None,
    **options: Any,
) -> Recorded:
    """Play episodes with a policy and write them. Episode i has the seed `seed` + i.

    env: as for make(), played in its reference environment; or a Gymnasium environment. output: a new folder; None
    stands for episodes, or the first free name of episodes_2 ... agent_info: as for play(); the files have the
    environment's own observations, without it. options: of make(), as for evaluate().
    Raises ValueError for several agents, and for spaces that the format does not have; ImportError without h5py.
    """
    if episodes < 1:
        raise ValueError(f"episodes must be 1 or more, got {episodes!r}")
    if not isinstance(env, gymnasium.Env):
        wrappers: list[Any] = [*named(options.pop("wrapper", ())), *carried(policy)]
        factory = envs.factory(env, compiled=True, wrappers=wrappers, **options)
        with closed(factory(), "the environment that was recorded") as made:
            if not isinstance(made, gymnasium.Env):
                raise ValueError(f"{envs.spec(env).name} has several agents: the format has episodes of one")
            return record(policy, made, output, episodes, seed, deterministic, agent_info)
    recorder = EpisodeRecorder(env, free("episodes") if output is None else output)
    for number in range(seed, seed + episodes):
        _play(policy, recorder, number, deterministic, seen_in(policy, agent_info, number - seed))
    return Recorded(recorder.folder, tuple(recorder.returns), recorder.steps)


def _play(policy: Policy, env: gymnasium.Env, seed: int, deterministic: bool, seen: Callable[[Any], Any]) -> None:
    generator, state, done = torch.Generator().manual_seed(seed), None, False
    observation, _ = env.reset(seed=seed)
    while not done:
        action, state = policy.predict(seen(observation), state, deterministic=deterministic, generator=generator)
        if not isinstance(action, dict | tuple):
            action = np.asarray(action).astype(env.action_space.dtype)[()]
        observation, _, terminated, truncated, _ = env.step(action)
        done = terminated or truncated


def read_episodes(folder: str | Path) -> Iterator[Episode]:
    """Iterate over the episodes in a folder of Minari's format. For a dataset of Minari this is its folder data/.

    Raises FileNotFoundError without episodes, ValueError for unsupported formats and damaged files, ImportError without
    h5py.
    """
    folder = Path(folder)
    if not (folder / METADATA).exists():
        raise FileNotFoundError(f"{folder} has no {METADATA}: name the folder of a dataset of Minari that has it")
    metadata = _metadata(folder)
    if (kind := metadata.get("data_format", "hdf5")) != "hdf5":
        raise ValueError(
            f"{folder} is of the format {kind!r}, and hdf5 is read: write it again with data_format='hdf5'"
        )
    require("h5py", "reading episodes needs h5py: pip install 'headrace[data]'")
    import h5py

    with _whole(folder / METADATA):
        total = int(metadata["total_episodes"])
    with _whole(folder / DATA), h5py.File(check_file(folder / DATA), "r") as file:
        for number in range(total):
            group = file[f"episode_{number}"]
            columns = [np.asarray(group[name]) for name in COLUMNS]
            yield Episode(_stored(group["observations"], folder), _stored(group["actions"], folder), *columns)


@contextmanager
def _whole(path: Path) -> Iterator[None]:
    """Raise ValueError, naming the file, if it is damaged."""
    try:
        yield
    except FileNotFoundError:
        raise
    except (OSError, KeyError, json.JSONDecodeError) as error:
        what = f"it has no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{path} is damaged, or not of Minari's format: {what}") from error


def _metadata(folder: Path) -> Json:
    """Read metadata.json. Raises ValueError if it is damaged."""
    with _whole(folder / METADATA):
        found: Json = json.loads(check_file(folder / METADATA).read_text())
    return found


def recorded_spaces(folder: str | Path) -> tuple[gymnasium.Space, gymnasium.Space]:
    """Read the observation and action space of a folder of Minari's format. Raises ValueError for damaged files."""
    metadata = _metadata(Path(folder))
    with _whole(Path(folder) / METADATA):
        found = [_space(json.loads(metadata[f"{name}_space"])) for name in ("observation", "action")]
    return found[0], found[1]


def _space(described: Json) -> gymnasium.Space:
    """The space that _described() describes. Raises ValueError for other kinds."""
    kind, dtype = described["type"], np.dtype(described.get("dtype", "int64"))
    if kind == "Box":
        low, high = (np.array(described[side], dtype).reshape(described["shape"]) for side in ("low", "high"))
        return spaces.Box(low, high, dtype=dtype.type)
    if kind == "Discrete":
        return spaces.Discrete(described["n"], start=described["start"])
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(described["nvec"], dtype.type, start=described.get("start"))
    if kind == "MultiBinary":
        return spaces.MultiBinary(described["n"])
    if kind == "Dict":
        return spaces.Dict([(name, _space(member)) for name, member in described["subspaces"].items()])
    if kind == "Tuple":
        return spaces.Tuple([_space(member) for member in described["subspaces"]])
    raise ValueError(f"a space of the kind {kind} is not read: of Box, Discrete and what consists of them")


def _stored(place: Any, folder: Path) -> Any:
    """Read a column, or a dict of its members. Those of a Tuple are named _index_0 and so on."""
    if hasattr(place, "keys"):
        members = {name: _stored(place[name], folder) for name in place}
        is_tuple = members and all(name == f"_index_{i}" for i, name in enumerate(sorted(members, key=_number)))
        return tuple(members[name] for name in sorted(members, key=_number)) if is_tuple else members
    if place.dtype.kind not in "biuf":
        raise ValueError(f"{folder} has {place.name} as texts or JPEG images: write it again with jpeg_encoding=False")
    return np.asarray(place)


def _number(name: str) -> int:
    number = name.removeprefix("_index_")
    return int(number) if number.isdecimal() else -1


def _store(group: Any, name: str, space: gymnasium.Space, values: Sequence[Any]) -> None:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        inside = group.create_group(name)
        for key, member in _members(space):
            _store(inside, f"_index_{key}" if isinstance(key, int) else key, member, [value[key] for value in values])
    else:
        group[name] = np.array(values, space.dtype)


def _members(space: spaces.Dict | spaces.Tuple) -> list[tuple[Any, gymnasium.Space]]:
    return [*space.spaces.items()] if isinstance(space, spaces.Dict) else [*enumerate(space.spaces)]


def _described(space: gymnasium.Space) -> Json:
    """Describe a space as metadata.json does. Raises ValueError for kinds that cannot be recorded."""
    kind, found = type(space).__name__, dict[str, Any]()
    if isinstance(space, spaces.Box):
        found = {"shape": list(space.shape), "low": space.low.tolist(), "high": space.high.tolist()}
    elif isinstance(space, spaces.Discrete):
        return {"type": kind, "dtype": "int64", "start": int(space.start), "n": int(space.n)}
    elif isinstance(space, spaces.MultiDiscrete):
        found = {"nvec": space.nvec.tolist(), "start": space.start.tolist()}
    elif isinstance(space, spaces.MultiBinary):
        return {"type": kind, "n": space.n}
    elif isinstance(space, spaces.Dict | spaces.Tuple):
        members = [(key, _described(member)) for key, member in _members(space)]
        return {"type": kind, "subspaces": dict(members) if isinstance(space, spaces.Dict) else [x for _, x in members]}
    else:
        raise ValueError(f"episodes of {kind} are not recorded: of Box, Discrete and what consists of them")
    return {"type": kind, "dtype": str(space.dtype), **found}


def _spec(env: gymnasium.Env) -> Json:
    """The environment's spec as JSON, if it can be written."""
    try:
        return {} if env.spec is None else {"env_spec": env.spec.to_json()}
    except (TypeError, ValueError):  # made with functions or objects
        return {}
