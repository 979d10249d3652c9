"""Train members of a population on the nodes of a Ray cluster, which share the population's folder."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headrace.core.packages import installed
from headrace.parallel.cluster.connection import LOOK, Connection, Settings
from headrace.populations.population_member import Interval, Outcome, train
from headrace.populations.population_record import RECORD
from headrace.runs.signals import Interrupts
from headrace.runs.task_processes import Task

SOURCES = "(sources)"  # the version of Headrace where it is not installed
AGAIN = 2  # times that a member begins an interval again after the loss of its process or node


class ClusterMembers:
    """Trains members as tasks of one core each. A context manager with a connection to the cluster.

    jobs: number of tasks at a time. folder: the population's, with its record.
    Raises what Connection does.
    """

    def __init__(self, settings: Settings, jobs: int, folder: Path) -> None:
        self._settings, self._jobs, self._folder = settings, jobs, folder

    def __enter__(self) -> Self:
        self._connection = Connection(self._settings, self._jobs)
        self._here = self._folder, Path.cwd(), installed("headrace", SOURCES)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._connection.close()

    def run(self, tasks: Iterator[Task], done: Callable[[int, Outcome | None, str], None]) -> str:
        """Carry out tasks as Processes.run() does. A signal ends the tasks; on resuming, members begin their interval
        again. Raises ImportError for a node with another version of Headrace, FileNotFoundError for a node without the
        folder."""
        numbered, at_work = enumerate(tasks), dict[Any, int]()
        with Interrupts() as interrupts:
            while not interrupts.caught:
                while len(at_work) < self._jobs and (found := next(numbered, None)) is not None:
                    number, (interval, _) = found
                    at_work[self._connection.call(_begun, interval, *self._here)] = number
                if not at_work:
                    return ""
                for ref, outcome in self._connection.call(_ended, list(at_work)):
                    done(at_work.pop(ref), outcome, "")
            self._connection.call(_cancel, list(at_work))
            return interrupts.caught


def on_node(interval: Interval, folder: Path, working: Path, version: str) -> Outcome:
    """Train a member for an interval, in a process of a node."""
    node = socket.gethostname()
    if (own := installed("headrace", SOURCES)) != version:
        raise ImportError(f"{node} has headrace {own}, and this machine {version}")
    if not (folder / RECORD).is_file():
        raise FileNotFoundError(
            f"{node} does not have {folder}, where members read and write their checkpoints: give a folder on storage "
            "that all nodes share (--folder)"
        )
    os.environ.setdefault("HEADRACE_THREADS", "1")
    with suppress(OSError):  # relative names of files refer to it
        os.chdir(working)
    return train(interval)


def _begun(interval: Interval, *here: Any) -> Any:
    import ray

    return ray.remote(num_cpus=1, max_retries=AGAIN)(on_node).remote(interval, *here)


def _ended(refs: list[Any]) -> list[tuple[Any, Outcome | None]]:
    """Wait at most LOOK seconds for tasks to end. Returns these with their outcomes, None if a process was lost."""
    import ray
    from ray.exceptions import RayTaskError

    found = list[tuple[Any, Outcome | None]]()
    for ref in ray.wait(refs, timeout=LOOK)[0]:
        try:
            found.append((ref, ray.get(ref)))
        except RayTaskError as error:
            raise error.cause from None
        except ray.exceptions.RayError:
            found.append((ref, None))
    return found


def _cancel(refs: list[Any]) -> None:
    import ray

    for ref in refs:
        ray.cancel(ref, force=True)
    ray.wait(refs, num_returns=len(refs), timeout=LOOK)
