"""Hints for an unknown name of an environment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path

import gymnasium

from headrace.core.text import did_you_mean
from headrace.core.user_names import Misnamed, dotted, near_modules
from headrace.envs import sources
from headrace.envs.registry import names

# names of environments in packages that register them only when imported -> the package for pip, how to write a name
PACKAGES = {
    **dict.fromkeys(("MiniGrid-*", "BabyAI-*"), ("minigrid", "minigrid:{}")),
    **dict.fromkeys(
        ("Fetch*", "Hand*", "PointMaze*", "AntMaze*", "Adroit*", "FrankaKitchen*"),
        ("gymnasium-robotics", "gymnasium_robotics:{}"),
    ),
    "Panda*": ("panda-gym", "panda_gym:{}"),
    **dict.fromkeys(("highway-*", "merge-*", "roundabout-*", "parking-*"), ("highway-env", "highway_env:{}")),
    "mo-*": ("mo-gymnasium", "mo_gymnasium:{}"),
    "simple*_v[0-9]": ("'headrace[pettingzoo]'", "mpe2.{}:parallel_env"),
}
# packages with a module for each environment, as in simple_spread_v3
OF_MODULES = ("pettingzoo.butterfly", "pettingzoo.sisl", "pettingzoo.classic", "pettingzoo.atari")
MOST_FILES, MOST_BYTES = 1000, 1_000_000  # that are searched for an id


def unknown(name: str) -> Misnamed:
    """The error for an unknown name of an environment, with a hint, and the right name if it is certain."""
    hint, instead = _meant(name)
    return Misnamed(f"there is no environment {name!r}{hint}", name, instead)


def _meant(name: str) -> tuple[str, str]:
    """A hint, and the name that was meant, "" if that is not certain."""
    if found := _registered_by_user(name):
        place, instead = found
        return f"; {place} registers it: write {instead}", instead
    if sources.is_module(name):
        return f": it is a module; {sources.in_module(name)}", ""
    return _in_package(name) or _of_module(name) or (_near(name), "")


def _in_package(name: str) -> tuple[str, str] | None:
    """The package that is known to have such environments: to install, or to write before the name."""
    for names_of, (package, form) in PACKAGES.items():
        written = form.format(name)
        if not fnmatchcase(name, names_of):
            continue
        if not sources.is_module(form.partition(":")[0].partition(".")[0]):
            return f"; it may be one of another package: pip install {package}, and write {written}", ""
        if not did_you_mean(name, list(gymnasium.registry)):  # else it is imported, and has another version
            return f"; write {written}", written
    return None


def _of_module(name: str) -> tuple[str, str] | None:
    """The right form of `file` or `folder/file` without .py, of `module.Class`, and of PettingZoo's `simple_tag_v3`."""
    if (file := Path(f"{name}.py")).is_file() or (Path(name) / "__init__.py").is_file():
        try:
            sources.find(str(file) if file.is_file() else dotted(Path(name)))
        except ValueError as error:
            return f": {error}", getattr(error, "instead", "")
    module, _, member = name.rpartition(".")
    if module and (sources.is_module(module) or Path(*module.split(".")).with_suffix(".py").is_file()):
        with suppress(ImportError, ValueError):
            sources.find(f"{module}:{member}")
            return f"; write {module}:{member}", f"{module}:{member}"
    for package in OF_MODULES:
        if name.isidentifier() and sources.is_module(f"{package}.{name}"):
            return f"; write {package}.{name}:parallel_env", f"{package}.{name}:parallel_env"
    return None


def _near(name: str) -> str:
    """A hint that is not certain."""
    others = {*names(), *gymnasium.registry} - {name}  # a version that Gymnasium dropped may have settings
    if name.startswith(sources.MUJOCO):
        others = {sources.MUJOCO + other for other in others if other.endswith("-v5")}
    if close := did_you_mean(name, sorted(others)) or near_modules(name):
        return close
    namespace, slash, _ = name.rpartition("/")
    if slash and Path(namespace).is_dir():
        return f": for a class in a file, write {name.rstrip('/')}{'/FILE' if name.endswith('/') else ''}.py:Class"
    if slash and not any(known.startswith(f"{namespace}/") for known in gymnasium.registry):
        return f"; a package that brings the ids of {namespace}/ registers them when imported: write 'package:{name}'"
    return (
        "; an id that a file or a package of yours registers is written path/to/file.py:ID or module:ID, and "
        "`headrace envs` lists those that are built in"
    )


def _registered_by_user(name: str) -> tuple[Path, str] | None:
    """A file in the current folder, or up to two folders deeper, that registers this id with Gymnasium, and how to name
    both. The files are read and not imported. An id may lack its version, as in gymnasium.make()."""
    for path in islice(_user_files(), MOST_FILES):
        try:
            text = path.read_text(encoding="utf-8") if path.stat().st_size <= MOST_BYTES else ""
            found = (
                [one for one in sources.ids_in(text) if one.partition("-v")[0] == name or one == name]
                if name in text
                else []
            )
        except (OSError, UnicodeDecodeError, SyntaxError):
            continue
        if found:
            return path, f"{_place(path, text)}:{found[-1]}"
    return None


def _user_files() -> Iterator[Path]:
    for pattern in ("*.py", "*/*.py", "*/*/*.py"):
        yield from sorted(path for path in Path().glob(pattern) if not any(x.startswith(".") for x in path.parts))


def _place(path: Path, text: str) -> str:
    """The name of a file, or of its module if its package or its text requires a module."""
    module = dotted(path)
    by_module = (path.parent / "__init__.py").is_file() or f"{module}:" in text
    return module if len(path.parts) > 1 and by_module else str(path)
