"""What a check has found, and how people see it."""

from __future__ import annotations

from typing import Literal, NamedTuple


class Finding(NamedTuple):
    """One check of an environment. outcome: "wrong" is to be mended, a "note" is for people to judge."""

    check: str
    outcome: Literal["ok", "note", "wrong"]
    found: str
    advice: str = ""  # what to do about it
