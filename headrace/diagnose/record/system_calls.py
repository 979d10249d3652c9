"""Reads from Linux's /proc the system call in which a thread is blocked, and the object that the call waits for."""

from __future__ import annotations

import os
from pathlib import Path

PROC = Path("/proc")
RUNNING = ""
UNKNOWN = "unknown"  # blocked, where the system call cannot be read
_MACHINE = os.uname().machine if hasattr(os, "uname") else ""
# Objects that system calls wait for, by Linux's number of the call. Calls in FILE wait for their first argument, a file
# descriptor.
FILE = {"x86_64": (0, 1, 17, 18, 19, 20, 16, 40, 42, 43, 44, 45, 46, 47, 288, 299), "aarch64": (
    29, 63, 64, 65, 66, 67, 68, 71, 202, 203, 206, 207, 211, 212, 242, 243
)}.get(_MACHINE, ())  # fmt: skip
WAITS = {
    "x86_64": {
        **dict.fromkeys((35, 230, 34), "a timer"),  # nanosleep, clock_nanosleep, pause
        **dict.fromkeys((202, 65, 220), "a lock"),  # futex, semop, semtimedop
        **dict.fromkeys((61, 247), "a child's end"),  # wait4, waitid
        **dict.fromkeys((74, 75, 162, 306, 26), "a disk (fsync)"),  # fsync, fdatasync, sync, syncfs, msync
        **dict.fromkeys((2, 257, 73, 72, 87, 82, 263), "a file"),  # open, openat, flock, fcntl, unlink, rename
        **dict.fromkeys((69, 70, 242, 243), "a message queue"),
    },
    "aarch64": {
        **dict.fromkeys((101, 115), "a timer"),
        **dict.fromkeys((98, 192, 193), "a lock"),
        **dict.fromkeys((260, 95), "a child's end"),
        **dict.fromkeys((82, 83, 81, 267, 227), "a disk (fsync)"),
        **dict.fromkeys((56, 32, 25, 35, 38), "a file"),
        **dict.fromkeys((182, 183, 188, 189), "a message queue"),
    },
}.get(_MACHINE, {})
# Calls that wait for any of several: for a timer alone where they are given none. Number -> index of how many there are
SEVERAL = {"x86_64": {7: 1, 271: 1, 23: 0, 270: 0}, "aarch64": {73: 1, 72: 0}}.get(_MACHINE, {})
EPOLL = {"x86_64": (232, 281, 441), "aarch64": (22, 441)}.get(_MACHINE, ())

KINDS = {"pipe:": "a pipe", "socket:": "a socket", "anon_inode:": "events", "/dev/": "a device"}  # of descriptors


def blocked_in(pid: int, tid: int) -> str:
    """The object that a thread waits for, such as "a pipe"; RUNNING where the thread has a core, or waits for nothing
    but a core.

    Raises OSError where the thread has ended.
    """
    task = PROC / str(pid) / "task" / str(tid)
    try:
        words = (task / "syscall").read_text().split()
    except PermissionError:
        state = (task / "stat").read_text().rpartition(") ")[2][:1]
        return UNKNOWN if state in "SD" else RUNNING
    return waits_for(pid, words)


def waits_for(pid: int, words: list[str]) -> str:
    """Same as blocked_in(), from the words of the thread's file "syscall"."""
    if not words or words[0] == "running":
        return RUNNING
    number = int(words[0])
    if number in FILE:
        return _object(pid, int(words[1], 16))
    if number in SEVERAL:
        return "several files" if int(words[1 + SEVERAL[number]], 16) else "a timer"
    if number in EPOLL:
        return "a socket" if _has_socket(pid, int(words[1], 16)) else "events or a timer"
    return WAITS.get(number, UNKNOWN if number >= 0 else "a page of memory")


def _object(pid: int, descriptor: int) -> str:
    """The kind of object to which a file descriptor refers."""
    try:
        target = os.readlink(f"/proc/{pid}/fd/{descriptor}")
    except OSError:
        return UNKNOWN
    return next((name for beginning, name in KINDS.items() if target.startswith(beginning)), "a file")


def _has_socket(pid: int, descriptor: int) -> bool:
    """Tell whether an epoll instance watches more sockets than the one by which an event loop wakes itself."""
    try:
        lines = Path(f"/proc/{pid}/fdinfo/{descriptor}").read_text().splitlines()
        watched = [int(line.split()[1]) for line in lines if line.startswith("tfd:")]
    except (OSError, ValueError, IndexError):
        return False
    return sum(_object(pid, each) == "a socket" for each in watched) > 1
