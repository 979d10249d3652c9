"""Names of files that do not replace what is there."""

from __future__ import annotations

from pathlib import Path


def free(name: str) -> Path:
    """A file's name, or, where it is taken, with the next free number: play.gif, play_2.gif ..."""
    path, number = Path(name), 2
    while path.exists():
        path, number = Path(name).with_stem(f"{Path(name).stem}_{number}"), number + 1
    return path
