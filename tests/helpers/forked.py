"""Programs of Python in processes that need not import Headrace and torch again, which takes seconds of each.

run() and Popen are subprocess's, for `[sys.executable, "-c" | "-m" | SCRIPT, ...]`. A child is forked by a process that
has them loaded (fork_server), and is then made what a new process would be. Not for tests of what is imported, of what
an import reads, or of other options of Python: those take subprocess.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import socket
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

# beginnings of variables that Python, torch, NumPy, Numba and the C library read when they are loaded
READ_WHEN_LOADED = (
    "OMP_",
    "GOMP_",
    "KMP_",
    "MKL_",
    "OPENBLAS_",
    "NUMBA_",
    "CUDA_",
    "TORCH",
    "PYTHON",
    "LC_",
    "LANG",
    "LD_",
)


class Popen(subprocess.Popen):
    """A program in a child of the fork server."""

    def _execute_child(
        self,
        args: Any,
        executable: Any,
        preexec_fn: Any,
        close_fds: Any,
        pass_fds: Any,
        cwd: Any,
        env: Any,
        startupinfo: Any,
        creationflags: Any,
        shell: Any,
        p2cread: int,
        p2cwrite: int,
        c2pread: int,
        c2pwrite: int,
        errread: int,
        errwrite: int,
        restore_signals: Any,
        gid: Any,
        gids: Any,
        uid: Any,
        umask: int,
        session: bool,
        group: int = -1,
    ) -> None:
        command, variables = [os.fspath(word) for word in args], {**(os.environ if env is None else env)}
        if preexec_fn or pass_fds or shell or (gid, gids, uid, umask, group) != (None, None, None, -1, -1):
            raise ValueError("this needs a process of its own: use subprocess")
        if command[0] != sys.executable or (command[1].startswith("-") and command[1] not in ("-c", "-m")):
            raise ValueError(f"{command[:2]} is no program that can be forked: use subprocess")
        orders = _server(*sorted(item for item in variables.items() if is_read_when_loaded(item[0])))
        mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        streams = [own if given == -1 else given for own, given in enumerate((p2cread, c2pwrite, errwrite))]
        order = {"command": command, "folder": str(cwd or os.getcwd()), "variables": variables, "session": session}
        with theirs:
            socket.send_fds(orders, [json.dumps(order).encode()], [theirs.fileno(), *streams])
        self._connection = mine
        self.pid = int(mine.recv(64))
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        try:
            return self._wait(0)
        except subprocess.TimeoutExpired:
            return None

    def _wait(self, timeout: float | None) -> int:
        with self._waitpid_lock:
            if self.returncode is None:
                if not select.select([self._connection], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(self.args, timeout or 0)
                with self._connection:
                    self.returncode = int(self._connection.recv(64))
        return self.returncode


def run(
    command: list[Any],
    *,
    input: Any = None,
    capture_output: bool = False,
    timeout: float | None = None,
    check: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess:
    """subprocess.run() in a child of the fork server."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with Popen(command, **options) as process:
        try:
            out, errors = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(command, process.returncode, out, errors)
    if check:
        done.check_returncode()
    return done


def is_read_when_loaded(variable: str) -> bool:
    return variable.startswith(READ_WHEN_LOADED) and variable != "PYTHONPATH"  # which the server sets for the child


@cache
def _server(*variables: tuple[str, str]) -> socket.socket:
    """Socket of a server that was started with these variables, of those that are read when modules are loaded."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, str(Path(__file__).with_name("fork_server.py")), str(theirs.fileno())]
    others = {name: value for name, value in os.environ.items() if not is_read_when_loaded(name)}
    with theirs:
        server = subprocess.Popen(command, cwd="/", env=others | dict(variables), pass_fds=[theirs.fileno()])

    def end() -> None:
        mine.close()
        server.wait(60)

    atexit.register(end)
    return mine
