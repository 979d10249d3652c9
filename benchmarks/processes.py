"""Processes of this machine: what one has started, and whether it runs."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path


def descendants(pid: int) -> list[int]:
    """Processes that a process has started, and those that these have."""
    found = []
    with suppress(OSError):  # it ends meanwhile
        for task in Path(f"/proc/{pid}/task").glob("*/children"):
            for child in map(int, task.read_text().split()):
                found += [child, *descendants(child)]
    return found


def alive(pid: int) -> bool:
    """Tell whether a process runs. False for a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
