"""Entry points of the package's own kernels, compiled once per machine and kept on disk."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import Any

from headrace.kernels import cache as disk
from headrace.kernels.native import Native

_FOLDER = Path(__file__).parent
_KERNELS = ("jit", "simd", "functions", "activations", "dense", "mlp_cpu", "heads_cpu", "adam_cpu", "team")
_OTHERS: tuple[str, ...] = ("act_cpu", "foreign", "tables", "ppo_job", "memory_job", "chains", "chain_tables")
_OTHERS += ("actor_q_job", "q_job", "native", "machine_code", "thirds", "tiles", "chain_tiles")


@cache
def _text(name: str) -> str:
    """The text of headrace.kernels.`name`, which also tells whether a file that it imports has changed."""
    digest = hashlib.sha256()
    for part in _KERNELS + _OTHERS:
        digest.update((_FOLDER / f"{part}.py").read_bytes())
    return f"{(_FOLDER / f'{name}.py').read_text()}\n# with {digest.hexdigest()}\n"


def entry(name: str, function: str, arguments: tuple[Any, ...], announcement: str) -> Native:
    """A function of the module headrace.kernels.`name`, compiled for arguments of these types; announced if that takes
    time. It does not look at its arguments' types again: they must not change."""
    return disk.entry(name, _text(name), function, arguments, announcement)
