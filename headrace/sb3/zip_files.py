"""Read and write model files: Headrace's own, without pickle, and Stable-Baselines3's, whose pickles are not read."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import torch
from gymnasium.spaces import Box, Space
from torch import nn, optim

from headrace.algorithms.base import Algorithm, algorithm_classes
from headrace.core.terminal import tell
from headrace.core.text import shown
from headrace.core.types import Json
from headrace.core.writing import replacing
from headrace.data.spaces import from_json, to_json
from headrace.policies.base import Policy
from headrace.policies.heads import GaussianHead
from headrace.sb3 import foreign_zip
from headrace.sb3.foreign_weights import converted
from headrace.sb3.schedules import Interpolated, interpolated
from headrace.sb3.translation import ON_POLICY, class_name, trained_as

ABOUT, STATE = "headrace.json", "state.pth"  # members of Headrace's own files
SCHEDULE = "schedule"  # the key of the values of one
NAMED = {"torch.nn": nn, "torch.optim": optim}  # modules whose classes are written by name
CLASS, KWARGS = "features_extractor_class", "features_extractor_kwargs"
LEFT_OUT = object()
PICKLES = (".pkl", ".pickle")
File = str | os.PathLike[str] | BinaryIO
FORMAT = 2  # 1 had Box actions in half their range around its center, as headrace.PPO


@dataclass(frozen=True)
class Saved:
    """The contents of a file. state: of the algorithm. weights: instead of state, those of Stable-Baselines3's policy,
    with the exploration_rate of a DQN."""

    algorithm: str
    policy: str  # the policy argument
    arguments: Json
    n_envs: int
    num_timesteps: int
    pair: tuple[Space, Space] | None  # observation and action space, None if the file has no readable ones
    state: Json | None
    weights: Json | None
    exploration_rate: float | None = None

    def of(self, algorithm: str, path: File) -> Saved:
        """Check that the file is of this algorithm. Stable-Baselines3's files of TD3 and DDPG differ only in their
        critics. Raises ValueError for another algorithm."""
        alike = self.weights is not None and {self.algorithm, algorithm} <= {"td3", "ddpg"}
        if self.algorithm != algorithm and not alike:
            kinds = class_name(self.algorithm), class_name(algorithm)
            raise ValueError(f"{path} is a model of {kinds[0]}, not {kinds[1]}: use {kinds[0]}.load()")
        return replace(self, algorithm=algorithm)

    def arguments_with(self, given: Json, known: Collection[str]) -> Json:
        """Replace arguments by given ones, of policy_kwargs key by key. known: names of the constructor's arguments."""
        own = {name: value for name, value in self.arguments.items() if name in known}
        if kwargs := given.get("policy_kwargs"):
            given = given | {"policy_kwargs": (own.get("policy_kwargs") or {}) | kwargs}
        return own | given

    def spaces(self) -> tuple[Space, Space]:
        """The observation and action space. Raises ValueError if the file has no readable ones."""
        if self.pair is None:
            raise ValueError("the file has its spaces in pickled form alone: give load() an env")
        return self.pair

    def make(self, config: Any, spaces: tuple[Space, Space], seed: int, device: torch.device) -> Algorithm:
        """Make the algorithm on a device. Networks of Stable-Baselines3 are also copied to target networks, and the
        moments of its optimizers are dropped."""
        kind: Any = algorithm_classes(trained_as(self.algorithm)).algorithm
        policy = kind.make_policy(config, *spaces, seed)
        if self.state is None:
            policy.load_state_dict(self.policy_for(policy))
        else:
            _check_tensors(self.state["policy"], policy.state_dict())
        algorithm: Algorithm = kind(policy.to(device), config, seed)
        if self.state is not None:
            algorithm.load_state_dict(self.state)
        elif self.exploration_rate is not None:
            policy.exploration.fill_(self.exploration_rate)
        return algorithm

    def policy_for(self, policy: Policy) -> Json:
        """The state_dict of the policy, in the form of this one."""
        if self.state is not None:
            return dict(self.state["policy"])
        assert self.weights is not None
        return converted(self.algorithm, self.weights, policy)


