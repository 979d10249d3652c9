"""Trust in code of other users: code in a run's folder is not imported, unless the user trusts the folder's author.

A run names its environment, wrappers, algorithm and policy, and names are data. Only the import shows which file a name
leads to. So the check is made there, for each module and for all that it imports in turn.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType

MANIFEST = "manifest.json"  # marks a checkpoint, whose run is the folder above it
COMMANDS = "command.txt"  # of a run
LINKS = 40  # symbolic links in one path, as in Linux
SAFE_PATH = "PYTHONSAFEPATH"  # keeps Python from looking for modules in the current folder
Identity = tuple[int, int]  # device and inode of a folder: one folder has many paths

_refused: dict[Identity, str] = {}  # folders whose code is not run, with their paths
_trusted: frozenset[Identity] = frozenset()


class Untrusted(ValueError):
    """Code of a run's own folder would have run."""


@contextmanager
def code_of(*runs: str | Path | None, trust: bool = False) -> Iterator[None]:
    """Refuse to import code in the folders of these runs within the block. With trust, allow it, in inner blocks too.

    runs: folders of runs or of checkpoints in them; None is left out.
    Raises Untrusted, also later and within imports, where such code would be run.
    """
    global _refused, _trusted
    before = _refused, _trusted, os.environ.get(SAFE_PATH)
    found = {_identity(folder): folder for run in runs if run for folder in _folders(Path(run))}
    if trust:
        _trusted |= {identity for identity in found if identity}
    new = {x: str(folder) for x, folder in found.items() if x and not _is_in_trusted(folder)}
    _refused = {x: folder for x, folder in (_refused | new).items() if x not in _trusted}
    if _refused and _GUARD not in sys.meta_path:
        sys.meta_path.insert(0, _GUARD)
    try:
        _secure_current_folder()
        yield
    finally:
        _refused, _trusted, safe_path = before
        if not _refused and _GUARD in sys.meta_path:
            sys.meta_path.remove(_GUARD)
        if safe_path is None:
            os.environ.pop(SAFE_PATH, None)


def is_run(folder: str | Path) -> bool:
    """Tell whether a folder is a run or a checkpoint, or was downloaded from a hub."""
    marks = (COMMANDS, MANIFEST, f"*/{MANIFEST}")
    return any(any(Path(folder).glob(mark)) for mark in marks) or _is_downloaded(Path(folder).absolute())


def run_of(config: str | Path | None) -> Path | None:
    """The folder of the run that a file of settings is of; None for a file of the user's own."""
    folder = None if config is None else Path(config).parent
    return folder if folder is not None and is_run(folder) else None


def is_trusted(run: str | Path) -> bool:
    """Tell whether a block of code_of() with trust names this run."""
    return any(_is_in_trusted(folder) for folder in _folders(Path(run)))


def refused_folders() -> tuple[str, ...]:
    """The folders whose code is refused now, for code_of() in another process."""
    return tuple(_refused.values())


def refused_folder(path: str | Path) -> str | None:
    """The refused folder in which a path is, or through which its symbolic links lead; None if it is in none."""
    if not _refused:
        return None
    path = Path(path).absolute()
    here, rest, links, owner = Path(path.anchor), [*reversed(path.parts[1:])], 0, None
    while rest:
        part = rest.pop()
        step = here.parent if part == ".." else here / part
        if links < LINKS and part != ".." and step.is_symlink():
            target, links = Path(os.readlink(step)), links + 1
            here = Path(target.anchor) if target.is_absolute() else here
            rest += reversed(target.parts[1:] if target.is_absolute() else target.parts)
            continue
        here, identity = step, _identity(step)
        if identity in _refused:
            owner = _refused[identity]
        elif identity in _installed():  # such as a virtual environment in the folder
            owner = None
    return owner


def check_code(name: str, path: str | Path) -> None:
    """Raise Untrusted where a file of code is in a folder that is refused. name: of what it was to be imported as."""
    if folder := refused_folder(path):
        raise Untrusted(
            f"{name}, whose code is in the run's own folder ({folder}), would run here. Read it, and add --trust if "
            "you trust who made this folder; from Python, give train() your own env, algorithm, policy and wrapper"
        )


class _Guard:
    """Stands before all other finders of modules: what they find in a refused folder is not loaded."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        for finder in [*sys.meta_path]:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec: ModuleSpec | None = find and find(name, path, target)
            if spec is None:
                continue
            for place in (spec.origin if spec.has_location else None, getattr(spec.loader, "path", None)):
                if isinstance(place, str):
                    check_code(f"the module {name}", place)
            return spec
        return None


_GUARD = _Guard()


def _folders(run: Path) -> Iterator[Path]:
    """The folder of a run, given by it or a checkpoint in it, and all that was downloaded from a hub with it."""
    for place in dict.fromkeys((Path(os.path.abspath(run)), run.resolve())):
        yield place
        if any((place.with_name(name) / MANIFEST).is_file() for name in (place.name, f"{place.name}.previous")):
            yield place.parent
        yield from (outer for outer in place.parents if _is_downloaded(outer))


def _is_downloaded(folder: Path) -> bool:
    """Tell whether huggingface_hub has written this folder for one repository, in its cache or elsewhere."""
    in_cache = folder.parent.name == "snapshots" and folder.parent.parent.name.startswith("models--")
    return in_cache or (folder / ".cache" / "huggingface" / "download").is_dir()


def _is_in_trusted(folder: Path) -> bool:
    return any(_identity(outer) in _trusted for outer in (folder, *folder.parents))


def _identity(path: Path) -> Identity | None:
    try:
        found = path.stat()
    except (OSError, ValueError):  # there is none, or its name is none
        return None
    return found.st_dev, found.st_ino


@cache
def _installed() -> frozenset[Identity | None]:
    """Folders of installed packages, and that of this one."""
    known = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    folders = map(Path, [*known, *site.getsitepackages(), site.getusersitepackages()])
    return frozenset(map(_identity, [*folders, Path(__file__).parents[1]])) - {None}


def _secure_current_folder() -> None:
    """Keep the Python processes that are started from importing modules of a refused current folder.

    Raises Untrusted if the folder has settings of Numba, which name folders of pickles and libraries to load.
    """
    folder = refused_folder(Path.cwd())
    if folder is None:
        return
    os.environ.setdefault(SAFE_PATH, "1")
    if Path(".numba_config.yaml").exists():
        check_code("Numba's settings in .numba_config.yaml", ".numba_config.yaml")
