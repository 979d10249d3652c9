"""The key under which the result of a trace is kept on disk: a digest of everything that the trace reads."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path

import torch

from headrace.core.closure import Reach
from headrace.kernels.rows.inputs import Given
from headrace.kernels.runtime.native import processor


def key_of(found: Given, reached: Reach, gradients: bool, target: str) -> str | None:
    """The same in all processes whose traces of these inputs and this code are the same; None where the code would read
    what is not known, as by an import within a function. target: what machine code is made for."""
    if reached.unseen or found.unseen() or torch._C._len_torch_function_stack() or torch._C._len_torch_dispatch_stack():
        return None
    lines = [str(gradients), target, *_made_by(), *found.lines(), reached.text]
    return hashlib.sha256("\0".join(lines).encode(errors="surrogatepass")).hexdigest()[:32]


@cache
def _made_by() -> tuple[str, ...]:
    """What turns a trace into machine code, besides the trace."""
    rows = Path(__file__).parent
    text = b"\0".join(path.read_bytes() for path in sorted(rows.rglob("*.py")))
    sources = hashlib.sha256(text).hexdigest()
    return sources, torch.__version__, version("llvmlite"), platform.python_version(), *processor()[:2]
