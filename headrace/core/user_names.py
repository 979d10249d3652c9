"""Modules of users, by file or package."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from importlib.machinery import PathFinder
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from headrace.core.text import did_you_mean
from headrace.core.trust import check_code

_files: dict[tuple[Path, int], ModuleType] = {}  # by path and time of change: an edited file is loaded again


def import_user_module(place: str) -> ModuleType:
    """The module in `path/to/file.py`, or the one called `package.module`.

    Raises FileNotFoundError for a missing file, ImportError for a missing module, Untrusted for code of strangers.
    """
    return _from_file(Path(place)) if place.endswith(".py") else _from_package(place)


def member(name: str, what: str) -> Any:
    """The class or function that `path/to/file.py:Name` or `package.module:Name` names. what: in words, for messages.

    Raises ValueError where there is none, and what import_user_module() raises.
    """
    place, _, own = name.rpartition(":")
    if not place or not own.isidentifier():
        raise ValueError(f"{what} is {name!r}: name it as path/to/file.py:Name or package.module:Name")
    found = getattr(import_user_module(place), own, None)
    if not callable(found):
        raise ValueError(f"there is no class or function {own!r} in {place}, which was named as {what}")
    return found


def absolute_reference(name: str) -> str:
    """The name by which the same class or function is found from any folder."""
    place, colon, own = name.rpartition(":")
    if not colon:  # a file that does not say which class
        place, own = name, ""
    return f"{Path(place).expanduser().resolve()}{colon}{own}" if place.endswith(".py") else name


def module_of(thing: Any) -> ModuleType | None:
    """The module in which a class or function was defined."""
    return sys.modules.get(thing.__module__)


def is_from_file(module: ModuleType | None) -> bool:
    """Whether import_user_module() loaded this module from a file."""
    return module in _files.values()


def _from_file(path: Path) -> ModuleType:
    check_code(str(path), path.expanduser())
    path = path.expanduser().resolve()
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    version = (path, path.stat().st_mtime_ns)
    if version not in _files:
        if str(path.parent) not in sys.path:
            sys.path.append(str(path.parent))  # the file may import its neighbours
        spec = importlib.util.spec_from_file_location(_module_name(path), path)
        assert spec is not None and spec.loader is not None  # a path that ends in .py has a loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        _files[version] = module
    return _files[version]


def _module_name(path: Path) -> str:
    """`my_env`, unless a module of that name is there already."""
    taken = sys.modules.get(path.stem)
    mine = taken is None or getattr(taken, "__file__", None) == str(path)
    return path.stem if mine else f"{path.stem}_{abs(hash(path)):x}"


def _from_package(name: str) -> ModuleType:
    top = name.partition(".")[0]
    if top and top not in sys.modules and importlib.util.find_spec(top) is None:
        _add_current_folder(top)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module is there, and one that it imports is not
        near = near_modules(error.name) or ": give a path/to/file.py, or a module that can be imported"
        raise ImportError(f"there is no module {error.name!r}{near}") from error


def near_modules(name: str) -> str:
    """ "; did you mean ...?" for the name of no module: modules of the same package, such as other versions."""
    package = name.rpartition(".")[0]
    try:
        spec = importlib.util.find_spec(package) if package else None
    except (ImportError, ValueError):
        return ""
    places = spec.submodule_search_locations if spec else None
    return did_you_mean(name, [f"{package}.{found.name}" for found in iter_modules(places or [])])


def _add_current_folder(top: str) -> None:
    """Let a package of the current folder be found, as by `python -m headrace`: the command that resumes a run is given
    where the script was that named its environment."""
    here = str(Path.cwd())
    if PathFinder.find_spec(top, [here]):
        check_code(f"the module {top}", here)
        sys.path.append(here)
        importlib.invalidate_caches()
