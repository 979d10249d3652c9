"""A process that has Headrace and torch loaded and forks a child for each program that tests want to run: see forked.

python fork_server.py SOCKET, a descriptor. Each message there is an order as JSON, with four descriptors: where the
child's number and later its exit code are sent, and the child's stdin, stdout and stderr.
"""

from __future__ import annotations

import gc
import json
import os
import random
import runpy
import select
import signal
import socket
import sys
import time
from io import TextIOWrapper
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

HERE = sys.path.pop(0)  # this folder, which Python has put there
PATHS = os.environ.get("PYTHONPATH", "").split(os.pathsep)
BASE = [path for path in sys.path if path not in PATHS]


def load() -> None:
    """Import what most programs import."""
    import headrace

    for name in headrace.__all__:
        getattr(headrace, name)
    for verb in ("train", "eval", "plot", "runs", "export"):
        __import__(f"headrace.cli.{verb}")
    import rich.console
    import tensorboardX
    import tyro

    del rich, tensorboardX, tyro
    gc.collect()
    gc.freeze()


def serve(orders: socket.socket) -> dict[str, Any] | None:
    """Fork a child for each order, and say how each ended. Returns the order in the child, None at the end of all."""
    children: dict[int, socket.socket] = {}
    wakes, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a Ctrl-C is for pytest and the children
    while True:
        ready, _, _ = select.select([orders, wakes], [], [])
        if wakes in ready:
            os.read(wakes, 4096)
            _report(children)
        if orders in ready:
            message, given, _, _ = socket.recv_fds(orders, 2**20, 4)
            if not message:
                return None
            connection = socket.socket(fileno=given[0])
            child = os.fork()
            if not child:
                signal.set_wakeup_fd(-1)
                for descriptor in (
                    wakes,
                    woken,
                    *(other.detach() for other in (orders, connection, *children.values())),
                ):
                    os.close(descriptor)
                order: dict[str, Any] = json.loads(message)
                return order | {"streams": given[1:]}
            children[child] = connection
            connection.send(str(child).encode())
            for descriptor in given[1:]:
                os.close(descriptor)


def _report(children: dict[int, socket.socket]) -> None:
    """Send the exit codes of children that have ended."""
    while children:
        ended, status = os.waitpid(-1, os.WNOHANG)
        if not ended:
            return
        with children.pop(ended) as connection:
            connection.send(str(os.waitstatus_to_exitcode(status)).encode())


def become(order: dict[str, Any]) -> None:
    """Make this child what a new process would be: signals, session, streams, folder, environment, arguments, path."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if order["session"]:
        os.setsid()
    for number, given in enumerate(order["streams"]):
        os.dup2(given, number)
    for given in {*order["streams"]} - {0, 1, 2}:
        os.close(given)
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        stream = _stream(number, name, getattr(sys, name))
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["variables"])
    time.tzset()
    random.seed()
    sys.modules["numpy"].random.seed()
    sys.excepthook = _print_without_this_file
    sys.orig_argv[:] = order["command"]
    paths = order["variables"].get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = [*(os.path.abspath(path) for path in paths if path), *BASE]


def _stream(number: int, name: str, usual: TextIOWrapper) -> TextIOWrapper:
    """Make the stream that Python makes of a descriptor when it starts, in the way of the present one."""
    mode = "r" if name == "stdin" else "w"
    direct = usual.write_through and mode == "w"
    binary = open(number, f"{mode}b", 0 if direct else -1, closefd=False)  # noqa: SIM115
    getattr(binary, "raw", binary).name = f"<{name}>"
    lines = not direct and (name == "stderr" or binary.isatty())
    newline = None if mode == "r" else "\n"
    made = TextIOWrapper(binary, usual.encoding, usual.errors, newline, lines, usual.write_through)
    made.mode = mode
    return made


def _print_without_this_file(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)


def run(command: list[str]) -> None:
    """Run `-c TEXT`, `-m MODULE` or a script with the words that follow, as the program of this process."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    first, *words = command[1:]
    if first == "-m":
        sys.argv[:], sys.path[:] = words, [os.getcwd(), *sys.path]
        runpy._run_module_as_main(words[0])  # type: ignore[attr-defined]
        return
    if first == "-c":
        text, place, file = words.pop(0), "", "<string>"
    else:
        text, place, file = Path(first).read_text(), os.path.dirname(os.path.abspath(first)), first
        main.__file__ = file
    sys.argv[:], sys.path[:] = [first, *words], [place, *sys.path]
    exec(compile(text, file, "exec", dont_inherit=True), main.__dict__)


if __name__ == "__main__":
    load()
    taken = serve(socket.socket(fileno=int(sys.argv[1])))
    if taken is not None:
        become(taken)
        run(taken["command"])
