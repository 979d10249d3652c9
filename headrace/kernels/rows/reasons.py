"""Reasons why a loss is not compiled: sentences that begin with the user's file and line, where one is known."""

from __future__ import annotations

import re
import sys
import traceback
from functools import cache
from pathlib import Path
from types import TracebackType

import torch

PACKAGE, TORCH = Path(__file__).parents[2], Path(torch.__file__).parent
_FRAME = re.compile(r'File "([^"]+)", line (\d+), in')


class NotRows(Exception):
    """A loss that cannot be compiled. where: "file.py:12", or empty where no line of the user's is known.

    for_good: whatever its arguments are. passing: it may be otherwise in another process, as where a file was missing.
    """

    def __init__(self, reason: str, where: str = "", for_good: bool = False, passing: bool = False) -> None:
        super().__init__(f"{where} {reason}" if where else reason)
        self.reason, self.where, self.for_good, self.passing = reason, where, for_good, passing


class AsksSettings(NotRows):
    """A loss that asks for the numbers of settings, as by an `if`: it can be compiled with these as constants."""

    def __init__(self, names: set[str]) -> None:
        super().__init__(f"chooses by the setting {', '.join(sorted(names))}")
        self.names = names


@cache
def is_users(file: str) -> bool:
    """Tell whether a file is neither torch's, nor Python's, nor this package's other than algorithms and policies."""
    path = Path(file)
    own = PACKAGE in path.parents and "algorithms" not in path.parts and "policies" not in path.parts
    return not (own or TORCH in path.parents or file.startswith("<") or "/lib/python3" in file.replace("\\", "/"))


def shown(file: str, line: int | str) -> str:
    """A place in a file, for messages."""
    return f"{Path(file).name}:{line}"


def stack_here() -> str:
    """The innermost place of the user's in the current stack, as a line of a stack; empty where there is none."""
    frame = sys._getframe(1)
    while frame is not None:
        if is_users(frame.f_code.co_filename):
            return f'File "{frame.f_code.co_filename}", line {frame.f_lineno}, in {frame.f_code.co_name}'
        frame = frame.f_back  # type: ignore[assignment]
    return ""


def place_of_code(function: object) -> str:
    """The line at which a function of the user's begins."""
    code = getattr(function, "__code__", None)
    return shown(code.co_filename, code.co_firstlineno) if code is not None and is_users(code.co_filename) else ""


def place_in(stack: str | None) -> str:
    """The innermost place of the user's in a stack as text, outermost first."""
    found = [(file, line) for file, line in _FRAME.findall(stack or "") if is_users(file)]
    return shown(*found[-1]) if found else ""


def place_of(trace: TracebackType | None) -> str:
    """The innermost place of the user's in a traceback."""
    found = [frame for frame in traceback.extract_tb(trace) if is_users(frame.filename)]
    return shown(found[-1].filename, found[-1].lineno or 0) if found else ""


_PASSING = (OSError, MemoryError, ImportError)  # what another process may not meet


def of_compiler(error: Exception) -> NotRows:
    """Reason why a traced loss could not be made into machine code: a mistake that is not the user's."""
    reason = (
        f"its machine code could not be made ({_first_line(error)}); this is an error of headrace's: please report it"
    )
    return NotRows(f"{reason} with the loss", passing=isinstance(error, _PASSING))


def of_error(error: Exception) -> NotRows:
    """Reason why a loss could not be traced."""
    place, text = place_of(error.__traceback__), str(error)
    if "numpy" in text.lower() or "data pointer" in text.lower():
        reason = "leaves PyTorch (such as by .numpy())"
    elif "functorch" in text and "autograd.Function" in text:
        reason = "uses an autograd.Function"
    else:
        reason = f"cannot be traced: {_first_line(error)}"
    return NotRows(reason, place, passing=isinstance(error, _PASSING))


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
