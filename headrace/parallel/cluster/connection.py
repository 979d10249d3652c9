"""Ray in a thread of its own: a cluster of this machine that nothing outside can reach, or one that runs already."""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from headrace.core.packages import require
from headrace.core.terminal import tell
from headrace.data.shared_memory import FOLDER
from headrace.envs.workers.resources import MEGABYTE
from headrace.parallel.cluster import namespace
from headrace.parallel.cluster.head import HeadWatch, answers

LOCAL, AUTO = "local", "auto"
HOST_AND_PORT = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[^\s:,/\[\]]+):([0-9]{1,5})")  # an IPv6 host is in brackets
LEAST_STORE = 75 * 2**20  # bytes: Ray's object stores are not smaller
LOOK = 1.0  # s of waiting for Ray's thread between two checks whether the head is gone
LEAVING = 10.0  # s for leaving a cluster whose head is gone
TOKEN_FILE = Path.home() / ".ray" / "auth_token"
QUIET = {  # also disables Ray's usage reports
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}
UNREAD = {  # disables statistics that each process of a local cluster would report every few seconds: they are not used
    "RAY_enable_metrics_collection": "0",
    "RAY_task_events_report_interval_ms": "0",
}
Result = TypeVar("Result")


class Settings(NamedTuple):
    """Address of the cluster, and what is allowed."""

    address: str  # "local", "auto", or that of a cluster's head
    open: bool = False  # whether Ray may listen beyond loopback, or be used without a token


class Node(NamedTuple):
    """A machine of a cluster."""

    id: str
    address: str
    cores: int
    free: int  # cores not in use
    gpus: int
    store: int  # bytes of its object store


class _Thread:
    """The thread in which a process uses Ray. Ray's own threads are its children and stay in its network namespace, so
    a process has only one. It serves either "local" clusters or others, one after another."""

    def __init__(self, local: bool, allowed_open: bool) -> None:
        self.local = local
        self.closed = False
        self.pool = ThreadPoolExecutor(1, "ray")
        if local:
            self.closed = self.pool.submit(_closed, allowed_open).result()


_thread: _Thread | None = None


def _closed(allowed_open: bool) -> bool:
    """Move this thread into a network namespace for a local cluster; returns whether only this machine can reach it.
    Raises ValueError if other machines could reach it and that is not allowed."""
    try:
        if namespace.reachable():
            namespace.enter()
        return True
    except OSError as error:
        if not allowed_open:
            addresses = ", ".join(f"{address} ({name})" for name, address in namespace.reachable().items())
            raise ValueError(
                "cluster='local' starts Ray in a network namespace of its own, which the system does not allow "
                f"({error}). Without it Ray listens on all addresses of this machine: {addresses}; its token is the "
                "protection. Give --cluster-open (cluster_open=True) to allow that, or run the command inside "
                "`unshare -rn`"
            ) from None
        return False


def _thread_for(settings: Settings) -> _Thread:
    global _thread
    local = settings.address == LOCAL
    if _thread is None:
        _thread = _Thread(local, settings.open)
    if _thread.local != local:
        was, now = ("a cluster of its own", "another one") if _thread.local else ("a cluster", "one of its own")
        raise ValueError(f"this process has used {was}, and Ray cannot change to {now}: use another process")
    return _thread


