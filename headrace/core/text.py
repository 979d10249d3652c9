"""Text that users read: plain tables, and hints at names that were perhaps meant."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from headrace.core.packages import of_headrace

_VERSION = re.compile(r"[-_]v(\d+)$")


def printable(text: object, keep: str = "") -> str:
    """A text whose control characters are written out, as \\x1b, and so are marks of direction and undecodable bytes.

    Names of files, settings and environments come from anywhere, and a terminal obeys what is in them. keep:
    characters that stay, such as newlines of a text of several lines.
    """
    text = str(text)
    if text.isprintable():
        return text
    return "".join(x if x.isprintable() or x in keep else x.encode("unicode_escape").decode() for x in text)


def plain_table(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells as aligned columns, two blanks apart; a row is one line, whatever is in its cells."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def shown(value: object, most: int = 200) -> str:
    """A value's repr on one line, cut after `most` characters: for messages, since an image's repr fills pages."""
    return shortened(repr(value), most)


def shortened(text: str, most: int = 200) -> str:
    """A text on one line, cut after `most` characters."""
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """ "; did you mean 'x' or 'y'?" for the known names closest to an unknown one; empty where none is close.

    Versions ("-v1", "_v3") do not make names alike: the newest of each name is meant.
    """
    known = sorted(known, key=_version)
    exact = [other for other in known if other.lower() == name.lower()]
    newest = {_VERSION.sub("", other.lower()): other for other in known}
    stem = _VERSION.sub("", name.lower())
    stems = [stem] if stem in newest else get_close_matches(stem, sorted(newest), n=3, cutoff=0.65)
    close = exact or [newest[one] for one in stems]
    return f"; did you mean {' or '.join(map(repr, close))}?" if close else ""


def _version(name: str) -> int:
    """The number at the end of a name with a version, -1 for one without."""
    found = _VERSION.search(name)
    return int(found[1]) if found else -1


def is_message(error: BaseException) -> bool:
    """Tell whether an error is for the user: one of the system, such as a missing file, of Headrace, or of Gymnasium.

    Errors that other code raises in this process (torch, the user's environment) keep their traceback. Those of worker
    processes are raised here again, with the worker's traceback.
    """
    if isinstance(error, OSError):
        return True
    if not isinstance(error, Exception):
        return False
    if isinstance(error, AssertionError | AttributeError | KeyError | IndexError | NameError):
        return False
    last = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-1]
    module = last.f_globals.get("__name__", "")
    return of_headrace(module) or module.partition(".")[0] == "gymnasium"
