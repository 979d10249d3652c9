"""Modules of users, by file or package."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from contextlib import suppress
from importlib.machinery import PathFinder
from pathlib import Path
from pkgutil import iter_modules
from traceback import walk_tb
from types import ModuleType
from typing import Any

from headrace.core.packages import how_to_install
from headrace.core.source_text import parse
from headrace.core.text import did_you_mean
from headrace.core.trust import check_code

_files: dict[tuple[Path, int], ModuleType] = {}  # by path and time of change: an edited file is loaded again
_folders: list[str] = []  # in which neighbours of these files are looked for, those of the last file first


class Misnamed(ValueError):
    """A name that names nothing. given: the name, or its part before a colon. instead: what was meant, if that is
    certain, else "". flags: flags of the command that was given the name."""

    def __init__(self, message: str, given: str, instead: str = "", flags: tuple[str, ...] = ()) -> None:
        super().__init__(message, given, instead, flags)
        self.given, self.instead, self.flags = given, instead, flags

    def __str__(self) -> str:
        return str(self.args[0])

    def mended(self, name: str) -> str:
        """Replace the wrong part of a name by `instead`; another name is returned as it is."""
        place, colon, own = (reference := absolute_reference(name)).rpartition(":")
        if reference == self.given:
            return self.instead
        return f"{self.instead}{colon}{own}" if place == self.given else name


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
    """Tell whether import_user_module() loaded this module from a file."""
    return module in _files.values()


def _from_file(path: Path) -> ModuleType:
    check_code(str(path), path.expanduser())
    path = path.expanduser().resolve()
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    version = (path, path.stat().st_mtime_ns)
    if version not in _files:
        _look_in(path.parent)  # the file may import its neighbours
        _check_neighbours(path)
        spec = importlib.util.spec_from_file_location(_module_name(path), path)
        assert spec is not None and spec.loader is not None  # a path that ends in .py has a loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        try:
            spec.loader.exec_module(module)
        except ImportError as error:
            if meant := by_module(path, error.name):
                raise meant from error
            raise
        _files[version] = module
    return _files[version]


def _module_name(path: Path) -> str:
    """`my_env`, unless that is another module's name, loaded or not."""
    mine = _home(path.stem) in (None, path.parent)
    if (taken := sys.modules.get(path.stem)) is not None:
        mine = getattr(taken, "__file__", None) == str(path)
    return path.stem if mine else f"{path.stem}_{abs(hash(path)):x}"


def _look_in(folder: Path) -> None:
    """Let modules of a folder be found, after the installed ones and before those of files named earlier."""
    first = next((i for i, known in enumerate(sys.path) if known in _folders), len(sys.path))
    if str(folder) not in sys.path[:first]:
        sys.path[:] = [*sys.path[:first], str(folder), *(known for known in sys.path[first:] if known != str(folder))]
        _folders.append(str(folder))
    importlib.invalidate_caches()


def _home(name: str) -> Path | None:
    """The folder with the top-level module that `import name` gives; None if there is none."""
    loaded = sys.modules.get(name)
    spec = getattr(loaded, "__spec__", None) or PathFinder.find_spec(name)
    if spec is None:
        return None
    if packages := spec.submodule_search_locations:
        return Path(next(iter(packages))).resolve().parent
    return Path(spec.origin or "").resolve().parent if spec.has_location else Path()  # of what is built in


def _check_neighbours(path: Path) -> None:
    """Raise ImportError where the file imports a module of its own folder, and another of that name is found."""
    for name in sorted(_neighbours(path, set()) - {"headrace", path.stem}):
        other = _home(name) or path.parent
        if other != path.parent and not {"site-packages", "dist-packages"} & {*other.parts}:
            raise ImportError(
                f"{path} imports {name}, which is in the same folder, but in this process {name} is the one in "
                f"{other}: rename one of the two, or use them in different processes"
            )


def _neighbours(path: Path, known: set[str]) -> set[str]:
    """Modules of the same folder that a file imports, with those that they import in turn, added to `known`."""
    with suppress(SyntaxError, ValueError):  # which importing it will show
        for node in ast.walk(parse(path.read_bytes())):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names = [node.module]
            for name in {name.partition(".")[0] for name in names} - known:
                spec = PathFinder.find_spec(name, [str(path.parent)])
                if spec and spec.origin and name not in sys.stdlib_module_names:  # without one: any folder
                    known.add(name)
                    _neighbours(Path(spec.origin), known)
    return known


def _from_package(name: str) -> ModuleType:
    top = name.partition(".")[0]
    if top and ((home := _home(top)) is None or (str(home) in _folders and home != Path.cwd())):
        _add_current_folder(top)
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if explained := _explained(error, name):
            raise ImportError(explained) from error
        raise  # of a module that the named one imports


def _explained(error: ImportError, name: str) -> str:
    """Explain to the user that a named module, or one that it needs, is missing. Empty for other import errors."""
    if error.name is None or not isinstance(error, ModuleNotFoundError):
        return ""
    how = how_to_install(name)
    if f"{name}.".startswith(f"{error.name}."):
        near = near_modules(error.name) or (how and f": {how}") or ": give a path/to/file.py, or an importable module"
        return f"there is no module {error.name!r}{near}"
    if how:
        return f"{name} needs {error.name}, which is not installed: {how}"
    files = [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)]
    files = [file for file in files if not file.startswith("<frozen")]
    return f"{name} needs {error.name}, which {files[-1]} imports, and that is not installed"


def by_module(path: Path, missing: str | None) -> Misnamed | None:
    """The error for a file that needs what is in a folder above its own: it has to be named by its module.

    missing: the module that was not found, None for a relative import. None where no folder above has it."""
    top = (missing or "").partition(".")[0]
    for folder in path.parents[1:]:
        has_it = (folder / top).is_dir() or (folder / f"{top}.py").is_file() if top else not _is_package(folder)
        if has_it and (top or _is_package(path.parent)):
            module = dotted(path.relative_to(folder))
            what = f"imports {missing}" if top else "imports from the package that it belongs to"
            where = "" if folder == Path.cwd() else f", in the folder {folder}"
            return Misnamed(f"{path} {what}: write {module} in place of the file{where}", str(path), module)
    return None


def _is_package(folder: Path) -> bool:
    return (folder / "__init__.py").is_file()


def dotted(path: Path) -> str:
    """The module's name of a file, by its path from the folder where modules are looked for."""
    return ".".join(part for part in path.with_suffix("").parts if part != "__init__")


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
        if sys.modules.get(top):
            raise ImportError(
                f"in this process {top} is the module in {_home(top)}, and another is in the current folder: give the "
                "path of its file in place of its module's name"
            )
        _look_in(Path(here))
