"""Entry points of the package's own kernels, compiled once per machine and kept on disk."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from pathlib import Path

from headrace.kernels.runtime import cache as disk
from headrace.kernels.runtime.native import Argument, Native

PACKAGE = Path(__file__).parents[2]
_IMPORT = re.compile(r"^ *from headrace\.([\w.]+) import (\([^)]*\)|[^#\n]*)", re.MULTILINE)


def imported(module: str) -> set[str]:
    """The modules of headrace that `module` reaches by its imports, itself included: "kernels.nn.simd" and so on."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += _direct(name)
    return found


@cache
def _direct(module: str) -> tuple[str, ...]:
    """The modules that a module imports: `home` in `from home import name`, or home.name where home is a folder."""
    found: list[str] = []
    for home, names in _IMPORT.findall(_source(module).decode()):
        is_file = _path(home).is_file()
        found += [home] if is_file else [f"{home}.{name}" for name in re.findall(r"\w+", names)]
    return tuple(name for name in dict.fromkeys(found) if _path(name).is_file())


@cache
def _text(name: str) -> str:
    """The text of headrace.kernels.`name`, with a digest of the files that it imports."""
    module = f"kernels.{name}"
    digest = hashlib.sha256()
    for part in sorted(imported(module)):
        digest.update(_source(part))
    return f"{_source(module).decode()}\n# with {digest.hexdigest()}\n"


def _path(module: str) -> Path:
    return PACKAGE / f"{module.replace('.', '/')}.py"


@cache
def _source(module: str) -> bytes:
    return _path(module).read_bytes()


def file_name(name: str, function: str, types: str) -> str:
    """Name of the file in which the cache keeps an entry point. types: its arguments', as native.kind() writes them."""
    return disk.file_name(name.replace(".", "_"), _text(name), function, types)


def entry(name: str, function: str, arguments: tuple[Argument, ...], announcement: str) -> Native:
    """Load a function of the module headrace.kernels.`name`, compiled for arguments of these types. Announced if that
    takes time. The types of later arguments are not checked: they must be the same."""
    return disk.entry(name.replace(".", "_"), _text(name), function, arguments, announcement)
