"""The one exception for an environment that cannot be compiled."""

from __future__ import annotations


class EnvError(Exception):
    """An environment's source cannot be compiled: names the user's file and line, what is wrong, what to write."""

    def __init__(self, file: str, line: int, wrong: str, instead: str) -> None:
        super().__init__(f"{file}:{line}: {wrong}. {instead}")
        self.file, self.line, self.wrong, self.instead = file, line, wrong, instead
