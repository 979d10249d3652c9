"""Memory, processes and files that workers and their rollouts need, checked against the machine's limits."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from headrace.core.cores import cores

DESCRIPTORS = 4  # of a worker, in its parent
SPARE = 0.9  # fraction of the free memory that may be used
MEGABYTE = 1e6


def free_memory() -> float | None:
    """Bytes of memory that are free, within a container's limit; None where the system does not report it."""
    meminfo = Path("/proc/meminfo")
    if not meminfo.is_file():
        return None
    free = next(int(line.split()[1]) * 1024 for line in meminfo.read_text().splitlines() if "MemAvailable" in line)
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.is_file() and used.is_file() and limit.read_text().strip().isdigit():
        free = min(free, int(limit.read_text()) - int(used.read_text()))
    return float(free)


def own_memory(pid: int | None) -> float | None:
    """Bytes that a process does not share with others; None where the system does not report it."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return None
    return float(sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Private_")))


def check_processes(number: int) -> None:
    """Raise ValueError, with the numbers, for more processes or open files than this user may have."""
    if sys.platform == "win32":
        return
    import resource

    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    allowed = (files - len(os.listdir("/proc/self/fd" if Path("/proc/self/fd").is_dir() else "/dev/fd"))) // DESCRIPTORS
    if files != resource.RLIM_INFINITY and number > allowed:
        raise ValueError(
            f"{number} workers need {number * DESCRIPTORS} open files, and this process may open {files} in all: use "
            f"at most {allowed}, or raise the limit (ulimit -n)"
        )
    processes = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if processes != resource.RLIM_INFINITY and number > processes:
        raise ValueError(f"{number} workers are more processes than this user may have, {processes} (ulimit -u)")


def check_memory(number: int, each: float | None) -> None:
    """Raise MemoryError, with the numbers, where `number` processes of `each` bytes do not fit."""
    free = free_memory()
    if each is None or free is None or number * each <= SPARE * free:
        return
    raise MemoryError(
        f"{number} workers of {each / MEGABYTE:,.0f} MB each take {number * each / MEGABYTE:,.0f} MB, and there are "
        f"{free / MEGABYTE:,.0f} MB free: use at most {max(1, int(SPARE * free / each))} workers ({cores()} cores)"
    )


def check_rollout(size: int, num_steps: int, num_envs: int, folder: str) -> None:
    """Raise MemoryError, with the numbers, where a rollout does not fit into the free shared memory."""
    free = shutil.disk_usage(folder).free
    memory = free_memory()
    if size <= free and (memory is None or size <= SPARE * memory):
        return
    where, left = (f"{folder} has", free) if size > free else ("there are", memory or 0)
    short = f"{where} {left / MEGABYTE:,.0f} MB free"
    raise MemoryError(
        f"a rollout of {num_steps} steps of {num_envs} environments takes {size / MEGABYTE:,.0f} MB, and {short}: use "
        "fewer environments or steps, or give it more (in Docker: --shm-size)"
    )


def in_words(what: str, processes: list[int | None], shared: str) -> str:
    """Processes and their memory, in a line. what: what is in them; processes: their pids; shared: what they share."""
    count = f"{what} in {len(processes)} processes of one thread ({cores()} cores)"
    each, free = own_memory(processes[0]), free_memory()
    if each is None or free is None:
        return f"{count}; {shared}"
    memory = f"about {each / MEGABYTE:,.0f} MB each, {len(processes) * each / MEGABYTE:,.0f} MB in all"
    return f"{count}; {memory}, of {free / MEGABYTE:,.0f} MB free; {shared}"