class Connection:
    """A connection to a cluster. All that uses Ray runs in its thread: call(function, ...).

    actors: how many there will be, for a cluster that is started. store: bytes of its object store.
    address: HOST:PORT of the head, once it is connected.
    Raises ImportError without Ray; ValueError for a cluster that is open to others where that is not allowed;
    ConnectionError where none answers; MemoryError where the object store does not fit.
    """

    def __init__(self, settings: Settings, actors: int = 1, store: int = 0) -> None:
        self.settings = settings
        self.local = settings.address == LOCAL
        _check_address(settings.address)
        require("ray", "cluster needs Ray: pip install 'headrace[ray]'")
        for name, value in (QUIET | UNREAD if self.local else QUIET).items():
            os.environ.setdefault(name, value)
        _take_token(settings)
        self._pool = _thread_for(settings).pool
        self._head: HeadWatch | None = None
        self.store = max(store, LEAST_STORE)
        if self.local:
            _check_store(self.store)
        self.call(self._connect, actors)
        if self.local and not _thread_for(settings).closed:
            tell(f"Ray listens beyond this machine: {', '.join(self.call(_open_sockets))}")

    def call(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """The result of a function, called in Ray's thread. Raises HeadLost where the cluster's head is gone."""
        if self._head is not None:
            self._head.check()
        future = self._pool.submit(function, *arguments)
        while True:
            try:
                return future.result(LOOK)
            except TimeoutError:
                if future.done():  # it has raised that itself, or ended meanwhile
                    return future.result()
                if self._head is not None:
                    self._head.check()

    def _connect(self, actors: int) -> None:
        import ray
        from ray import _raylet

        core: Any = _raylet  # an extension module, without types

        if ray.is_initialized():
            raise ValueError("Ray is in use in this process: close the other training, or call ray.shutdown()")
        logging.getLogger("ray").setLevel(logging.ERROR)
        core.Config.initialize("")  # Ray has read its environment variables when it was imported
        if not self.settings.open and core.get_authentication_mode() != core.AuthenticationMode.TOKEN:
            raise ValueError("this version of Ray does not ask for a token: install ray 2.60 or later")
        own: dict[str, Any] = {}
        if self.local:
            own = {"num_cpus": actors, "object_store_memory": self.store, "include_dashboard": False}
        try:
            context: Any = ray.init(
                LOCAL if self.local else _found(self.settings.address),
                namespace="headrace",
                log_to_driver=False,
                configure_logging=False,
                logging_level=logging.ERROR,
                **own,
            )
        except (ConnectionError, RuntimeError) as error:
            ray.shutdown()
            if self.local:
                raise ConnectionError(f"Ray could not be started on this machine: {error}") from None
            raise ConnectionError(
                f"there is no cluster at {self.settings.address!r}, or it takes another token: "
                f"{str(error).rstrip('. ')}. Start one by `ray start --head` (docs/cluster.md)"
            ) from None
        self._session = str(context.address_info["session_dir"])
        self.address = str(context.address_info["gcs_address"])
        self._head = HeadWatch(self.address)

    @property
    def lost(self) -> bool:
        """True if the cluster's head is gone. Ray may then answer nothing."""
        return self._head is not None and self._head.lost

    def nodes(self) -> list[Node]:
        """The machines of the cluster now, this one first."""
        return self.call(_nodes)

    def close(self) -> None:
        """Leave the cluster. A cluster that was started here ends."""
        if self._head is not None:
            self._head.close()
        wait([self._pool.submit(_shutdown)], LEAVING if self.lost else None)
        if self.local:
            shutil.rmtree(self._session, ignore_errors=True)  # its logs


def _check_address(address: str) -> None:
    """Raise ValueError unless an address is "local", "auto" or HOST:PORT."""
    if "://" in address:
        raise ValueError(
            f"cluster={address!r} is an address of Ray Client, which actors cannot be used by: give HOST:PORT of the "
            "head (its port is 6379 by default), and start the training on a machine of the cluster"
        )
    found = HOST_AND_PORT.fullmatch(address)
    if address not in (LOCAL, AUTO) and not (found and 0 < int(found[1]) < 2**16):
        raise ValueError(
            f"cluster={address!r} is no address: give HOST:PORT of the head, such as 10.0.0.1:6379 (6379 is Ray's port "
            f"by default), {AUTO!r} for the cluster that this machine is in, or {LOCAL!r} for one of this machine alone"
        )


def _found(address: str) -> str:
    """HOST:PORT of the head for an address. Raises ConnectionError if nothing listens there: Ray would try for a
    minute, then end the process."""
    from ray._private import services

    found = services.canonicalize_bootstrap_address_or_die(address)
    if not answers(found):
        raise ConnectionError(f"nothing listens at {found}")
    return found


def _nodes() -> list[Node]:
    import ray

    here = ray.get_runtime_context().get_node_id()
    available = ray._private.state.available_resources_per_node()
    found = []
    for node in ray.nodes():
        if node["Alive"]:
            has, left = node["Resources"], available.get(node["NodeID"], {})
            numbers = has.get("CPU", 0), left.get("CPU", 0), has.get("GPU", 0), has.get("object_store_memory", 0)
            found.append(Node(node["NodeID"], node["NodeManagerAddress"], *map(int, numbers)))
    return sorted(found, key=lambda node: (node.id != here, node.address))


def _shutdown() -> None:
    import ray

    ray.shutdown()


def _open_sockets() -> list[str]:
    """Addresses beyond loopback at which Ray's processes listen."""
    return sorted({str(one) for one in namespace.listening(own_processes()) if not one.loopback})


def own_processes() -> list[int]:
    """List of the numbers of this process and all of its descendants."""
    parents = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            words = status.read_text().rpartition(") ")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        parents[int(status.parent.name)] = int(words[1])
    found = [os.getpid()]
    for pid in found:  # grows
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def _take_token(settings: Settings) -> None:
    """Make Ray require a token. Raises ValueError if it would not, and that is not allowed."""
    mode = os.environ.get("RAY_AUTH_MODE")
    if settings.address == LOCAL:
        if mode not in (None, "token"):
            raise ValueError(
                f"RAY_AUTH_MODE is {mode!r}, and cluster='local' is not started without a token: unset RAY_AUTH_MODE"
            )
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
        return
    there = any(name in os.environ for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")) or TOKEN_FILE.is_file()
    if there and mode in (None, "token"):
        os.environ["RAY_AUTH_MODE"] = "token"
    elif not settings.open:
        raise ValueError(
            f"cluster={settings.address!r} would be used without a token, so that whoever reaches its ports runs "
            "code on its machines. Make one (`ray get-auth-token --generate`), start the cluster with "
            "RAY_AUTH_MODE=token, and put it into RAY_AUTH_TOKEN or ~/.ray/auth_token here; or give --cluster-open "
            "(cluster_open=True)"
        )


def _check_store(size: int) -> None:
    free = shutil.disk_usage(FOLDER).free
    if size > free:
        raise MemoryError(
            f"the object store for fragments and weights takes {size / MEGABYTE:,.0f} MB, and {FOLDER} has "
            f"{free / MEGABYTE:,.0f} MB free: use fewer environments or steps, or give it more (in Docker: --shm-size)"
        )