def _check_tensors(saved: Json, own: Json) -> None:
    """Raise ValueError if the tensors of a file are not those of the networks that its arguments describe."""
    known = any("encoder.extractor." in name for name in own)
    if not known and any("encoder.extractor." in name for name in saved):
        form = "policy_kwargs=dict(features_extractor_class=...)"
        raise ValueError(f"the file is of a features_extractor_class of its own: give load() {form} again")
    for name in [*own, *saved]:
        here, there = ([*x[name].shape] if name in x else "none" for x in (own, saved))
        if here != there:
            raise ValueError(
                f"the file has other networks than policy_kwargs describe: {name} is {there} there and {here} here; "
                "give load() the policy_kwargs that the model was saved with"
            )


def with_suffix(file: File) -> File:
    """The file to write: an open file or a path, which gets the suffix .zip if it has none."""
    if not is_path(file):
        return opened(file, "writable")
    path = Path(file)  # type: ignore[arg-type]
    return path if path.suffix else path.with_name(f"{path.name}.zip")


def found(file: File) -> File:
    """The file to read: an open file or a path, with the suffix .zip if there is no such file."""
    if not is_path(file):
        return opened(file, "readable")
    path = Path(file)  # type: ignore[arg-type]
    if path.suffix in PICKLES:
        raise ValueError(
            f"{path} is a pickle, and unpickling runs whatever code a file names: it is never read here. Open it with "
            "Stable-Baselines3: normalisation statistics by VecNormalize.load(path, venv), which a model here trains in"
        )
    return path if path.is_file() else path.with_name(f"{path.name}.zip")


def is_path(file: Any) -> bool:
    """Tell whether a file is given by its path."""
    return isinstance(file, str | os.PathLike)


def opened(file: Any, ability: str) -> Any:
    """Check an open file. Raises TypeError, ValueError if it is not open, or open for text."""
    if not hasattr(file, "write" if ability == "writable" else "read") or isinstance(file, io.TextIOBase):
        raise TypeError(f"give a path, or a file that is open in binary mode, such as io.BytesIO(); got {file!r}")
    if getattr(file, "closed", False) or not getattr(file, ability, lambda: True)():
        raise ValueError(f"{file!r} is not {ability}, or is closed")
    return file


def write(file: File, model: Any, state: Json, left_out: Collection[str] = (), format: str = "headrace") -> None:
    """Write the file of a headrace.sb3.model.Model, and make its folder if needed. file: from with_suffix(). state: of
    its algorithm. left_out: names of arguments that are not written. Raises ValueError for an unknown format."""
    if format != "headrace":
        raise ValueError(f'format must be "headrace" or "sb3", got {format!r}')
    arguments = model.arguments | {"verbose": model.verbose, "tensorboard_log": model.tensorboard_log}
    arguments = {name: value for name, value in arguments.items() if name not in left_out}
    about = {
        "format": FORMAT,
        "algorithm": model.algorithm_name,
        "policy": getattr(model.policy_argument, "__name__", model.policy_argument),
        "arguments": _plain_arguments(arguments, model.said),
        "n_envs": model.n_envs,
        "num_timesteps": model.num_timesteps,
        "spaces": [to_json(model.observation_space), to_json(model.policy.action_space)],
    }
    buffer, tensors = io.BytesIO(), io.BytesIO()
    torch.save(state, tensors)
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr(ABOUT, json.dumps(about, indent=1))
        archive.writestr(STATE, tensors.getvalue())
    _put(file, buffer.getvalue())


def write_foreign(file: File, model: Any, left_out: Collection[str] = ()) -> None:
    """Write a file that Stable-Baselines3 loads; the arguments are those of write(). Says that it has pickles."""
    buffer = io.BytesIO()
    members, lines = foreign_zip.written(model, left_out)
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    for line in lines:
        say_once(line, model.said)
    _put(file, buffer.getvalue())


def _put(file: File, content: bytes) -> None:
    """Write to a path or an open file."""
    if is_path(file):
        with replacing(Path(file), "the model") as fresh:  # type: ignore[arg-type]
            Path(fresh).write_bytes(content)
    else:
        file.write(content)  # type: ignore[union-attr]


