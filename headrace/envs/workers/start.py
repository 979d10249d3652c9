"""Start processes with this package's own fork servers, which have loaded the modules that workers need.

multiprocessing's fork server is left to users, since it may run already without these modules.
"""

from __future__ import annotations

import io
import os
import signal
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from importlib import import_module
from multiprocessing import connection, popen_forkserver, reduction, spawn
from multiprocessing.context import set_spawning_popen
from multiprocessing.process import BaseProcess
from time import sleep
from typing import Any

from headrace.envs.workers import lifetime

forkserver, util = (import_module(f"multiprocessing.{name}") for name in ("forkserver", "util"))
ForkServer: Any = forkserver.ForkServer
PRELOADED = [
    "headrace.parallel.gradient_actor",
    "headrace.bindings.collecting.compiled_collecting",
    "headrace.bindings.rng_returns_cpu",
    "headrace.envs.workers.stepping",
    "headrace.envs.gym.pettingzoo",
    "headrace.envs.workers.spin_wait",
    "headrace.data.shared_memory",
    "headrace.envs.workers.fork_server",
]
# prefixes of environment variables that Python, C libraries and the preloaded modules read once when loaded: a fork
# server is used only if these are as at its start. All others are sent with the order
_OF_C = ("GLIBC_", "GOMP_", "KMP_", "LANG", "LC_", "LD_", "MALLOC_", "OMP_")
_OF_PYTHON = ("HEADRACE_", "NPY_", "NUMBA_", "PYTHON", "PYTORCH_", "TORCH", "TQDM_")
_OF_LINEAR_ALGEBRA = ("ATEN_", "BLIS_", "DNNL_", "MKL_", "ONEDNN_", "OPENBLAS_", "VECLIB_")
_OF_GPUS = ("CUBLAS_", "CUDA_", "CUDNN_", "NCCL_", "NVIDIA_")
READ_ONCE = (*_OF_C, *_OF_PYTHON, *_OF_LINEAR_ALGEBRA, *_OF_GPUS)
TRIES, MOMENT = 3, 0.1  # s: where the fork server is killed while it starts a process
UNKNOWN = 2**16  # the exit code of a process whose fork server was killed, since only the server has the true one

_servers: dict[tuple[tuple[str, str], ...], Any] = {}  # of the class ForkServer
_started: list[Process] = []  # those that may be running
_starting = threading.Lock()


class Process(BaseProcess):
    """A process that calls target(*args), with the output files of this one. It may have children of its own.

    variables: os.environ, as far as libraries read it when they are loaded. It is not among multiprocessing's active
    children, which are asked to end by SIGTERM and waited for."""

    _start_method = None  # processes that an environment starts are of the same kind as in the parent

    def __init__(self, variables: Mapping[str, str], target: Callable[..., None], *args: Any) -> None:
        super().__init__(name="headrace worker", daemon=False)
        self.call, self._variables = (target, args), variables

    def start(self) -> None:
        """Start it. Raises EOFError, OSError where the fork server is killed again and again."""
        with _starting:
            server = _server(self._variables)
            del self._variables
            for tries_left in reversed(range(TRIES)):
                try:
                    self._popen: Any = _Popen(self, server)
                    break
                except (EOFError, ConnectionError):
                    if not tries_left:
                        raise
                    sleep(MOMENT)
            _started[:] = [process for process in _started if process.exitcode is None]
            _started.append(self)
        self._sentinel = self._popen.sentinel
        del self.call

    def run(self) -> None:
        """Called in the process."""
        for descriptor, own in zip(forkserver.get_inherited_fds()[-2:], (1, 2), strict=True):
            os.dup2(descriptor, own)
            os.close(descriptor)
        target, args = self.call
        target(*args)


class _Popen(popen_forkserver.Popen):
    """Process as multiprocessing starts it, but by a fork server of choice and without the user's main module, so that
    a script needs no `if __name__ == "__main__"`."""

    def __init__(self, process: Process, server: Any) -> None:
        self.server, self.parent_end = server, -1
        self._fds: list[int]
        super().__init__(process)

    def _launch(self, process: Process) -> None:
        about = spawn.get_preparation_data(process.name)
        for name in ("init_main_from_name", "init_main_from_path", "dir"):
            about.pop(name, None)
        content = io.BytesIO()
        set_spawning_popen(self)
        try:
            reduction.dump(about, content)
            reduction.dump(process, content)
        finally:
            set_spawning_popen(None)
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, lifetime.DECIDED_BY_PARENT)
        try:
            self.server.ensure_running()  # inherits the blocked signals
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        self.sentinel, write_end = self.server.connect_to_new_process([*self._fds, *map(_output, (1, 2))])
        self.parent_end = os.dup(write_end)  # the process ends once this is closed, see lifetime
        self.finalizer = util.Finalize(self, util.close_fds, (self.parent_end, self.sentinel))
        with open(write_end, "wb", closefd=True) as file:
            file.write(content.getbuffer())
        self.pid = forkserver.read_signed(self.sentinel)

    def poll(self, flag: int = os.WNOHANG) -> int | None:
        """The exit code, None while it runs."""
        if self.returncode is None and connection.wait([self.sentinel], 0 if flag == os.WNOHANG else None):
            try:
                self.returncode = forkserver.read_signed(self.sentinel)
            except (OSError, EOFError):
                self.returncode = UNKNOWN
        return self.returncode


def _output(number: int) -> int:
    """A descriptor of where this process writes its output now."""
    try:
        os.fstat(number)
    except OSError:  # it is closed
        return _nowhere()
    return number


@cache
def _nowhere() -> int:
    return os.open(os.devnull, os.O_WRONLY)


def _server(variables: Mapping[str, str]) -> Any:
    """The fork server for these variables. One whose processes have all ended is ended when another is needed."""
    key = tuple(sorted(item for item in variables.items() if item[0].startswith(READ_ONCE)))
    if key not in _servers:
        serving = {process._popen.server for process in _started if process.exitcode is None}
        for other, server in list(_servers.items()):
            if server not in serving:
                del _servers[other]
                _end(server)
        _servers[key] = ForkServer()
        _servers[key].set_forkserver_preload(PRELOADED)
    return _servers[key]


def _end(server: Any) -> None:
    """End a fork server. It would not end by itself while programs that its processes have left behind are running."""
    with suppress(ProcessLookupError, TypeError):
        os.kill(server._forkserver_pid, signal.SIGKILL)
    server._stop()


def _forget() -> None:
    """Forget processes and fork servers in a forked child: they belong to the parent, and end with it."""
    global _starting
    _starting = threading.Lock()
    for process in _started:
        for descriptor in (process._popen.parent_end, process._popen.sentinel):
            with suppress(OSError):
                os.close(descriptor)
    for server in _servers.values():
        if server._forkserver_alive_fd is not None:
            os.close(server._forkserver_alive_fd)
    _started.clear()
    _servers.clear()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget)
