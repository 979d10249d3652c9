"""The key under which the result of a trace is kept on disk: a digest of everything that the trace reads."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Iterable, Mapping
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch

from headrace.core.closure import Reach
from headrace.kernels.rows.tracing.inputs import Given
from headrace.kernels.runtime.native import processor


class Key:
    """Key under which the result of a trace is kept.

    text: a digest of everything that any trace of these inputs and this code reads. settings: names of others, and
    their values as text. read: those settings that the trace has read, in order.
    """

    def __init__(self, text: str, settings: Mapping[str, str]) -> None:
        self.text, self.settings = text, settings
        self.read: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Digest that is the same in all processes whose traces are the same."""
        return digest_of([self.text, *(f"{name} {self.settings[name]}" for name in self.read)])

    @property
    def of_all(self) -> str:
        """The digest of a trace that reads all settings."""
        return digest_of([self.text, *(f"{name} {value}" for name, value in sorted(self.settings.items()))])

    def reading(self, names: Iterable[str]) -> Key:
        """Note which of these names are settings that the trace has read. Returns this key."""
        self.read = tuple(sorted({*names} & self.settings.keys()))
        return self


def key_of(found: Given, reached: Reach, gradients: bool, target: str) -> Key | None:
    """Key of a trace; None where the code would read something unknown, as by an import within a function. target: the
    target that machine code is made for."""
    if _reads_more(found, reached):
        return None
    return Key(digest_of([str(gradients), target, *_made_by(), *found.lines(), reached.text]), found.settings)


def source_lines(found: Given, reached: Reach, gradients: bool) -> list[str] | None:
    """Describe all that a trace reads, without settings, as text that is the same for every machine and version of
    PyTorch. None in the cases of key_of(), and where source is not available."""
    if _reads_more(found, reached):
        return None
    try:
        return [str(gradients), reached.digest, *found.lines(reached.named)]
    except OSError:
        return None


def _reads_more(found: Given, reached: Reach) -> bool:
    """Tell whether the code would read something unknown."""
    modes = torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack()
    return bool(reached.unseen or found.unseen() or modes)


def digest_of(lines: Iterable[str]) -> str:
    """A digest of lines."""
    return hashlib.sha256("\0".join(lines).encode(errors="surrogatepass")).hexdigest()[:32]


@cache
def _made_by() -> tuple[str, ...]:
    """Versions and sources, besides the trace, that the machine code depends on."""
    rows = Path(__file__).parents[1]
    text = b"\0".join(path.read_bytes() for kind in ("*.py", "*.gz") for path in sorted(rows.rglob(kind)))
    sources = hashlib.sha256(text).hexdigest()
    return sources, torch.__version__, version("llvmlite"), platform.python_version(), *processor()[:2]
