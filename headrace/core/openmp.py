"""How threads of OpenMP libraries wait: torch's, which by default spin for milliseconds on cores that kernels need.

The library reads its setting when it is loaded, so it is made before torch is imported. Imports nothing.
"""

from __future__ import annotations

import os
import sys

SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")  # environment variables by which users choose
_passive: list[bool] = []  # whether this process was given the setting here; empty before it was asked


def let_threads_sleep() -> None:
    """Let threads of OpenMP sleep at once when they wait, in this process and those that it starts.

    Nothing where the user has chosen, or torch is loaded already."""
    if not _passive:
        _passive.append(not set_by_user() and "torch" not in sys.modules)
        if _passive[0]:
            os.environ["OMP_WAIT_POLICY"] = "passive"


def set_by_user() -> bool:
    """Whether the environment of this process has a setting of the user's."""
    return not any(_passive) and any(name in os.environ for name in SETTINGS)


def spinning(threads: int) -> str:
    """A line for a training in which torch's threads, of this number, spin on cores of the kernels; empty where they do
    not."""
    if threads < 2 or any(_passive) or set_by_user():
        return ""
    return (
        f"torch was imported before headrace, and its {threads} threads spin when they wait, on cores that kernels "
        "use: import headrace first, set OMP_WAIT_POLICY=passive, or train with threads=1"
    )
