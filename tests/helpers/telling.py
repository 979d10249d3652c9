"""A role that tells in what state its process is."""

from __future__ import annotations

import ctypes
import locale
import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import sys
import time
import warnings

import numpy as np

TELL = 0


def state():
    """State of this process that environments may depend on."""
    umask = os.umask(0)
    os.umask(umask)
    with warnings.catch_warnings(record=True):
        try:
            warnings.warn("of this test", UserWarning, stacklevel=1)
            raised = False
        except UserWarning:
            raised = True
    return {
        "level": os.environ.get("LEVEL"),
        "gone": os.environ.get("GONE"),
        "in C": ctypes.CDLL(None).getenv(b"GONE") == 0,
        "folder": os.getcwd(),
        "added": [path for path in sys.path if "added" in path],
        "umask": umask,
        "files": resource.getrlimit(resource.RLIMIT_NOFILE),
        "blocked": signal.SIGUSR1 in signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "raised": raised,
        "numbers": locale.setlocale(locale.LC_NUMERIC),
        "argument": sys.argv[-1],
        "recursion": sys.getrecursionlimit(),
        "digits": sys.get_int_max_str_digits(),
        "waits": socket.getdefaulttimeout(),
        "division": np.geterr()["divide"],
        "nice": os.nice(0),
    }


class Telling:
    """Tells its process's state, and which processes it is of. children: whether it starts some of its own."""

    def __init__(self, children, orders):
        server = os.getppid()
        with open(f"/proc/{server}/environ", "rb") as file:
            born = file.read().split(b"\0")
        self.facts = {**state(), "pid": os.getpid(), "server": server, "born": born, "children": []}
        if children:
            context = multiprocessing.get_context("fork")
            queue = context.Queue()
            short = context.Process(target=queue.put, args=(7,))
            short.start()
            assert queue.get(timeout=60) == 7
            short.join()
            long = context.Process(target=time.sleep, args=(1000,), daemon=True)
            long.start()
            program = subprocess.Popen(["sleep", "1000"])
            self.facts["children"] = [long.pid, program.pid]

    def carry_out(self, what, where):
        return where

    def close(self):
        pass
