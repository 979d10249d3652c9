"""Entry points of the package's own kernels, compiled once per machine and kept on disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from headrace.kernels import cache as disk

_FOLDER = Path(__file__).parent
_PARTS = ("jit", "simd", "functions", "activations", "dense", "mlp_cpu", "heads_cpu", "adam_cpu", "team")


@cache
def module(name: str) -> ModuleType:
    """The module headrace.kernels.`name`, from the kernels' folder: Numba keeps its code beside the file.

    Numba compiles again when that file changes, but not when one that it imports does: so the file is named by the
    digest of all of them.
    """
    digest = hashlib.sha256()
    for part in _PARTS:
        digest.update((_FOLDER / f"{part}.py").read_bytes())
    return disk.load(name, f"{(_FOLDER / f'{name}.py').read_text()}\n# with {digest.hexdigest()}\n")


def entry(name: str, function: str, arguments: tuple[Any, ...], announcement: str) -> Callable[..., Any]:
    """A function of module(name), compiled for arguments of these types; announced if that takes time.

    It does not look at its arguments' types again, which takes Numba longer than a small job: they must not change.
    """
    from numba import typeof

    kernel, types = module(name), tuple(typeof(argument) for argument in arguments)
    disk.compile_once(kernel, {function: types}, announcement)
    return getattr(kernel, function).overloads[types].entry_point
