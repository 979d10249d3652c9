"""Flags for settings of a training, which `headrace train`, `tune` and `population` share."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import field, fields, make_dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import tyro
from tyro.conf import OmitArgPrefixes, Positional, arg

from headrace.algorithms.base import ALGORITHMS, PURPOSES, algorithm_classes, algorithms_with
from headrace.cli import pairs
from headrace.core.setting_types import name_here, no_setting
from headrace.core.trust import code_of, run_of
from headrace.core.types import DataclassInstance, Json
from headrace.training.config import TrainConfig, merge_settings, takes_none
from headrace.training.plan import settings_of
from headrace.training.scaling import settings_for

CLASS_REFERENCE = re.compile(r"[^-=].*[^:]:[^\W\d]\w*")  # my_algorithm.py:VPG
Flag: TypeAlias = tuple[Any, str | None, Any, str]  # type, name of the value, default, help


def parser(
    named: Mapping[str, str | None], training: TrainConfig, learning: DataclassInstance, own: Mapping[str, Flag]
) -> Any:
    """Make a dataclass of all arguments, with known ones as defaults. own: flags that are not settings."""
    group = (named["algorithm"] or next(iter(ALGORITHMS))).rpartition(":")[2]
    algorithms = f"{', '.join(ALGORITHMS)}, or path/to/file.py:Class of your own" if named["algorithm"] else _purposes()
    helps = {"algorithm": f"the algorithm: {algorithms}", "env": "the environment"}
    members = [
        (name, Annotated[str, Positional, arg(metavar=name.upper(), help=helps[name])], value or tyro.MISSING)
        for name, value in named.items()
    ]
    flags = [
        (name, Annotated[kind, arg(metavar=metavar, help=text)], default)
        for name, (kind, metavar, default, text) in own.items()
    ]
    settings = [
        (name, Annotated[OmitArgPrefixes[type(config)], arg(name=heading)], field(default=config))  # type: ignore[misc]
        for name, heading, config in (("training", "run", training), ("learning", group, learning))
    ]
    return make_dataclass("Arguments", [*members, *flags, *settings], frozen=True)


def _purposes() -> str:
    """The purpose of each algorithm, one line each."""
    lines = "\n".join(f"{name}: {purpose}" for name, purpose in PURPOSES.items())
    return f"\n{lines}\nor path/to/file.py:Class of your own"


def positionals(arguments: Sequence[str]) -> dict[str, str]:
    """Find the algorithm and the environment, at any position in the arguments: the available flags depend on them."""
    places = range(len(arguments)) if arguments and arguments[0].startswith("-") else ()
    tests = (ALGORITHMS.__contains__, CLASS_REFERENCE.fullmatch)
    start = next((place for test in tests for place in places if test(arguments[place])), 0)
    args = []
    for argument in arguments[start : start + 2]:
        if argument.startswith("-"):
            break
        args.append(argument)
    return dict(zip(("algorithm", "env"), args, strict=False))


def path_after(flag: str, arguments: Sequence[str]) -> Path | None:
    """Find the value of a flag that is needed to build the parser."""
    for argument, following in zip(arguments, [*arguments[1:], None], strict=False):
        if argument == flag and following is not None:
            return Path(following)
        if argument.startswith(f"{flag}="):
            return Path(argument.removeprefix(f"{flag}="))
    return None


def named_code(arguments: Sequence[str]) -> AbstractContextManager[None]:
    """Call code_of() for the runs that --resume and --config name."""
    runs = path_after("--resume", arguments), run_of(path_after("--config", arguments))
    return code_of(*runs, trust="--trust" in arguments)


def given_settings(args: Sequence[str]) -> set[str]:
    """The settings of all flags in the arguments. Only other settings may be adapted to num_envs."""
    flags = {argument.lstrip("-").partition("=")[0].replace("-", "_") for argument in args if argument.startswith("--")}
    return flags | {flag.removeprefix("no_") for flag in flags}


def typed_arguments(arguments: Sequence[str], config_class: type, own: Collection[str]) -> list[str]:
    """Convert arguments for the parser: see _typed(). own: flags that are not settings.

    Raises ValueError for another library's name of a setting, with its name here, and for a setting of other
    algorithms, with their names."""
    known = {setting.name for config in (TrainConfig, config_class) for setting in fields(config)}
    for flag in sorted(given_settings(arguments) - known - {*own}):
        owners = algorithms_with(flag)
        if owners or name_here(flag, known):
            raise ValueError(no_setting(flag, known, flags=True, owners=owners))
    optional = takes_none(TrainConfig) | takes_none(config_class)
    return [_typed(before, argument, optional) for before, argument in pairwise(["", *arguments])]


def _typed(before: str, argument: str, optional: Set[str]) -> str:
    """Convert an argument for the parser: "none" to "None" for a setting that may be None.

    before: the argument before it. optional: names of such settings.
    """
    flag, is_one, value = argument.partition("=") if argument.startswith("--") else (before, "", argument)
    if value == "none" and flag.removeprefix("--").replace("-", "_") in optional:
        return f"{flag}=None" if is_one else "None"
    return argument


def flat(*configs: DataclassInstance) -> Json:
    return {member.name: getattr(config, member.name) for config in configs for member in fields(config)}


def parsed(
    command: str, example: str, description: str, flags: Mapping[str, Flag], arguments: list[str], config: Path | None
) -> tuple[Any, Json]:
    """Parse the arguments of a command that trains: headrace COMMAND ALGORITHM ENV. Returns all of them, and the
    settings given by flags or by the file `config`.

    flags: the command's flags that are not settings. Raises ValueError, with the example, if a name is missing.
    """
    typed = positionals(arguments)
    file = settings_of(config, {*typed, *given_settings(arguments)}) if config else {}
    named = {name: typed.get(name) or file.pop(name, None) for name in ("algorithm", "env")}
    asks_for_help = bool({"-h", "--help"} & set(arguments))
    if not asks_for_help and not all(named.values()):
        raise ValueError(f"name an algorithm and an environment, as in `headrace {command} {example}`")
    kind, config_class = algorithm_classes(named["algorithm"] or next(iter(ALGORITHMS)))
    registered = settings_for(named["env"], kind.name, file) if named["env"] else {}
    arguments_class = parser(named, *merge_settings(config_class, registered, file, {}, checked=False), flags)
    args = typed_arguments(["--help"] if asks_for_help else arguments, config_class, flags)
    found = pairs.cli(arguments_class, command, description, args=args)
    settings, typed_too = flat(found.training, found.learning), given_settings(args)
    return found, {name: value for name, value in settings.items() if name in file or name in typed_too}
