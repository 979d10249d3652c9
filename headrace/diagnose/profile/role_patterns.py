"""The roles of functions of known libraries, by pattern. Users can add patterns in a TOML file.

A pattern is matched against a function's full name, `module.Class.method`, and against the same method of each base of
its class: `gymnasium.core.Env.step` matches the step of every environment. If several roles match, the first one
counts. The file looks like this:

    [roles]
    environment = ["my_game.engine.*"]
    "learning.forward" = ["my_game.losses.*"]
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable
from fnmatch import translate
from pathlib import Path

from headrace.diagnose.profile.profile import Role

OWN = Path(__file__).with_suffix(".toml")  # the patterns for known libraries
WHOLE_CALL = (Role.EVALUATION, Role.START_UP)  # roles that include everything that their functions call


class Hints:
    """Roles of functions, by pattern; those of the user's file come first."""

    def __init__(self, file: Path | None = None) -> None:
        """Raises FileNotFoundError, and ValueError if the file is not such a table."""
        tables = [table for path in ([file, OWN] if file else [OWN]) for table in read_roles(path).items()]
        self._patterns, self._plumbing = _compiled(tables), _compiled(read_roles(OWN, "plumbing").items())

    def role(self, names: tuple[str, ...]) -> Role | None:
        """The role of a function under any of its names, or None."""
        matching = (role for role, pattern in self._patterns if any(pattern.match(name) for name in names))
        return next(matching, None)

    def plumbing(self, name: str) -> Role | None:
        """The role of a library's own code around the parts that have one, or None."""
        return next((role for role, pattern in self._plumbing if pattern.match(name)), None)


def _compiled(tables: Iterable[tuple[Role, tuple[str, ...]]]) -> list[tuple[Role, re.Pattern[str]]]:
    return [(role, re.compile("|".join(map(translate, patterns)))) for role, patterns in tables if patterns]


def read_roles(file: Path, table: str = "roles") -> dict[Role, tuple[str, ...]]:
    """A table of such a file: role -> patterns."""
    try:
        found = tomllib.loads(file.read_text(encoding="utf-8"))[table]
        return {Role(role): tuple(patterns) for role, patterns in found.items()}
    except (tomllib.TOMLDecodeError, KeyError, ValueError, AttributeError, TypeError) as error:
        roles = ", ".join(role.value for role in Role)
        raise ValueError(
            f"{file} is no valid hints file ({error}): it needs [roles], with lists of patterns under any of {roles}"
        ) from error


# of functions without a frame, by the name in the calling line
C_FUNCTIONS = {name: role for role, names in read_roles(OWN, "c_functions").items() for name in names}
