"""The processor: its name, the number of cores, how work is divided among them, and how threads of OpenMP libraries
wait. Imports no torch, so that worker processes start quickly, and OpenMP's setting is made before torch reads it."""

from __future__ import annotations

import math
import os
import platform
import sys
from contextlib import suppress
from functools import cache
from itertools import pairwise
from pathlib import Path

SETTINGS = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")  # of OpenMP, by which users choose
_passive: list[bool] = []  # whether this process was given the setting here; empty before it was asked


def processor() -> str:
    """The processor's name, with family and model where the system reports them: "AMD EPYC" of a virtual machine may be
    any of several processors."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    if "model name" not in facts:
        return platform.machine()
    which = f" (family {facts['cpu family']}, model {facts['model']})" if "cpu family" in facts else ""
    return facts["model name"] + which


def cores() -> int:
    """The number of cores that this process may use: those it may run on, or fewer where a control group grants it
    less time, as `docker run --cpus 2` and Kubernetes' limits do. At least 1."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(min(allowed, math.ceil(min(quota(), allowed))), 1)


@cache
def quota(root: Path = Path("/")) -> float:
    """Cores' worth of time that Linux's control groups grant this process; infinity without a limit.

    A group's limit also holds for all groups below it. Inside a container the groups above its own are not visible.
    """
    granted = [math.inf]
    with suppress(OSError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if controllers in ("", "cpu", "cpu,cpuacct", "cpuacct,cpu"):
                base = root / "sys/fs/cgroup" / controllers
                group = group.strip("/")
                folders = [base / group, *(base / parent for parent in Path(group).parents), base]
                granted += [_granted(folder) for folder in folders]
    return min(granted)


def _granted(folder: Path) -> float:
    """The limit that one control group sets, of version 2 or 1."""
    with suppress(OSError, ValueError):  # no limit, "max", or another version
        time, period = (folder / "cpu.max").read_text().split()
        return float(time) / float(period)
    with suppress(OSError, ValueError):
        time, period = ((folder / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return float(time) / float(period) if float(time) > 0 else math.inf
    return math.inf


def partition(number: int, parts: int) -> list[slice]:
    """Divide `number` things among several processes: a slice for each. Sizes differ by one at most."""
    return [slice(first, end) for first, end in pairwise(number * part // parts for part in range(parts + 1))]


def let_threads_sleep() -> None:
    """Let threads of OpenMP, including torch's, sleep at once when they wait, in this process and those it starts. By
    default they spin for milliseconds, on cores that kernels need.

    Does nothing if the user has set one of SETTINGS, or if torch is loaded already."""
    if not _passive:
        _passive.append(not set_by_user() and "torch" not in sys.modules)
        if _passive[0]:
            os.environ["OMP_WAIT_POLICY"] = "passive"


def leave_threads_alone() -> None:
    """Take let_threads_sleep() back for processes that are started from now on, which run a user's program as it is."""
    if any(_passive):
        _passive[:] = [False]
        del os.environ["OMP_WAIT_POLICY"]


def set_by_user() -> bool:
    """Tell whether the user has set one of SETTINGS in the environment of this process."""
    return not any(_passive) and any(name in os.environ for name in SETTINGS)


def spinning(threads: int) -> str:
    """Line for a training in which torch's threads, of this number, spin on cores of the kernels. Empty where they do
    not."""
    if threads < 2 or any(_passive) or set_by_user():
        return ""
    return (
        f"torch was imported before headrace, and its {threads} threads spin when they wait, on cores that kernels "
        "use: import headrace first, set OMP_WAIT_POLICY=passive, or train with threads=1"
    )