def read(file: File) -> Saved:
    """Read a file. Raises FileNotFoundError, and ValueError for a file of another kind."""
    path: Any = found(file)
    try:
        with zipfile.ZipFile(path) as archive:
            names = set(archive.namelist())
            members = {name: archive.read(name) for name in (ABOUT, STATE, *foreign_zip.MEMBERS) if name in names}
    except zipfile.BadZipFile as error:
        why = "the file wasn't a zip-file" if "not a zip" in str(error) else f"the file is damaged: {error}"
        raise ValueError(f"{path} holds no model, {why}; give one that save() wrote") from error
    try:
        if ABOUT in members:
            return _own(json.loads(members[ABOUT]), members[STATE])
        if members.keys() >= set(foreign_zip.MEMBERS):
            return Saved(*foreign_zip.parse(members))
    except (KeyError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is damaged: {error!r}") from error
    raise ValueError(f"{path} holds no model: it has neither {ABOUT} nor {' and '.join(foreign_zip.MEMBERS)}")


def _own(about: Json, content: bytes) -> Saved:
    if about["format"] not in (1, FORMAT):
        raise ValueError(f"the file is of format {about['format']}, and this version reads {FORMAT}")
    arguments = {name: _restored(value) for name, value in about["arguments"].items()}
    observation_space, action_space = map(from_json, about["spaces"])
    state = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    if about["format"] == 1 and about["algorithm"] in ON_POLICY and isinstance(action_space, Box):
        _to_units(state["policy"], GaussianHead(action_space, squash=False))
    return Saved(
        about["algorithm"],
        about["policy"],
        arguments,
        about["n_envs"],
        about["num_timesteps"],
        pair=(observation_space, action_space),
        state=state,
        weights=None,
    )


def _to_units(weights: Json, head: GaussianHead) -> None:
    """Convert a head's means and standard deviations from half ranges to the units of actions."""
    weights["actor_out.weight"] *= head.half_range
    weights["actor_out.bias"] = weights["actor_out.bias"] * head.half_range.flatten() + head.center.flatten()
    weights["head.log_std"] = weights["head.log_std"] + head.half_range.flatten().log()


def _plain_arguments(arguments: Json, said: set[str]) -> Json:
    """Convert arguments to JSON. Schedules are stored as values. Others that JSON does not have are left out, as are
    such members of policy_kwargs. A line says so, unless it is in `said`: callbacks save a model many times."""
    plain: Json = {}
    for name, value in arguments.items():
        if name == "device":
            continue
        if name in ("learning_rate", "clip_range") and callable(value):
            schedule = value if isinstance(value, Interpolated) else interpolated(value)
            if schedule is not None:
                plain[name] = {SCHEDULE: [schedule.at, schedule.values, schedule.__name__]}
                continue
            plain[name] = float(value(1.0))
            say_once(f"{name} is a function: the file keeps {plain[name]:g}, its first value", said)
            continue
        kept, left_out = _plain(name, value)
        if kept is not LEFT_OUT:
            plain[name] = kept
        if left_out:
            say_once(f"{', '.join(left_out)}: not in the file, give load() {name} again", said)
    return plain


def _plain(name: str, value: Any) -> tuple[Any, list[str]]:
    """An argument as JSON, or LEFT_OUT, and the names of what is left out of it."""
    if name == "policy_kwargs" and isinstance(value, dict):
        parts = {key: _plain(f"{name}[{key!r}]", x) for key, x in value.items()}
        if parts.get(CLASS, (None,))[0] is LEFT_OUT and KWARGS in parts:  # which are those of another class without it
            parts[KWARGS] = LEFT_OUT, [f"{name}[{KWARGS!r}]"]
        kept = {key: x for key, (x, _) in parts.items() if x is not LEFT_OUT}
        return kept, [each for _, left_out in parts.values() for each in left_out]
    try:
        return json.loads(json.dumps(value, default=_named)), []
    except TypeError:
        return LEFT_OUT, [f"{name}={shown(value, 60)}"]


def say_once(line: str, said: set[str]) -> None:
    """Print a line to standard error, unless it is in `said`."""
    if line not in said:
        said.add(line)
        tell(line)


def _named(value: Any) -> Json:
    """A class of torch.nn or torch.optim by its name."""
    name = getattr(value, "__name__", "")
    for place, module in NAMED.items():
        if name and getattr(module, name, None) is value:
            return {place: name}
    raise TypeError(f"{value!r} is no data")


def _restored(value: Any) -> Any:
    if isinstance(value, dict):
        if len(value) == 1 and (place := next(iter(value))) in NAMED:
            return getattr(NAMED[place], value[place])
        if value.keys() == {SCHEDULE}:
            return Interpolated(*value[SCHEDULE])
        return {key: _restored(member) for key, member in value.items()}
    return value
