"""The number of cores. Imports no torch, so that worker processes start quickly."""

from __future__ import annotations

import os


def cores() -> int:
    """The number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
